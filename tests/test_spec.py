"""Specs: what is kept as JSON is read back as it was."""

import json

import pytest

from headwise.options import preset
from headwise.spec import JsonSpec, OwnFile, Spec, SpecError
from headwise.training.run import Recipe, Run


class Leaf(Spec):
    size: int


class Tree(JsonSpec):
    leaf: Leaf
    leaves: tuple[Leaf, ...]
    pair: tuple[float, float]
    anything: dict[str, list[int]]


def test_json_gives_nested_specs_and_tuples_back():
    tree = Tree(leaf=Leaf(size=1), leaves=(Leaf(size=2), Leaf(size=3)), pair=(0.5, 1.5), anything={"a": [1, 2]})
    assert Tree(**json.loads(json.dumps(tree.model_dump()))) == tree


def test_a_run_is_the_same_run_after_json():
    options = preset("gpt2", vocab=10, context=8)
    recipe = Recipe(betas=(0.5, 0.75))
    run = Run(task={"name": "toy"}, shape="w8-h2", options=options, recipe=recipe, steps=1, probes=("qk-rank",))
    again = Run(**json.loads(json.dumps(run.model_dump())))
    assert again == run
    assert again.key == run.key


def test_a_nested_mistake_is_one_sentence():
    with pytest.raises(SpecError, match="Leaf has no field 'colour'"):
        Tree(leaf={"size": 1, "colour": "red"}, leaves=[], pair=[1.0, 2.0], anything={})
    with pytest.raises(SpecError, match="leaves"):
        Tree(leaf={"size": 1}, leaves=7, pair=[1.0, 2.0], anything={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the task file .*my.py: No such file"),
        ("x = 1", "my.py does not say which is its task: end it with TASK = 5"),
        ("TASK = 3", "does not say which is its task"),
        ("def (", r"the task file .*my.py cannot be loaded: SyntaxError: .*line 1"),
        ("x = 1\nraise ValueError('two\\nlines')", r"ValueError: two lines \(line 2\)"),
        ("import sys\nsys.exit(3)", r"SystemExit: 3 \(line 2\)"),
    ],
)
def test_a_wrong_file_of_a_user_is_one_sentence(text, message, tmp_path):
    file = tmp_path / "my.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SpecError, match=message) as raised:
        OwnFile(file, "task").load("TASK = 5", lambda value: value == 5)
    assert "\n" not in str(raised.value)


def test_a_right_file_of_a_user_gives_what_it_names(tmp_path):
    file = tmp_path / "my.py"
    file.write_text("TASK = 5")
    own = OwnFile(str(file), "task")
    assert own.load("TASK = 5", lambda value: value == 5) == 5
    file.write_text("TASK = 6")
    assert own.hash != OwnFile(file, "task").hash
