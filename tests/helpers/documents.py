"""Commands of README and docs: each exists, with the options it is given. As a program, it ends with 1 where not."""

import re
import shlex
import sys
from pathlib import Path

import typer

from headwise.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands():
    """Pairs of a page's name and a line of it that calls headwise."""
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip().startswith("headwise "):
                    yield page.name, line.strip()


def wrong(line):
    """What is wrong with a command: no such command, or options that it lacks; empty where nothing is."""
    command = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands") and words and not words[0].startswith("-"):
        return f"there is no command {words[0]}"
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known
    return f"it has no {', '.join(sorted(unknown))}" if unknown else ""


if __name__ == "__main__":
    problems = [f"{page}: {line}: {why}" for page, line in commands() if (why := wrong(line))]
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))
