"""Specs: what is kept as JSON is read back as it was."""

import json

import pytest

from headwise.options import preset
from headwise.spec import JsonSpec, Spec, SpecError
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
