"""Suggestions: exact costs, and evidence named claim by claim."""

import pytest

from headwise.comparison.suggest import suggestions
from headwise.cost import cost_of
from headwise.known import find
from headwise.ledger.claims import Claim
from headwise.ledger.judge import Judgement
from headwise.ledger.law import LossPoint, fit
from headwise.options import ModelOptions
from headwise.spec import SpecError


def judged(name, decided):
    claim = Claim(name, f"claim {name}", "", "", lambda rows: [])
    return Judgement(claim, decided, "laptop", seeds=3)


def test_suggestions_name_their_evidence_and_exact_costs():
    base = find("w512-h8-L6").shape
    found = suggestions(base, ModelOptions(), "memory", [judged("N3", "holds"), judged("N4", "fails")])
    shared, *_, latent = found["suggestions"]
    assert (shared["shape"], shared["standing"]) == ("w512-h8-g2-L6", "supported")
    assert shared["kv_bytes_per_token_difference"] == -0.75
    assert shared["kv_bytes_per_token"] == cost_of(find("w512-h8-g2-L6").shape).kv_bytes_per_token
    assert (latent["standing"], latent["kv_bytes_per_token_difference"]) == ("contradicted", -0.75)
    assert [(line["id"], line["says"]) for line in latent["evidence"]] == [("N3", "against")]
    assert "w512-h8-g2-L6" in found["answer"]
    assert "N4" in found["answer"]


def test_suggestions_for_quality_keep_the_parameters_and_say_when_nothing_is_settled():
    base = find("w512-h8-L6").shape
    found = suggestions(base, ModelOptions(), "quality", [judged("N1", "open"), judged("L2", "open")])
    shapes = {"w512-h4-L6", "w512-h8-r128-v64-L6-m1536", "w512-h16-r64-L6-m1024"}
    assert {one["shape"] for one in found["suggestions"]} == shapes
    assert all(abs(one["parameters_difference"]) < 0.01 for one in found["suggestions"])
    assert {one["standing"] for one in found["suggestions"]} == {"untested"}
    assert "does not resolve" in found["answer"]
    torn = suggestions(base, ModelOptions(), "quality", [judged("N1", "holds"), judged("L2", "holds")])
    assert next(one for one in torn["suggestions"] if one["shape"] == "w512-h4-L6")["standing"] == "disputed"
    assert "No move" in suggestions(find("w7-h7-m7").shape, ModelOptions(), "quality", [])["answer"]
    with pytest.raises(SpecError, match="no goal 'beauty'"):
        suggestions(base, ModelOptions(), "beauty", [])


def test_the_law_says_what_a_move_changes_and_where_it_ends():
    points = [
        LossPoint(find(text).shape, steps, 1 + find(text).shape.layers[0].heads ** 0.1 * steps**-0.2)
        for text in ("w16-h2-L2", "w32-h4-L4", "w32-h2-L2", "w64-h8-L1", "w48-h4-L3-m96", "w64-h1-L6", "w48-h16-r4-L2")
        for steps in (100, 300)
    ]
    law, base = fit(points), find("w32-h4-L2").shape
    found = suggestions(base, ModelOptions(), "quality", [], law=law)["suggestions"]
    fewer = next(one for one in found if one["shape"] == "w32-h2-L2")["law"]
    wanted = law.change(base, find("w32-h2-L2").shape, 300)
    assert (fewer["loss_difference"], fewer["steps"]) == (wanted.value - 1, 300)
    assert fewer["low"] < fewer["loss_difference"] < min(0, fewer["high"])
    assert not fewer["extrapolated"]
    large = suggestions(find("gpt2").shape, find("gpt2").options, "quality", [], law=law)["suggestions"]
    assert all(one["law"]["extrapolated"] and "parameters" in one["law"]["outside"][0] for one in large)
    assert suggestions(base, ModelOptions(), "quality", [])["suggestions"][0]["law"] is None
