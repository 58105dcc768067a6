"""Suggestions: exact costs, computed labels, published evidence, and claims that speak of the task."""

from dataclasses import replace

import pytest

import headwise as hw
from headwise.comparison import suggest as module
from headwise.comparison.evidence.rows import published
from headwise.comparison.evidence.table import judged_claims
from headwise.comparison.moves import MOVES, label, proxy, refilled
from headwise.comparison.suggest import suggest_for
from headwise.cost import cost_of
from headwise.known import KNOWN, find
from headwise.options import ModelOptions, preset
from headwise.search import starting_point
from headwise.shape import ModelShape
from headwise.spec import SpecError
from helpers.commands import as_json, headwise


@pytest.fixture(scope="module")
def memory():
    return {name: hw.suggest(name, "memory").document for name in ("gpt2", "nanochat-d20", "qwen3-0.6b", "llama-3-8b")}


def test_costs_are_exact_and_parameters_are_kept(memory):
    first = memory["gpt2"]["suggestions"][0]
    assert first["shape"] == "w768-h12-g3-L12-m3648"
    cost = cost_of(ModelShape.parse(first["shape"]), KNOWN["gpt2"].options)
    assert (first["kv_bytes"], first["kv_bytes_difference"]) == (cost.kv_bytes, -0.75)
    assert first["parameters"] == cost.parameters["total"]
    for document in memory.values():
        for one in document["suggestions"]:
            assert one["kv_bytes_difference"] < 0
            if one["refilled"]:
                assert abs(one["parameters_body_difference"]) < 0.002


def test_labels_are_computed(memory):
    assert memory["gpt2"]["answer"] == "For memory: KV heads 12 → 3, MLP 3072 → 3648"
    base, arm = (ModelShape.parse(text) for text in ("w768-h12-L12", "w768-h24-L8"))
    assert label(base, arm) == "layers 12 → 8, heads 12 → 24, KV heads 12 → 24, head dim 64 → 32"


def test_a_latent_has_its_rotary_part_and_is_not_for_learned_positions(memory, monkeypatch):
    """Nobody published a latent beside learned positions."""
    assert "c" not in "".join(one["shape"] for one in memory["gpt2"]["suggestions"])
    for name in ("nanochat-d20", "qwen3-0.6b", "llama-3-8b"):
        latent = next(one["shape"] for one in memory[name]["suggestions"] if "-c" in one["shape"])
        assert "-c512-p64-" in latent
    monkeypatch.setattr(module, "MOST", len(MOVES))
    bare = suggest_for("w512-h8-L6", "memory").document["suggestions"]
    assert any("-c256-p32-" in one["shape"] for one in bare)


def test_what_our_runs_found_worse_is_named_and_not_suggested(memory, monkeypatch):
    """Were they able to tell: L6, L7 and L11 on text and N4 on lookup find worse, L5 on images does not."""
    assert all(document["found_worse"] == [] for document in memory.values())
    told = [replace(one, verdict="open") for one in judged_claims()]
    monkeypatch.setattr(module, "judged_claims", lambda *given: told)
    moves = {
        move["move"]: [claim["id"] for claim in move["claims"]]
        for move in suggest_for("gpt2", "memory").document["found_worse"]
    }
    assert moves == {"fewer layers with more heads": ["L6", "L7", "L11"]}
    images = suggest_for("vit-b16", "memory", task="vision").document
    assert "fewer layers with more heads" in {one["move"] for one in images["suggestions"]}
    lookup = suggest_for("gpt2", "memory", task="lookup").document
    assert "fewer KV heads" in {one["move"] for one in lookup["found_worse"]}  # N4


def test_the_condition_number_is_no_evidence():
    assert not {"L1", "L2", "L3", "L4", "L12", "L13"} & {name for move in MOVES for name in move.claims}


def test_expected_quality_is_a_distribution_and_a_number_takes_five_labs(memory, monkeypatch):
    for document in memory.values():
        for one in document["suggestions"]:
            assert (one["expected"] is None) == (one["labs"] < 5)
            assert sum((one["expected"] or {"none": 1.0}).values()) == pytest.approx(1)
            for cell in one["evidence"].values():
                assert (cell["loss_change"] is not None) == (cell["loss_labs"] >= 5)
    shared = memory["gpt2"]["suggestions"][0]
    assert shared["expected"]["worse"] < 0.5
    monkeypatch.setattr(module, "MOST", len(MOVES))
    every = suggest_for("gpt2", "memory").document["suggestions"]
    far = next(one for one in every if one["move"] == "even fewer KV heads")
    assert far["expected"]["worse"] > shared["expected"]["worse"]


def test_context_batch_and_number_format_count():
    short, long = (suggest_for("gpt2", "memory", **given) for given in ({}, {"batch": 8, "dtype": "fp8"}))
    assert long.document["kv_bytes"] == 4 * short.document["kv_bytes"]
    assert long.document["suggestions"][0]["decode_bytes_difference"] < -0.15


def test_the_command_to_test_it_runs_the_same_move_on_a_smaller_model(memory):
    test = memory["gpt2"]["test"]
    assert test.endswith("--family gpt2 --base w384-h12-L4 --arms w384-h12-g3-L4-m1824")
    small = proxy(starting_point(find("llama-3-8b").shape))
    assert (small.layer.group, small.layer.qk_rank, small.depth) == (4, 32, 4)


def test_refilling_keeps_the_body_and_stops_at_a_thin_mlp():
    options = preset("llama", vocab=100)
    base = starting_point(ModelShape.parse("w512-h8-L6-m2048"))
    wide = starting_point(ModelShape.parse("w512-h64-r64-L6-m2048"))
    assert refilled(base, wide, options) is None


def test_quality_and_mistakes():
    found = suggest_for("w512-h8-L6", "quality").document["suggestions"]
    moves = {one["move"] for one in found}
    assert "fewer, larger heads" in moves
    assert "a larger query/key rank" not in moves  # which our own registered runs found worse (N2)
    assert "a larger query/key rank" in headwise("suggest", "w512-h8-L6", "--goal", "quality").stdout.replace("\n", " ")
    assert all(abs(one["parameters_body_difference"]) < 0.01 for one in found)
    assert "Nothing is recommended" in suggest_for("w7-h7-m7", "quality").document["answer"]
    with pytest.raises(SpecError, match="no goal 'beauty'"):
        suggest_for("gpt2", "beauty")
    with pytest.raises(SpecError, match="no kind of task"):
        suggest_for("gpt2", "memory", task="chess")
    assert ModelOptions().positions == "none"


def test_several_models_are_columns():
    names = ("gpt2", "qwen3-0.6b", "llama-3-8b")
    several = hw.suggest_each(names, "memory")
    assert [row["name"] for row in several.records()] == list(names)
    for name, one in zip(names, as_json("suggest", *names, "--goal", "memory"), strict=True):
        assert one["suggestions"] == as_json("suggest", name, "--goal", "memory")
    table = headwise("suggest", *names, "--goal", "memory").stdout
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "advice recommended recommended coin flip" in " ".join(table.split())


def test_fewer_and_smaller_heads_are_no_evidence_for_larger_ones():
    """Shazeer's two heads of 64 for eight of 128 lose, and were read as larger heads that lose."""
    shrunk, split = (next(row for row in published() if row.id == name) for name in ("e014", "e003"))
    (turned,) = module._as_family([shrunk, split], "head_dim", same=False)
    assert (turned.id, turned.axis, turned.knob) == ("e003", "head_dim", "more")
    nearest = hw.suggest("gpt2", "quality").document["suggestions"][0]["nearest"]
    assert not {"e014", "e019", "e034"} & {row["id"] for row in nearest}


def test_a_row_of_the_opposite_change_says_so():
    shown = " ".join(headwise("suggest", "gpt2", "--goal", "memory").stdout.split())
    assert "Yao 102M: loss +0.1% [e140]" in shown
    assert "marin 135M (the other way): loss +0.3% [e178]" in shown
