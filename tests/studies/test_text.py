"""The studies of depth and heads on text: arms and their parameters, shared runs, claims that hold or fail."""

import math
import random

import pytest

from headwise.cost import parameters
from headwise.ledger.judge import judge_claim
from headwise.ledger.law import features
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.store.rows import Row
from headwise.studies import load
from headwise.studies.predict_the_trade import halved, points, price_of_one_pair
from helpers.judging import judge_testable


def world(name, tell, noise=0.002):
    """Rows of the laptop preset whose error is what `tell(place, run)` says, a little different for each."""
    chance = random.Random(0)
    found = []
    for cell in load(name).of("laptop"):
        size = parameters(cell.run.model_shape, cell.run.options)["total"]
        metrics = {"error": tell(cell.place, cell.run) * math.exp(chance.gauss(0, noise)), "parameters": float(size)}
        found.append(Row(cell.place, cell.run.seed, metrics, cell.run.key))
    return found


def judged(id_, rows):
    claim = next(
        claim for name in ("thinner-gpt", "predict-the-trade") for claim in load(name).claims if claim.id == id_
    )
    return judge_testable(claim, "laptop", rows)


# ---- thinner-gpt ---------------------------------------------------------------------------------------------------


def test_the_arms_are_the_papers_pair_its_control_and_equal_parameters():
    shapes = {}
    for cell in load("thinner-gpt").of("laptop"):
        shapes.setdefault(cell.place["kind"], {})[cell.run.shape] = cell.run.model_shape
    assert {kind: list(found) for kind, found in shapes.items()} == {
        "base": ["w32-h2-L6"],
        "thin": ["w32-h4-L4"],
        "control": ["w32-h2-L4"],
        "equal parameters": ["w32-h5-r16-L4", "w32-h14-r16-L2", "w32-h32-r16"],
    }
    sizes = {
        kind: {parameters(shape, ModelOptions())["body"] for shape in found.values()} for kind, found in shapes.items()
    }
    assert sizes["equal parameters"] == sizes["base"] == {6 * 12 * 32**2}
    assert sizes["thin"] == sizes["control"] == {4 * 12 * 32**2}


@pytest.mark.parametrize(("thin", "wanted"), [(2.5, "holds"), (2.504, "holds"), (2.6, "fails"), (2.525, "open")])
def test_keeping_is_judged_as_equivalence(thin, wanted):
    rows = world("thinner-gpt", lambda place, run: thin if place["kind"] == "thin" else 2.5)
    assert judged("L6", rows).verdict == wanted


def test_keeping_needs_parameters_saved():
    rows = world("thinner-gpt", lambda place, run: 2.5)
    rows = [Row(row.cell, row.seed, row.metrics | {"parameters": 1e5}, row.key) for row in rows]
    assert judged("L6", rows).verdict == "fails"


# ---- predict-the-trade ---------------------------------------------------------------------------------------------


def lawful(place, run):
    found = features(run.model_shape, run.steps)
    slopes = {"parameters": -0.05, "steps": -0.2, "depth": -0.1, "qk_rank": -0.15, "heads": -0.05}
    return 1 + 4 * math.exp(sum(slope * math.log(found[name]) for name, slope in slopes.items()))


def by_size(place, run):
    """Only size counts, and each shape has something of its own that no law knows."""
    found, own = features(run.model_shape, run.steps), random.Random(run.shape).gauss(0, 0.03)
    return 1 + 6 * math.exp(-0.1 * math.log(found["parameters"]) - 0.2 * math.log(run.steps) + own)


def lawless(place, run):
    return random.Random(f"{run.shape} {run.steps}").uniform(2, 4)


@pytest.mark.parametrize(("tell", "allowed"), [(lawful, {"holds"}), (by_size, {"open", "fails"}), (lawless, {"fails"})])
def test_a_trade_is_foreseen_where_there_is_a_law(tell, allowed):
    assert judged("L14", world("predict-the-trade", tell)).verdict in allowed


def test_halves_are_disjoint_balanced_and_differ_between_seeds():
    known = points(world("predict-the-trade", lawful))
    assert len(known) == 27
    splits = []
    for seed in range(4):
        (first, second), back = halved(known, seed)
        assert back == (second, first)
        assert sorted(map(str, first + second)) == sorted(map(str, known))
        assert abs(len(first) - len(second)) == 1
        assert abs(sum(p.steps == 150 for p in first) - sum(p.steps == 150 for p in second)) <= 2
        splits.append(frozenset(map(str, first)))
    assert len(set(splits)) == 4


def line(slope, start=0.0):
    """Log of base over thin changes by `slope` for each tenfold of parameters, from `start` at a million."""

    def tell(place, run):
        if place.get("kind") != "thin":
            return 2.5
        base = parameters(ModelShape(width=place["width"], qk_rank=16, depth=3), ModelOptions())["body"]
        return 2.5 * math.exp(-start - slope * math.log10(base / 1e6))

    return tell


@pytest.mark.parametrize(
    ("tell", "wanted"), [(line(0.03, 0.01), "holds"), (line(0.0, -0.1), "fails"), (line(-0.03), "fails")]
)
def test_a_ladder_is_carried_on_to_a_billion(tell, wanted):
    found = judged("L15", world("predict-the-trade", tell, noise=1e-4))
    assert found.verdict == wanted
    assert found.deciding.comparison.note


def test_the_line_is_read_where_it_should_be():
    """0.01 at a million and 0.03 more for each of three tenfolds."""
    found = judged("L15", world("predict-the-trade", line(0.03, 0.01), noise=0.0))
    assert found.deciding.estimate == pytest.approx(math.exp(0.01 + 0.03 * 3), rel=1e-9)


def test_a_rung_of_its_own_leaves_the_ladder_open():
    """A deviation of one rung would be read as a trend; the interval over rungs knows better."""
    rows = world(
        "predict-the-trade",
        lambda place, run: 2.5 * (1.03 if (place.get("width"), place.get("kind")) == (16, "thin") else 1),
    )
    assert judged("L15", rows).verdict == "open"


def test_the_real_pair_is_priced():
    """6 FLOPs a parameter and token, of bodies of 1.06 and 0.71 B, 20 tokens a parameter; attention adds some."""
    sizes = [12 * 1920**2 * depth for depth in (24, 16)]
    least = 6 * 20 * sizes[0] * sum(sizes)
    flops, hours = price_of_one_pair()
    assert least < flops < 1.15 * least
    assert hours == pytest.approx(165, abs=1)


def test_thinner_gpts_runs_are_found_again():
    for stage in ("of", "trials"):
        mine, theirs = (
            {cell.run.cell_key for cell in getattr(load(name), stage)("laptop")}
            for name in ("predict-the-trade", "thinner-gpt")
        )
        assert len(mine & theirs) == {"of": 24, "trials": 12}[stage]


@pytest.mark.parametrize("name", ["thinner-gpt", "predict-the-trade"])
def test_an_unfinished_preset_can_be_judged(name):
    rows = world(name, lambda place, run: lawful(place, run))
    for some in (rows[:1], rows[:9], rows[-20:], rows[::7], rows[:40]):
        for claim in load(name).claims:
            assert judge_claim(claim, "laptop", some, whole=False).verdict == "open"
            claim.decide(some)
