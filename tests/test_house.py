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
HOUSE = """
spec extras shown notation shape options mixer gpu styles activations known cost search
layers mixers models data tasks measure theory training store sweep ledger charts studies
comparison checkpoints hf_model
report cli __init__ __main__
"""
LIGHT = """
spec extras shown notation shape options mixer styles activations gpu.kernels known cost search cli.app training.run
store.store store.rows store.exported sweep.plan sweep.drive ledger.special
ledger.judge ledger.study ledger.certify ledger.law ledger.published studies studies._recipes.text
studies._recipes.statistics theory.bounds theory.needs charts.grammar charts.curves charts.ranks
comparison.answer comparison.suggest comparison.command comparison.tables comparison.verdict comparison.prediction
studies._running studies._demo
studies._catalogue store.listing sweep.single report.studies report.predict sweep.tracking report.theory report.tables
report.ledger report.runs report.page report.compare report.suggest report.costs report.evidence report.evidence_page
comparison.moves comparison.evidence.table
"""
SIX = 6
ROOMS, NO_TORCH = HOUSE.split(), LIGHT.split()


def imports(path):
    """Names of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("headwise"):
            yield node.module.removeprefix("headwise").removeprefix(".") or "__init__"
        if isinstance(node, ast.Import):
            yield from (a.name.removeprefix("headwise.") for a in node.names if a.name.startswith("headwise."))


def test_a_module_imports_only_from_rooms_above_its_own():
    """The whole import rule: ROOMS, in order."""
    for name, path in MODULES.items():
        room = ROOMS.index(name.split(".")[0])
        used = {other.split(".")[0] for other in imports(path)}
        assert {other for other in used if ROOMS.index(other) > room} == set(), name


def test_studies_import_no_other_study():
    """What several share stands in studies/_recipes."""
    for name, path in MODULES.items():
        if re.fullmatch(r"studies\.[a-z]\w*", name):
            assert [other for other in imports(path) if re.match(r"studies(\.[a-z]|$)", other)] == [], name


def loaded_after(statement):
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_these_load_without_torch():
    """All in one process; only where torch is there at the end does it matter which of them brought it."""
    modules = [f"headwise.{name}" for name in ["__init__", *NO_TORCH]]
    if "torch" in loaded_after("import " + ", ".join(modules)):
        assert [name for name in modules if "torch" in loaded_after(f"import {name}")] == []


def test_help_loads_nothing_heavy():
    heavy = {"torch", "numpy", "scipy", "altair", "pydantic", "pandas"}
    asked = "import contextlib, io; sys.argv[1:] = ['--help']; from headwise.cli.app import main"
    shown = "contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit)"
    assert not heavy & loaded_after(f"{asked}\nwith {shown}: main()")


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


def code_lines(path):
    """Lines of code with their numbers: no blanks, comments, docstrings, imports or lone punctuation."""
    text = path.read_text()
    skipped = set()
    for node in ast.walk(ast.parse(text)):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            skipped |= set(range(node.lineno, node.end_lineno + 1))
    numbered = ((number, line.partition("  # ")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in numbered if number not in skipped and re.search(r"^[^#]*\w", line)]


def test_no_six_lines_of_code_stand_twice():
    seen, twice = {}, set()
    for name, path in sorted(MODULES.items()):
        lines = code_lines(path)
        for start in range(len(lines) - SIX + 1):
            block = tuple(line for _, line in lines[start : start + SIX])
            if block in seen:
                twice.add((seen[block], name))
            seen.setdefault(block, name)
    assert twice == set()


def test_public_names_exist():
    for name in headwise.__all__:
        assert getattr(headwise, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = headwise.nonsense
    assert set(headwise.__all__) < set(dir(headwise))


def test_no_public_name_is_a_modules():
    """Importing the module would replace it."""
    assert not set(headwise.__all__) & {name.split(".")[0] for name in MODULES}
