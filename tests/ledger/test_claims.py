"""The ledger: verdicts follow from intervals, and an interval from paired seeds."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headwise import studies
from headwise.ledger.claims import Claim, Comparison, Variant, against, beats_no_skill, exactly, paired, proved
from headwise.ledger.judge import Judgement, Remedy, asked_for, judge_all, judge_claim, ledger_order, source_of
from headwise.ledger.statistics import LEAST_SEEDS, interval
from headwise.ledger.study import study_rows
from headwise.report.ledger import to_resolve
from headwise.spec import SpecError
from headwise.store.rows import Row
from headwise.store.store import Store
from headwise.training.run import RunResult


def claim_of(*comparisons):
    return Claim("X1", "a sentence", "X", "a-study", lambda rows: list(comparisons))


MORE = Remedy("a-study", "paper", 3, 0)
ROW = [Row({}, 0, {}, "k")]
CLOSE = (2.0, 2.01, 1.99, 2.02)


def ratio(ratios, above):
    return Comparison("test error", "variant", "baseline", ratios, above)


@pytest.mark.parametrize(
    ("comparisons", "preset", "verdict"),
    [
        ([ratio(CLOSE, 1.5)], "laptop", "holds"),
        ([ratio(CLOSE, 3.0)], "laptop", "fails"),
        ([ratio((1.0, 2.0, 4.0), 1.5)], "laptop", "open"),
        ([ratio(CLOSE[:2], 1.5)], "laptop", "open"),  # too few seeds
        ([ratio(CLOSE, 1.5)], "smoke", "open"),  # decides nothing
        ([ratio(CLOSE, 1.5), ratio(CLOSE, 3.0)], "laptop", "fails"),
        ([ratio(CLOSE, 1.5), ratio((1.0, 2.0, 4.0, 1.0), 1.5)], "laptop", "open"),
        ([], "laptop", "open"),
    ],
)
def test_verdicts(comparisons, preset, verdict):
    found = judge_claim(claim_of(*comparisons), preset, ROW, MORE)
    assert found.verdict == verdict
    assert (found.remedy == MORE) == (verdict == "open")
    json.dumps(found.as_dict(), allow_nan=False) if comparisons else None


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=8))
def test_the_interval_is_students(ratios):
    """Against scipy's own, on logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, low, high = interval(tuple(ratios), 0.95)
    if len(set(logs)) == 1:
        assert low == pytest.approx(high)
        return
    expected = stats.t.interval(0.95, len(logs) - 1, loc=sum(logs) / len(logs), scale=stats.sem(logs))
    assert (math.log(low), math.log(high)) == pytest.approx(expected)
    assert low <= mean <= high


def test_one_seed_or_a_zero_error_decides_nothing():
    assert interval((2.0,), 0.95)[1:] == (0.0, math.inf)
    assert interval((2.0, math.inf, 2.0), 0.95)[1:] == (0.0, math.inf)


def test_many_comparisons_widen_the_interval():
    alone = judge_claim(claim_of(ratio((2.0, 2.2, 1.9), 1.0)), "laptop", ROW, None)
    among = judge_claim(claim_of(*[ratio((2.0, 2.2, 1.9), 1.0)] * 5), "laptop", ROW, None)
    assert among.deciding.low < alone.deciding.low


def test_pairs_share_their_seed():
    top = [Row({}, seed, {"error": float(seed + 2)}, f"t{seed}") for seed in (0, 1, 2)]
    bottom = [Row({}, seed, {"error": 1.0, "trivial_error": 3.0}, f"b{seed}") for seed in (1, 2, 3)]
    found = paired(Variant("t", top), Variant("b", bottom), at_least=1.0)
    assert found.ratios == (3.0, 4.0)
    assert found.keys == ("t1", "b1", "t2", "b2")
    turned = paired(Variant("t", top), Variant("b", bottom), at_most=0.5)
    assert (turned.ratios, turned.threshold, turned.direction) == ((1 / 3, 1 / 4), 2.0, "lower")
    assert beats_no_skill(Variant("b", bottom), at_most=1.0).ratios == (3.0, 3.0, 3.0)


def test_a_requirement_is_one_or_the_other():
    for wrong in ({}, {"at_least": 1.0, "at_most": 1.0}):
        with pytest.raises(ValueError, match="either at least or at most"):
            against("", "", "", (1.0,), **wrong)


def test_a_judgement_carries_every_comparison():
    sampled, known = ratio(CLOSE, 1.5), exactly("parameters", "thin", "base", 0.7, at_most=0.75)
    found = judge_claim(claim_of(sampled, known, ratio((1.0, 2.0, 4.0), 1.5)), "laptop", ROW)
    assert [one.verdict for one in found.comparisons] == ["holds", "holds", "open"]
    document = found.as_dict()
    assert found.comparisons[document["deciding"]] is found.deciding
    one = document["comparisons"][1]
    assert (one["metric"], one["variant"], one["baseline"], one["exact"]) == ("parameters", "thin", "base", True)
    assert one["difference"] == {
        "estimate": pytest.approx(-0.3),
        "low": pytest.approx(-0.3),
        "high": pytest.approx(-0.3),
    }
    assert (one["margin"], one["threshold"]) == (pytest.approx(-0.25), pytest.approx(4 / 3))


def test_differences_are_of_the_variant_whatever_the_direction():
    for turn, required in ((1, {"at_least": 1.5}), (-1, {"at_most": 3.0})):
        (one,) = judge_claim(claim_of(against("", "", "", CLOSE, **required)), "laptop", ROW).as_dict()["comparisons"]
        assert one["estimate"] == pytest.approx(math.prod(CLOSE) ** (turn / 4))
        assert one["difference"]["low"] < one["difference"]["estimate"] < one["difference"]["high"]
        assert one["difference"]["estimate"] == pytest.approx(math.prod(CLOSE) ** 0.25 - 1)
    (one,) = judge_claim(claim_of(proved("a power", "d = 8", 2.0, at_least=1.0)), "laptop", ROW).comparisons
    assert one.as_dict()["difference"] is None


@pytest.mark.parametrize(("name", "source"), [("Q12", "Q"), ("AB12", "AB"), ("x1b", "X"), ("mine", "MINE"), ("7", "")])
def test_any_letters_are_a_source(name, source):
    assert source_of(replace(claim_of(), id=name)) == source


def test_the_ledger_has_an_order_for_any_letters():
    names = ["AB12", "mine", "L1", "Q13", "X1", "Q2", "AB2", "N3"]
    judgements = [Judgement(replace(claim_of(), id=name), "open", "laptop") for name in names]
    ordered = [judgement.claim.id for judgement in sorted(judgements, key=ledger_order)]
    assert ordered == ["Q2", "Q13", "N3", "L1", "AB2", "AB12", "mine", "X1"]
    claims = [judgement.claim for judgement in judgements]
    assert [claim.id for claim in asked_for("ab", claims)] == ["AB12", "AB2"]
    assert asked_for("", claims) == claims
    with pytest.raises(SpecError, match=r"no source 'Z'; there are AB, MINE, L \(heads and depth\), Q"):
        asked_for("Z", claims)


# ---- studies -------------------------------------------------------------------------------------------------------


@pytest.fixture
def study():
    return studies.load("rank-cliff")


def invent(study, preset, error):
    """A store in memory whose rows say what `error(cell)` says."""
    store = Store(":memory:")
    for cell in study.of(preset):
        noise = 1 + 0.01 * cell.run.seed
        metrics = {"error": error(cell.place) * noise, "trivial_error": 0.8}
        store.add(cell.run, RunResult(cell.run.key, "done", metrics=metrics, parameters=10))
    return store


def test_a_chart_draws_from_rows(study, tmp_path):
    from headwise.charts.grammar import save

    with invent(study, "smoke", lambda place: 0.5) as store:
        files = save(study.chart(study_rows(study, "smoke", store), "smoke"), tmp_path, "chart")
    starts = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF", ".html": b"<!DOCTYPE html>"}
    for file in files:
        assert file.read_bytes().startswith(starts[file.suffix])
    assert b'<script src="http' not in files[-1].read_bytes()


def test_a_chart_of_the_published_size_shows_the_published_values():
    study = studies.load("rank-cliff")
    with invent(study, "paper", lambda place: 0.5) as store:
        text = json.dumps(study.chart(study_rows(study, "paper", store), "paper").to_dict())
    assert "0.01531" in text


def cliff(place):
    """As the paper says: only full rank sees; depth helps the rest."""
    full = place["rank"] == 16
    return 0.02 if full else 0.6 / place["depth"]


@pytest.mark.parametrize(
    ("error", "verdicts"),
    [
        (cliff, {"Q7": "holds", "Q8": "holds", "Q9": "holds"}),
        (lambda place: 0.1, {"Q7": "fails", "Q8": "fails", "Q9": "open"}),
        (lambda place: 0.1 * place["rank"], {"Q7": "fails", "Q8": "fails", "Q9": "fails"}),
    ],
)
def test_rank_cliff_judges_invented_worlds(error, verdicts):
    study = studies.load("rank-cliff")
    with invent(study, "laptop", error) as store:
        found = {judgement.claim.id: judgement for judgement in judge_all(study, store)}
    assert found.pop("Q21").verdict == "open"  # which no run decides
    assert {name: judgement.verdict for name, judgement in found.items()} == verdicts
    assert all(judgement.runs for judgement in found.values())


def test_an_unfinished_study_decides_nothing_it_lacks_seeds_for(study):
    """Whatever is there so far, in whatever order it came."""
    cells = study.of("laptop")
    for count in range(1, len(cells), 5):
        for some in (cells[:count], cells[-count:]):
            with Store(":memory:") as store:
                for cell in some:
                    metrics = {"error": 0.1, "trivial_error": 0.8}
                    store.add(cell.run, RunResult(cell.run.key, "done", metrics=metrics))
                judged = judge_all(study, store)
            assert all(judgement.verdict == "open" for judgement in judged if judgement.seeds < LEAST_SEEDS)
            assert count > 1 or all(judgement.verdict == "open" for judgement in judged)


def test_an_empty_store_says_what_would_resolve_it():
    study = studies.load("rank-cliff")
    with Store(":memory:") as store:
        for judgement in judge_all(study, store):
            assert judgement.verdict == "open"
            if (remedy := judgement.remedy) is None:
                assert judgement.claim.id == "Q21"  # which no run decides
                continue
            assert (remedy.study, remedy.preset, remedy.runs, remedy.flops) == (
                "rank-cliff",
                "laptop",
                36,
                12_947_816_448_000,
            )
            assert remedy.command in to_resolve(remedy)
