"""The lowest versions that pyproject.toml allows, as constraints; with --smoke, commands that use all of them."""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMOKE = (
    "--version",
    "--help",
    "cost gpt2",
    "shapes nanochat-d28 --limit 3",
    "theory bound --dim 16 --rank 4 --heads 1..8 --chart {folder}/bound",
    "claims --json",
    "explore gpt2 --no-ledger --no-browser --out {folder}/explorer.html",
    "demo --seeds 1 --steps 20 --out {folder}/demo",
)


def lowest(requirement):
    """`typer>=0.20` as `typer==0.20`."""
    name, version = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement).groups()
    return f"{name}=={version}"


def constraints():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    usual = re.search(r"\[(.*)\]", extras["usual"][0])[1].split(",")
    needed = [*project["dependencies"], *(one for name in usual for one in extras[name])]
    return sorted(set(map(lowest, needed)))


def smoke():
    with tempfile.TemporaryDirectory() as folder:
        for words in SMOKE:
            command = [sys.executable, "-m", "headwise", *words.format(folder=folder).split()]
            print("headwise", words, flush=True)
            subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    smoke() if "--smoke" in sys.argv else print("\n".join(constraints()))
