"""Rules of the house: imports point one way, one place owns head arithmetic, start-up is light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headwise

SOURCE = Path(headwise.__file__).parent
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}
NO_TORCH = ["spec", "shape", "options", "known", "cost", "search", "run", "store", "claims", "sweep", "studies"]
NO_TORCH += ["cli", "__init__", "certify", "theory.bounds", "theory.needs"]
NO_TORCH += ["report.theory", "report.tables", "report.ledger", "report.runs", "report.page", "track"]
NO_TORCH += ["compare", "planning", "judging", "pacing", "foreign", "verdict", "suggest", "report.compare"]
NO_TORCH += ["report.suggest", "law"]
MAY_IMPORT = {  # what else of the package each part may use
    "spec": set(),
    "shape": {"spec"},
    "options": {"spec"},
    "kernels": set(),
    "machine": set(),
    "compiled": {"machine"},
    "tiled": {"compiled", "shape"},
    "attention": {"shape", "spec", "kernels", "compiled", "tiled"},
    "models": {"models", "attention", "kernels", "compiled", "tiled", "shape", "options", "spec"},
    "data": {"data", "spec"},
    "tasks": {"tasks", "data", "models", "attention", "shape", "options", "spec"},
    "theory": {"theory", "models", "attention", "probes", "spectra", "shape", "options", "run", "spec"},
    "run": {"shape", "options", "spec"},
    "records": {"run", "shape", "spec"},
    "store": {"records", "run"},
    "claims": set(),
    "law": {"cost", "options", "shape", "spec"},
    "studies": {"studies", "claims", "law", "run", "cost", "options", "shape", "spec", "report", "theory"},
    "checkpoints": {"checkpoints", "attention", "models", "options", "shape", "spec"},
    "truncation": {"checkpoints", "cost", "shape", "spec", "spectra"},
    "inspection": {"checkpoints", "truncation", "shape", "spectra"},
    "swapping": {"swapping", "attention", "kernels", "multihead", "checkpoints", "truncation", "shape", "spec"},
    "export_hf": {"checkpoints", "models", "options", "shape", "spec"},
    "hf_model": {"models", "options", "shape", "spec", "swapping"},
    "spectra": {"spec"},
    "probes": {"attention", "spectra", "spec"},
    "pretrained": {"data", "models", "run", "spec", "tasks"},
    "train": {"models", "probes", "checkpoint", "machine", "attention", "cost", "optim", "run", "tasks", "theory"}
    | {"spec", "pretrained", "__init__"},
}


def imports(path):
    """Names of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("headwise"):
            yield node.module.removeprefix("headwise").removeprefix(".") or "__init__"
        if isinstance(node, ast.Import):
            yield from (a.name.removeprefix("headwise.") for a in node.names if a.name.startswith("headwise."))


@pytest.mark.parametrize("name", list(MODULES))
def test_imports_point_one_way(name):
    used = set(imports(MODULES[name]))
    assert name in ("cli", "__main__") or not any(other.startswith("cli") for other in used)
    reads_studies = ("cli", "studies", "conduct", "compare", "planning")  # a comparison is planned as a study is
    assert name.startswith(reads_studies) or not any(other.startswith("studies") for other in used)
    part = name.split(".")[0]
    if part in MAY_IMPORT:
        assert {other.split(".")[0] for other in used} <= MAY_IMPORT[part]


def loaded_after(statement):
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("name", NO_TORCH)
def test_these_load_without_torch(name):
    module = "headwise" if name == "__init__" else f"headwise.{name}"
    assert "torch" not in loaded_after(f"import {module}")


def test_help_loads_nothing_heavy():
    heavy = {"torch", "numpy", "altair", "pydantic", "pandas"}
    assert not heavy & loaded_after("import headwise.cli")


def test_head_arithmetic_has_one_owner():
    pattern = re.compile(r"//\s*(\w+\.)*(n_|num_|kv_)?heads?\b")
    found = [n for n, path in MODULES.items() if n != "shape" and pattern.search(path.read_text())]
    assert found == ["search"], "only shape.py (and the search's split of a total) may divide by heads"


def test_every_module_says_what_it_is_for():
    for path in MODULES.values():
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_files_stay_short():
    long = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: lines for name, lines in long.items() if lines > 450} == {}


def test_public_names_exist():
    for name in headwise.__all__:
        assert getattr(headwise, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = headwise.nonsense
    assert set(headwise.__all__) < set(dir(headwise))
