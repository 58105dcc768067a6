"""A study in a file of one's own: the guide's example as it stands, and what is wrong said in one sentence."""

import re
from pathlib import Path

import pytest

from headwise.spec import SpecError
from headwise.studies import load, load_all
from helpers.commands import as_json, headwise

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "adding-a-study.md"
EXAMPLE = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_study.py"
    path.write_text(EXAMPLE)
    return path


def test_the_guides_example_runs_and_its_claim_is_in_the_ledger(file, tmp_path):
    place = {"cwd": tmp_path, "HEADWISE_STORE": str(tmp_path / "runs.db")}
    done = as_json("study", "run", "my_study.py", "--preset", "smoke", **place)
    assert done["runs"]["trained"] == 6
    assert Path(tmp_path, done["chart"]).exists()
    (claim,) = as_json("claims", "--study", "my_study.py", "--source", "X", **place)
    assert (claim["id"], claim["study"], claim["verdict"]) == ("X1", "my-study", "open")
    assert claim["settle"] == "headwise study run my_study.py --preset laptop"
    assert "X1" in headwise("claims", "--study", "my_study.py", "--source", "X", **place).stdout
    assert "smoke" in headwise("study", "show", "my_study.py", **place).stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "does not say which is its study: end it with STUDY"),
        ("def (", r"cannot be loaded: SyntaxError: .*line 1"),
        ("x = 1\ny = z", r"NameError: name 'z' is not defined \(line 2\)"),
        (EXAMPLE.replace('"laptop": H', '"large": H'), "has no preset 'laptop'"),
    ],
)
def test_what_is_wrong_is_one_sentence(file, text, message):
    file.write_text(text)
    with pytest.raises(SpecError, match=message):
        load(str(file))


def test_names_and_claims_are_unique(file, tmp_path):
    with pytest.raises(SpecError, match="cannot read the study file"):
        load(str(tmp_path / "none.py"))
    assert load_all([file])[-1].file == str(file)
    with pytest.raises(SpecError, match="already a study 'my-study'"):
        load_all([file, file])
    file.write_text(EXAMPLE.replace('"X1"', '"Q7"'))
    with pytest.raises(SpecError, match="claim Q7 is one of rank-cliff"):
        load_all([file])
