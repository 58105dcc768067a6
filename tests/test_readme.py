"""The README and the docs are run: Python blocks as they stand, commands as they are typed."""

import re
import shlex
from pathlib import Path

import pytest

from headwise.known import KNOWN
from helpers.commands import headwise

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = [README, *(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))]
PYTHON = ["".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)) for text in DOCS]
CONSOLE = "".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL)).splitlines()
COMMANDS = [line.split("#")[0].strip() for line in CONSOLE if line.startswith("headwise")]


@pytest.mark.parametrize("block", [block for block in PYTHON if block])
def test_python_blocks_run(block, monkeypatch, capsys):
    """The blocks of one page follow each other."""
    monkeypatch.chdir(ROOT)
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    for expected in re.findall(r"# .*?(\d{4,})$", block, re.MULTILINE):
        assert expected in printed


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, tmp_path):
    done = headwise(*shlex.split(command)[1:], HEADWISE_STORE=str(tmp_path / "runs.db"))
    assert done.stdout


def test_there_is_something_to_run():
    assert len(PYTHON) >= 2
    assert len(COMMANDS) >= 4


def test_make_targets_exist():
    targets = re.findall(r"^make (\S+)", "\n".join(CONSOLE), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_known_shapes_are_all_named_and_right():
    for name, known in KNOWN.items():
        assert f"`{name}`" in README
        shown = "`" + str(known.shape) + "`" in README
        assert shown or known.experts or name in ("mistral-7b",), name


def test_the_tree_is_the_tree():
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("src/headwise/\n")[1].split("```")[0]
    named = set(re.findall(r"^  (\w+\.py|\w+/)", tree, re.MULTILINE))
    source = ROOT / "src" / "headwise"
    real = {p.name for p in source.glob("*.py") if not p.name.startswith("__")}
    real |= {f"{p.name}/" for p in source.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert named == real


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)h#][^)]*)\)", README):
        assert (ROOT / target).exists(), target
