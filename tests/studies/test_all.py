"""The contract of a study, held by every file in studies/: its presets, its claims, its chart; and certified bounds."""

import json

import pytest

from headwise.ledger.certify import bound_of, check
from headwise.ledger.judge import judge_all, judge_claim
from headwise.ledger.study import Preset
from headwise.spec import SpecError
from headwise.store.rows import rows
from headwise.store.store import Store
from headwise.studies import load, load_all, names
from headwise.studies._recipes.constructions import constructed
from headwise.training.loop import train_run
from headwise.training.run import RunResult

UNREGISTERED = [name for name in names() if not load(name).registered]  # of others: tests/ledger/test_registration.py
CLAIMED = {claim.id for study in load_all() for claim in study.claims}


@pytest.fixture(scope="module", params=UNREGISTERED)
def study(request):
    return load(request.param)


def test_presets_are_grids_of_different_runs(study):
    assert {"smoke", "laptop"} <= set(study.presets)
    for preset in study.presets:
        cells = study.of(preset)
        assert len({(*cell.place.values(), cell.run.seed) for cell in cells}) == len(cells)
        json.dumps(study.presets[preset].model_dump())


def test_the_docstring_says_paper_claims_and_command(study):
    for claim in study.claims:
        assert claim.id in study.about
        assert claim.study == study.name
    assert f"headwise study run {study.name}" in study.about
    assert "Paper: " in study.about or "Source: " in study.about


def test_smoke_goes_to_a_chart_and_to_judgements_that_stay_open(study):
    cells = [cell for cell in study.of("smoke") if cell.run.seed == 0]
    results = {run.cell_key: train_run(run) for run in {cell.run.key: cell.run for cell in cells}.values()}
    assert {result.status for result in results.values()} <= {"done"}
    found = rows(cells, results)
    assert len(found) == len(cells)
    assert study.chart(found, "smoke").to_dict()
    for claim in study.claims:
        judgement = judge_claim(claim, "smoke", found)
        assert claim.computed or judgement.verdict == "open"
        assert json.dumps(judgement.as_dict())
    pairs = [(cell.run, results[cell.run.cell_key]) for cell in cells]
    assert not any(checked.violates for checked in check(pairs))


def test_every_claim_has_one_study():
    assert len(CLAIMED) == sum(len(study.claims) for study in load_all())
    wanted = {*(f"Q{number}" for number in range(1, 19)), *(f"N{number}" for number in range(1, 6))}
    wanted |= {f"L{number}" for number in range(1, 16)} | {"Q19", "Q20", "Q21"}
    assert wanted <= CLAIMED
    registered = {claim.id for study in load_all() for claim in study.all_claims} - CLAIMED
    assert registered == {"N6", "N7", "Q22", *(f"L{number}" for number in range(16, 24))}


def test_what_no_run_could_decide_is_open_and_says_what_would():
    with Store(":memory:") as store:
        listed = {one.claim.id: one for one in judge_all(load("rank-cliff"), store)}
    assert (listed["Q21"].verdict, listed["Q21"].remedy) == ("open", None)
    assert listed["Q7"].remedy is not None


def test_unknown_studies_and_presets_are_refused():
    with pytest.raises(SpecError, match="no study 'alchemy'; there are asymmetric"):
        load("alchemy")
    with pytest.raises(SpecError, match="no preset 'huge'"):
        load("rank-cliff").of("huge")


def test_a_preset_that_needs_data_says_which(monkeypatch):
    study = load("head-size")
    monkeypatch.setitem(study.presets, "own", Preset(data={"text": "your own letters"}))
    study.check_data("own", {"text": "letters.txt"})
    with pytest.raises(SpecError, match="needs your own letters; say where it is"):
        study.check_data("own", {})


# ---- certified bounds over runs ------------------------------------------------------------------------------------


def fitted(dim=8, heads=4, rank=2, **options):
    return constructed({"name": "fitted-heads", **options}, dim, heads, rank)


def test_the_hypotheses_are_read_off_a_run():
    """Values: of THEORY's section on bounds, d = 8, and by the theorems' own functions."""
    from headwise.theory.bounds import free_bound, scalar_bound

    assert bound_of(fitted()).value == pytest.approx(scalar_bound(8, 2, 4))
    assert bound_of(fitted(values="free")).value == pytest.approx(free_bound(8, 2, 4))
    free = fitted(values="free")
    assert bound_of(free.replace(options=free.options.replace(residual=True))).skip
    assert bound_of(free.replace(options=free.options.replace(bias="all"))).skip
    shared = free.replace(shape="w8-h4-r2-v8-g2-m0")
    assert bound_of(shared).heads == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": "w8-h4-r2-v8-L2-m0"},
        {"shape": "w8-h4-r2-v8-m8"},
        {"shape": "w8-h4-r8-m0"},
        {"task": fitted().task | {"layout": "uniform"}},
        {"task": fitted().task | {"points": 3}},
        {"task": fitted().task | {"bias": 0.5}},
        {"task": fitted().task | {"queries": "self", "layout": "uniform"}},
    ],
)
def test_runs_outside_the_hypotheses_are_not_judged(changes):
    assert bound_of(fitted(values="free").replace(**changes)) is None


def test_a_norm_is_outside_the_hypotheses():
    run = fitted(values="free")
    assert bound_of(run.replace(options=run.options.replace(norm="rms"))) is None


def test_an_error_below_the_bound_is_found():
    run = fitted()
    least = bound_of(run).value
    low, high = (RunResult(run.key, "done", {"error": e, "standard_error": 0.01}) for e in (least - 0.05, least - 0.03))
    assert check([(run, low)])[0].violates
    assert not check([(run, high)])[0].violates
    assert check([(run, RunResult(run.key, "failed"))]) == []


@pytest.mark.parametrize("metrics", [{}, {"error": float("nan")}, {"error": -float("inf")}])
def test_a_stored_run_without_an_error_is_not_checked(metrics):
    run = fitted()
    assert check([(run, RunResult(run.key, "done", metrics))]) == []
