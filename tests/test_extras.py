"""The core works alone: what an extra brings is asked for by name, and only where it is used."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headwise
from headwise.extras import EXTRAS, MissingExtra, extra, has, require

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {module for modules in EXTRAS.values() for module in modules}
WHEELS = {"PIL": "pillow", "sklearn": "scikit-learn", "vl_convert": "vl-convert-python"}
HIDDEN = [*sorted(MODULES), "transformers", "datasets", "ray", "tensorboard", "wandb", "pandas", "pyarrow", "joblib"]
HIDE = f"import sys; sys.modules.update(dict.fromkeys({HIDDEN}))\n"  # as a sitecustomize, also of worker processes
RUN = """
import contextlib, io, json, sys

if __name__ == "__main__":
    from headwise.cli.app import main

    for words in json.loads(sys.argv[1]):
        sys.argv = ["headwise", *words.split()]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                code = main() or 0
            except SystemExit as end:
                code = end.code or 0
            except Exception as error:
                code = repr(error)
        print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
CORE = (
    "cost gpt2 --json",
    "shapes nanochat-d28 --limit 3",
    "suggest gpt2 --goal memory",
    "theory bound --dim 16 --rank 4 --heads 1..8",
    "theory heads-needed --dim 16 --rank 4 --error 0.1",
    "claims --source Q",
    "tasks",
    "study list",
    "doctor",
    "train --task recall --steps 2 --store {folder}/own.db",
    "study run rank-cliff --preset smoke --store {folder}/own.db --workers 1 --out {folder}/chart",
    "demo --seeds 1 --steps 5 --out {folder}/chart",
    "runs --store {folder}/own.db",
    "export {folder}/own.jsonl.xz --store {folder}/own.db",
    "export {folder}/own.csv --store {folder}/own.db",
    "runs merge {folder}/own.jsonl.xz --store {folder}/other.db",
    "inspect {folder}/model --report {folder}/heads.html",
    "explore gpt2 --no-ledger --no-browser --out {folder}/explorer.html",
)
ASKING = {
    "report --out {folder}/page": "report",
    "theory bound --dim 16 --rank 4 --heads 1..8 --chart {folder}/chart": "report",
    "export {folder}/own.parquet --store {folder}/own.db": "frames",
    "train --task images --steps 2 --store {folder}/own.db": "data",
}


def alone(code, folder, *words):
    """A Python that finds nothing of any extra."""
    paths = os.pathsep.join([str(folder / "hidden"), str(Path(headwise.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(commands, folder):
    """By command, how it ended and what it said, one after the other in one process."""
    words = [command.format(folder=folder) for command in commands]
    told = [json.loads(line) for line in alone(RUN, folder, json.dumps(words)).splitlines()]
    return dict(zip(commands, told, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a small checkpoint in it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    place = tmp_path_factory.mktemp("core")
    (place / "hidden").mkdir()
    (place / "hidden" / "sitecustomize.py").write_text(HIDE)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
    LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=16, **sizes)).save_pretrained(place / "model")
    return place


def test_the_core_needs_no_extra(folder):
    for words, (code, out, err) in ended(CORE, folder).items():
        assert (code, bool(out)) == (0, True), f"{words}: {code} {err}"
        assert "Traceback" not in err, words
    assert not list(folder.glob("chart*")), "there is nothing to draw with"


def test_what_an_extra_brings_is_asked_for_by_name(folder):
    for words, (code, _, err) in ended(ASKING, folder).items():
        assert code == 2, f"{words}: {code} {err}"
        assert err.splitlines()[-1].endswith(f"pip install 'headwise[{ASKING[words]}]'"), err


def test_results_have_records_without_a_frame(folder):
    code = """
import headwise as hw
table = hw.equal_cost("w512-h8-L6")
assert table.records()[0]["heads"] and "<table>" in table._repr_html_()
try:
    table.table
except hw.MissingExtra as missing:
    print(missing)
"""
    assert "pip install 'headwise[frames]'" in alone(code, folder)


def test_the_extras_are_those_of_the_package():
    for name, modules in EXTRAS.items():
        wheels = {re.match(r"[\w-]+", one)[0] for one in PROJECT["optional-dependencies"][name]}
        assert wheels == {WHEELS.get(module, module) for module in modules}
        assert has(name) or name == "track", "the tests need the others"
    core = {re.match(r"[\w-]+", one)[0] for one in PROJECT["dependencies"]}
    assert not core & {WHEELS.get(module, module) for module in MODULES}


def test_extras_are_imported_only_where_they_are_asked_for():
    """Everywhere else an import of such a package would be a traceback to somebody."""
    source = Path(headwise.__file__).parent
    for path in source.rglob("*.py"):
        tree = ast.parse(path.read_text())
        asked = {node for outer in ast.walk(tree) if isinstance(outer, ast.With) for node in ast.walk(outer)}
        guarded = path.parent.name == "charts"  # its __init__ asks
        for node in ast.walk(tree):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if MODULES & {name.partition(".")[0] for name in names} and node not in asked and not guarded:
                assert _for_types(tree, node), f"{path}:{node.lineno}"


def _for_types(tree, node):
    blocks = (
        one for one in ast.walk(tree) if isinstance(one, ast.If) and getattr(one.test, "id", "") == "TYPE_CHECKING"
    )
    return any(node in ast.walk(block) for block in blocks)


def test_another_missing_module_is_not_taken_for_an_extra():
    with pytest.raises(ModuleNotFoundError) as raised, extra("report", "charts"):
        import no_such_module_anywhere  # noqa: F401
    assert not isinstance(raised.value, MissingExtra)


def test_what_is_missing_is_said_before_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtra, match=r"headwise\[report\]"):
        require("report", "charts")
    with pytest.raises(MissingExtra):
        headwise.run_study("rank-cliff", preset="paper", out="nowhere")
