"""The rank paper's studies: in invented worlds claims hold or fail as they should; runs are shared, curves fitted."""

import json
import math

import pytest

from headwise.ledger.claims import paired_effects
from headwise.ledger.judge import judge_claim
from headwise.ledger.published import published_values
from headwise.store.rows import Row
from headwise.studies import context_length, converged_heads, load, positions
from headwise.studies._recipes.neighbors import NEIGHBOR_SIZES, neighbor_run
from headwise.studies.transition import threshold
from helpers.judging import judge_testable

NAMES = (
    "context-length",
    "dimension",
    "positions",
    "transition",
    "temperature",
    "compensation",
    "converged-heads",
    "replay",
)


def world(study, tell):
    """Rows of the laptop preset whose metrics are what `tell(place)` says, a little different for each seed."""
    found = []
    for cell in study.of("laptop"):
        noise = 1 + 0.001 * cell.run.seed
        metrics = {name: value * noise for name, value in tell(cell.place).items()}
        found.append(Row(cell.place, cell.run.seed, {"trivial_error": 0.8, **metrics}, cell.run.key))
    return found


def verdict(name, tell):
    study = load(name)
    claim, *_ = study.claims
    return judge_testable(claim, "laptop", world(study, tell)).verdict


def steps(by_rank):
    return lambda place: {"error": by_rank[place["rank"]]}


def context(place):
    return {"error": 0.03 if place["rank"] == 16 else 0.03 * place["points"] ** 0.6}


def dimension(place):
    return {"error": 0.03 if place["part"] == "d" else 0.8 - 1 / place["dim"]}


def encoded(concatenated, added, zeros):
    errors = {"none": 0.5, "concatenated": concatenated, "added": added, "zeros": zeros}
    return lambda place: {"error": errors[place["encoding"]] / place["rank"]}


def cliff(place):
    """Log error falls slowly to a threshold that the place moves, and fast above it."""
    at = place["dim"] * (0.7 + 0.01 * math.log2(place["points"]) - 0.05 * place["depth"])
    beyond = place["rank"] - at
    return {"error": 0.4 * math.exp(-(0.9 if beyond > 0 else 0.1) * beyond)}


def slope(place):
    """The same error at the same rank in every model, and no threshold in it."""
    return {"error": 0.4 * math.exp(-0.2 * (place["rank"] - 12))}


def layers(half, full=(0.6, 0.65)):
    """How sharp the first and the last layer are, at half the rank and at full rank; entropy is the inverse."""

    def tell(place):
        first, last = full if place["rank"] == place["dim"] else half
        ends = {0: first, place["depth"] - 1: last}
        found = {"error": 0.6 / place["depth"]}
        for layer in range(place["depth"]):
            found |= {f"sharpness.layer{layer}": ends[layer], f"attention-entropy.layer{layer}": 1 / ends[layer]}
        return found

    return tell


def two_metrics(fresh_gap, authors_gap):
    def tell(place):
        gap = {"fresh": fresh_gap, "replayed": authors_gap}[place["stream"]]
        error = 0.05 if place["rank"] == 16 else 0.05 * gap
        return {"error": error, "least_mean_loss": 0.9 * error}

    return tell


@pytest.mark.parametrize(
    ("name", "tell", "wanted"),
    [
        ("context-length", context, "holds"),
        ("context-length", steps({16: 0.03, 8: 0.5}), "fails"),  # fails with few points as with many
        ("context-length", lambda place: {"error": 0.1}, "fails"),
        ("dimension", dimension, "holds"),
        ("dimension", lambda place: {"error": 0.1 if place["part"] == "d" else 1 / place["dim"] + 0.2}, "fails"),
        ("positions", encoded(0.3, 0.51, 0.5), "holds"),
        ("positions", encoded(0.3, 0.51, 0.3), "holds"),  # that it was only the width is Q19's to say
        ("positions", encoded(0.3, 0.3, 0.5), "fails"),  # added ones help too
        ("transition", cliff, "holds"),
        ("transition", slope, "fails"),
        ("temperature", steps({16: 0.03, 8: 0.6, 4: 0.7, 1: 0.7}), "holds"),
        (
            "temperature",
            lambda place: {"error": 0.6 if place["rank"] < 16 and place["logits"] == "divided by √rank" else 0.05},
            "fails",
        ),
        ("compensation", layers((0.5, 0.7)), "holds"),
        ("compensation", layers((0.7, 0.7)), "fails"),
        ("compensation", layers((0.5, 0.7), full=(0.3, 0.7)), "fails"),  # full rank does so more
        ("converged-heads", lambda place: {"qk-identity-angle.layer0": 172.0}, "holds"),
        ("converged-heads", lambda place: {"qk-identity-angle.layer0": 120.0}, "fails"),
        ("replay", two_metrics(8.0, 9.0), "holds"),
        ("replay", two_metrics(8.0, 20.0), "fails"),
        ("replay", two_metrics(8.0, 1.2), "fails"),
    ],
)
def test_invented_worlds(name, tell, wanted):
    assert verdict(name, tell) == wanted


@pytest.mark.parametrize(("tell", "wanted"), [(encoded(0.3, 0.51, 0.5), "holds"), (encoded(0.3, 0.51, 0.3), "fails")])
def test_zeros_are_a_claim_of_their_own(tell, wanted):
    study = load("positions")
    assert judge_claim(study.claims[1], "laptop", world(study, tell)).verdict == wanted


@pytest.mark.parametrize("name", NAMES)
def test_an_unfinished_preset_can_be_judged(name):
    study = load(name)
    metrics = {f"{probe}.layer{i}": 1.0 for probe in ("sharpness", "attention-entropy", "qk-rank") for i in (0, 1)}
    metrics |= {"error": 0.1, "least_mean_loss": 0.1, "qk-identity-angle.layer0": 170.0}
    rows = world(study, lambda place: metrics)
    claim, *_ = study.claims
    for some in (*(rows[:count] for count in range(1, len(rows), 4)), *(rows[-count:] for count in range(1, 9))):
        seeds = len({row.seed for row in some})
        assert all(len(comparison.ratios) <= seeds for comparison in claim.decide(some))
        assert seeds > 2 or judge_claim(claim, "laptop", some).verdict == "open"


def test_a_power_is_stated():
    for name in NAMES:
        assert "Power: " in load(name).about


# ---- shared runs ---------------------------------------------------------------------------------------------------


def keys(name, preset="laptop"):
    return {cell.run.key for cell in load(name).of(preset)}


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("temperature", 12),
        ("replay", 18),
        ("transition", 15),
        ("positions", 9),
        ("dimension", 9),
        ("context-length", 6),
    ],
)
def test_rank_cliffs_runs_are_found_again(name, shared):
    assert len(keys(name) & keys("rank-cliff")) == shared


def test_probed_runs_are_shared():
    assert len(keys("compensation") & keys("converged-heads")) == 3


def test_values_fill_the_width_at_any_rank():
    for rank in range(1, 17):
        layer = neighbor_run(NEIGHBOR_SIZES["laptop"], 1, 1, rank, 0).model_shape.layers[0]
        assert 16 <= layer.heads * layer.v_rank < 16 + rank
    assert neighbor_run(NEIGHBOR_SIZES["laptop"], 1, 2, 8, 0, task={"positions": "concatenated"}).shape.startswith(
        "w32-h8-r8"
    )


# ---- numbers -------------------------------------------------------------------------------------------------------


def test_a_threshold_is_where_an_exponential_crosses():
    curve = [(rank, math.exp(-0.3 * rank)) for rank in (16, 14, 11, 8)]
    assert threshold(curve, math.exp(-0.3 * 12.4)) == pytest.approx(12.4)
    assert math.isnan(threshold(curve, 1e-9))
    assert math.isnan(threshold(curve, 1.0))


def test_effects_are_paired_by_seed():
    def arm(*errors):
        return [Row({}, seed, {"error": error}, f"{seed}-{error}") for seed, error in enumerate(errors)]

    variant, baseline = ("", arm(8.0, 6.0), arm(2.0, 1.0)), ("", arm(2.0, 9.0, 5.0), arm(1.0, 3.0))
    found = paired_effects("", variant, baseline, at_least=1.0)
    assert found.ratios == pytest.approx((2.0, 2.0))
    assert len(found.keys) == 8


def test_the_published_points_without_encodings_are_those_of_the_first_figure():
    """Two figures of the paper, read apart, show the same runs."""
    first = {(p["depth"], p["rank"]): p["error"] for p in published_values("rank_cliff") if p["multiplier"] == 8}
    third = [p for p in published_values("positions") if not p["added"] and not p["concatenated"]]
    assert len(third) == 14
    for point in third:
        assert point["error"] == pytest.approx(first[point["depth"], point["rank"]], rel=0.002)


def test_errors_are_set_beside_the_figures_points_of_their_size():
    study = load("rank-cliff")
    rows = [Row(cell.place, cell.run.seed, {"error": 0.7}, cell.run.key) for cell in study.of("published-size")]
    found = {row["rank"]: row for row in study.against_published(rows)}
    assert sorted(found) == [1, 8, 16, 32, 64]
    assert found[32]["ratio"] == pytest.approx(0.7 / 0.6935)
    assert (found[64]["published"], found[64]["seeds"]) == (0.01531, 2)
    assert study.against_published(world(study, lambda place: {"error": 0.7})) == []


def test_published_ratios_are_those_of_the_tables():
    by_points = {(p["points"], p["rank"]): p["error"] for p in published_values("context_length")}
    for points, ratio in context_length.PUBLISHED.items():
        assert ratio == pytest.approx(by_points[points, 32] / by_points[points, 64])
    angles = {p["multiplier"]: p["angle"] for p in published_values("converged_heads")}
    assert angles == converged_heads.PUBLISHED
    table = {
        (p["depth"], p["added"] + 2 * (p["concatenated"] > 0)): p["error"]
        for p in published_values("positions")
        if p["rank"] == 32
    }
    for depth, (helps, harms) in positions.PUBLISHED.items():
        assert helps == pytest.approx(table[depth, 0] / table[depth, 2])
        assert harms == pytest.approx(table[depth, 1] / table[depth, 0])


@pytest.mark.parametrize(
    ("name", "value"), [("context-length", "0.434"), ("positions", "0.03566"), ("replay", "0.01531")]
)
def test_charts_of_the_published_size_show_the_published_values(name, value):
    study = load(name)
    metrics = {"error": 0.1, "least_mean_loss": 0.1, "trivial_error": 0.9}
    rows = [Row(cell.place, cell.run.seed, metrics, cell.run.key) for cell in study.of("paper")]
    assert value in json.dumps(study.chart(rows, "paper").to_dict())


def test_mixers_have_equal_parameters():
    arms = load("mixers-and-rank").registration("desktop").arms
    sizes = [arm.parameters for arm in arms]
    assert max(sizes) / min(sizes) - 1 < 0.01  # each within half a per cent of plain attention at full rank
