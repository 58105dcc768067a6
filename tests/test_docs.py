"""The site: every page is in the contents, every link leads somewhere, every command exists with its options."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from headwise.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BUILT = {"explorer.html"}  # by `make docs`


def names(pages):
    return [str(page.relative_to(DOCS)) for page in pages]


def test_every_page_is_in_the_contents_once():
    listed = re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(names(PAGES))


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert target in BUILT or file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def commands():
    for page in [ROOT / "README.md", *PAGES]:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip().startswith("headwise "):
                    yield pytest.param(line.strip(), id=f"{page.name}: {line.strip()[:60]}")


@pytest.mark.parametrize("line", list(commands()))
def test_commands_exist_with_their_options(line):
    command = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands") or not words or words[0].startswith("-"), words
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert used <= known | {"--help"}, used - known
