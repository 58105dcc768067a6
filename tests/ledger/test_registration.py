"""Registered studies: what the hash covers, where seeds come from, what counts as a judged run, what a verdict says."""

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy import stats

from headwise.ledger import contrasts
from headwise.ledger.registered import judge_rows
from headwise.ledger.registration import (
    PILOT,
    PILOT_SEEDS,
    Arm,
    Data,
    Gates,
    Look,
    Rate,
    RateGrid,
    RegisteredClaim,
    Registration,
    source_of,
)
from headwise.ledger.registration import Test as Contrast
from headwise.ledger.standing import (
    judge_registered,
    ledger_of,
    newest,
    pilot_gates,
    registered_rows,
    registered_stages,
    trial_rows,
)
from headwise.ledger.statistics import Estimate, contrast, holm, share_bounds
from headwise.ledger.study import Study
from headwise.options import preset
from headwise.report.ledger import to_resolve
from headwise.spec import SpecError
from headwise.store.rows import TRIAL_SEED, Cell, Row
from headwise.store.store import Store
from headwise.studies import load, load_all
from headwise.training.run import Execution, Recipe, RunResult

RECALL = {"name": "recall", "vocab": 128, "length": 32, "pairs": 4}


def arm(variant="base", **changes):
    settings = {"shape": "w16-h2-L1", "options": preset("nanochat", vocab=128), "recipe": Recipe(), "steps": 30}
    return Arm(**{"variant": variant, "task": RECALL, "seeds": 4, **settings, **changes})


def better(variant="thin", baseline="base", **changes):
    weights = {variant: 1.0, baseline: -1.0}
    given = {"name": "better", "variant": variant, "baseline": baseline, "metric": "error", "weights": weights}
    return Contrast(**{**given, "direction": "at most", **changes})


def claim(name="N9", **changes):
    return RegisteredClaim(
        **{"id": name, "claim": "thin is better", "source": "X", "family": "N", "tests": (better(),), **changes}
    )


def registered(**changes):
    settings = {"study": "invented", "claims": (claim(),), "arms": (arm(), arm("thin", shape="w16-h4-L1"))}
    return Registration(**{**settings, "grid": RateGrid(first=(0.01, 0.02, 0.04)), **changes})


def study_of(registration):
    return Study("invented", "", {"desktop": registration}, lambda given: given.cells(), lambda rows, name: None, ())


# ---- identity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"claims": (claim(tests=(better(threshold=0.01),)),)},
        {"claims": (claim(gates=Gates(passes=2.0)),)},
        {"arms": (arm(), arm("thin", shape="w16-h4-L1", steps=31))},
        {"arms": (arm(), arm("thin", shape="w16-h4-L1", recipe=Recipe(warm_up=0.2)))},
        {"grid": RateGrid(first=(0.01, 0.02))},
        {"looks": (Look(seeds=2, level=0.005), Look(seeds=4, level=0.048))},
        {"sources": (Data(task="recall", about="x", digest="abc", train=5),)},
        {"stopping": "when it looks good"},
    ],
)
def test_whatever_changes_is_a_new_registration_with_new_seeds(changes):
    old, new = registered(), registered(**changes)
    assert old.hash != new.hash
    assert not set(old.judged_seeds(4)) & set(new.judged_seeds(4))


def test_reasons_and_remarks_are_not_part_of_it():
    assert registered(claims=(claim(supersedes="because", restated="so"),)).hash == registered().hash


def test_the_source_of_the_statistics_is_part_of_it(monkeypatch):
    old = registered().hash

    def log_scale(strata):
        return {}

    monkeypatch.setitem(contrasts.STATISTICS, "log_scale", log_scale)
    assert registered().hash != old


def test_a_source_is_what_a_function_does_not_how_it_is_written():
    def one(x):
        """A sentence."""
        return x + 1  # a remark

    def other(x):
        return (x
                + 1)  # fmt: skip

    assert source_of(one).replace("one", "other") == source_of(other)


def test_seeds_are_far_from_pilots_trials_and_presets():
    seeds = registered().judged_seeds(50)
    assert len(set(seeds)) == 50
    assert seeds[:4] == registered().judged_seeds(4)
    assert min(seeds) > max(*PILOT_SEEDS, TRIAL_SEED + 1000)


def test_a_contrast_that_does_not_cancel_seeds_is_refused():
    with pytest.raises(SpecError, match="must sum to 0"):
        better(weights={"thin": 1.0, "base": -0.5})
    with pytest.raises(SpecError, match="no variant fat"):
        registered(claims=(claim(tests=(better("fat"),)),))


# ---- learning rates ------------------------------------------------------------------------------------------------


def trials(registration, error):
    known, asked = [], 0
    while len(cells := registration.trials(known)) > asked:
        asked = len(cells)
        known = [
            Row(at.place, at.run.seed, {"validation_error": error(at.run.recipe.learning_rate)}, "k") for at in cells
        ]
    return known


def parabola(best):
    return lambda rate: 1 + 0.1 * math.log(rate / best) ** 2


@pytest.mark.parametrize("best", [0.001, 0.0125, 0.3])
def test_a_grid_grows_until_the_best_is_inside(best):
    registration = registered()
    rates = registration.rates_of(trials(registration, parabola(best)))
    assert all(one.interior for one in rates.values())
    assert rates["base"].value == pytest.approx(best, rel=1e-3)


def test_a_grid_does_not_grow_for_ever():
    registration = registered()
    known = trials(registration, lambda rate: 1 / rate)
    assert len(known) == 2 * 2 * registration.grid.most
    assert not registration.rates_of(known)["base"].interior


def test_trials_are_short_and_have_seeds_of_their_own():
    registration = registered()
    assert {(at.run.steps, at.run.seed) for at in registration.trials([])} == {(10, 1000), (10, 1001)}
    assert registration.judged([]) == []


def test_larger_sizes_take_the_rate_of_a_law():
    arms = [arm(stratum=f"w{width}", shape=f"w{width}-h2-L1") for width in (8, 16, 32)]
    arms.append(arm(stratum="w64", shape="w64-h2-L1", rate="law"))
    other = [one.replace(variant="thin") for one in arms]
    weights = {"w64:thin": 1.0, "w64:base": -1.0}
    registration = registered(arms=(*arms, *other), claims=(claim(tests=(better(weights=weights),)),))
    known, asked = [], 0
    while len(cells := registration.trials(known)) > asked:
        asked, known = len(cells), []
        for at in cells:
            size = next(one.parameters for one in registration.arms if one.place.items() <= at.place.items())
            best = 0.02 * (size / 5000) ** -0.3
            known.append(Row(at.place, at.run.seed, {"validation_error": parabola(best)(at.place["trial"])}, "k"))
    rates = registration.rates_of(known)
    wanted = 0.02 * (registration.arms[3].parameters / 5000) ** -0.3
    assert rates["base, w64"].value == pytest.approx(wanted, rel=0.02)


# ---- from a store to verdicts --------------------------------------------------------------------------------------


def fill(store, runs, column, error=lambda run: 0.5, status="done"):
    for run in runs:
        value = error(run)
        metrics = {"error": value, "validation_error": value, "trivial_error": 1.0}
        curve = [(run.steps // 2, "error", 0.6), (run.steps, "error", value)]
        result = RunResult(
            run.key, status, metrics=metrics, curve=curve, parameters=10, tokens=100, registration=column
        )
        store.add(run, result)


def by_heads(run):
    best = parabola(0.02)(run.recipe.learning_rate)
    return 0.3 * best * (0.8 if run.model_shape.layers[0].heads == 4 else 1.0) * (1 + run.seed % 7 / 1000)


def go(study, store, pilot=0, only=""):
    registration = study.presets["desktop"]
    column = registration.column(PILOT if pilot else "")
    staged = []
    for runs in registered_stages(study, "desktop", store, Execution(), {}, pilot, only):
        fill(store, runs, column, by_heads)
        staged.append(runs)
    return staged


def test_a_study_goes_from_trials_to_a_verdict():
    study = study_of(registered())
    with Store(":memory:") as store:
        (open_,) = judge_registered(study, "desktop", store)
        planned = len(study.presets["desktop"].cells()) + len(study.presets["desktop"].trials([]))
        assert (open_.verdict, open_.missing, open_.remedy.runs) == ("open", "no judged runs yet", planned)
        assert "on two cores" in to_resolve(open_.remedy)
        *_, last = go(study, store)
        assert {run.seed for run in last} == set(study.presets["desktop"].judged_seeds(4))
        (found,) = judge_registered(study, "desktop", store)
    document = found.as_dict()
    assert (found.verdict, found.seeds, found.preset) == ("holds", 4, "desktop")
    assert document["registered"] is True
    assert (document["parameters"], document["tokens"], document["steps"]) == (10, 100, 30)
    assert document["comparisons"][0]["difference"]["estimate"] == pytest.approx(-0.2, abs=0.01)


def test_pilots_and_runs_that_were_done_for_something_else_do_not_count():
    study = study_of(registered())
    registration = study.presets["desktop"]
    with Store(":memory:") as store:
        *_, last = go(study, store, pilot=3)
        assert {run.seed for run in last} == {100, 101, 102}
        assert registered_rows(store, registration) == []
        assert len(registered_rows(store, registration, PILOT)) == 6
        assert {gate.name for _, _, gate in pilot_gates(study, "desktop", store)} == {"data"}
        known = trial_rows(store, registration)
        fill(store, [at.run for at in registration.judged(known)], "another", by_heads)
        assert registered_rows(store, registration) == []
        (found,) = judge_registered(study, "desktop", store)
        assert found.verdict == "open"


def test_a_pilot_may_be_of_some_variants_and_a_judged_study_may_not():
    study = study_of(registered())
    with Store(":memory:") as store:
        *_, last = go(study, store, pilot=2, only="thin")
        assert {run.model_shape.layers[0].heads for run in last} == {4}
        with pytest.raises(SpecError, match="judged as a whole"):
            next(registered_stages(study, "desktop", store, Execution(), {}, only="thin"))


def test_looks_stop_as_soon_as_they_decide():
    looks = (Look(seeds=4, level=0.005), Look(seeds=8, level=0.048))
    arms = (arm(seeds=8), arm("thin", shape="w16-h4-L1", seeds=8))
    study = study_of(registered(arms=arms, looks=looks))
    with Store(":memory:") as store:
        *_, last = go(study, store)
        assert len({run.seed for run in last}) == 4
        (found,) = judge_registered(study, "desktop", store)
        assert (found.verdict, found.seeds) == ("holds", 4)


def test_a_gate_that_fails_at_the_first_look_is_asked_again_at_the_last():
    looks = (Look(seeds=4, level=0.005), Look(seeds=8, level=0.048))
    arms = (arm(seeds=8), arm("thin", shape="w16-h4-L1", seeds=8), arm("control", shape="w16-h2-L1-m32", seeds=8))
    one = claim(gates=Gates(sensitive=("control", "base")))
    study = study_of(registered(arms=arms, claims=(one,), looks=looks))
    with Store(":memory:") as store:
        *_, first, last = go(study, store)
        assert [len({run.seed for run in runs}) for runs in (first, last)] == [4, 8]
        (found,) = judge_registered(study, "desktop", store)
    assert (found.verdict, found.seeds) == ("cannot tell", 8)


def test_a_run_that_diverged_cannot_tell():
    study = study_of(registered())
    registration = study.presets["desktop"]
    with Store(":memory:") as store:
        stages = registered_stages(study, "desktop", store, Execution(), {})
        fill(store, next(stages), registration.column(), by_heads)
        runs = next(stages)
        fill(store, runs[:1], registration.column(), by_heads, "diverged")
        fill(store, runs[1:], registration.column(), by_heads)
        (found,) = judge_registered(study, "desktop", store)
    assert (found.verdict, found.qualifier) == ("cannot tell", "a run of base diverged")


def test_only_the_registered_data_counts(tmp_path):
    stories = tmp_path / "stories.txt"
    stories.write_text("A story about a head of high rank.\n" * 100)
    data = Data(task="text", about="the right stories", digest="0" * 16, train=1000)
    arms = [
        arm(name, shape=shape, task={"name": "text", "context": 8}, options=preset("nanochat", vocab=256))
        for name, shape in (("base", "w16-h2-L1"), ("thin", "w16-h4-L1"))
    ]
    study = study_of(registered(arms=tuple(arms), sources=(data,)))
    with Store(":memory:") as store:
        with pytest.raises(SpecError, match="needs the right stories; say where it is"):
            next(registered_stages(study, "desktop", store, Execution(), {}))
        with pytest.raises(SpecError, match="is registered with 0000000000000000: the right stories"):
            next(registered_stages(study, "desktop", store, Execution(), {"text": str(stories)}))


def test_a_registered_verdict_stands_over_the_old_one():
    from headwise.ledger.claims import Claim
    from headwise.ledger.judge import Judgement

    study = study_of(registered(claims=(claim(supersedes="it was confounded"),)))
    old = Judgement(Claim("N9", "old words", "X", "old", lambda rows: []), "fails", "laptop", missing="")
    with Store(":memory:") as store:
        assert [one.verdict for one in newest([old, *ledger_of([study], store)])] == ["fails"]
        go(study, store)
        (found,) = newest([old, *judge_registered(study, "desktop", store)])
    assert (found.verdict, found.before.verdict, found.superseded) == ("holds", "fails", "it was confounded")
    assert found.as_dict()["before_registration"]["verdict"] == "fails"


# ---- rows ----------------------------------------------------------------------------------------------------------


def test_the_column_is_exported_merged_and_shown_and_old_files_lack_it(tmp_path):
    run = arm().run
    with Store(tmp_path / "a.db") as store:
        store.add(run, RunResult(run.key, "done", metrics={"error": 0.5}, registration="pilot abc"))
        store.export(tmp_path / "new.parquet")
    pl.read_parquet(tmp_path / "new.parquet").drop("registration").write_parquet(tmp_path / "old.parquet")
    for name, wanted in (("new", "pilot abc"), ("old", "")):
        with Store.from_files(tmp_path / f"{name}.parquet") as copy:
            assert copy.get(run.key)[1].registration == wanted
            assert copy.frame()["registration"].to_list() == [wanted]


# ---- statistics ----------------------------------------------------------------------------------------------------

SEEDS = (0.0, 0.3, -0.1, 0.2)
BLOCKS = {
    name: {seed: level + SEEDS[seed] + 0.1 * sign for seed, sign in enumerate(signs)}
    for name, level, signs in (("a", 1.0, (1, -1, 1, -1)), ("b", 1.1, (1, 1, -1, -1)), ("c", 0.9, (1, -1, -1, 1)))
}


def test_noise_is_pooled_as_in_randomised_blocks():
    """Against the textbook's two-way analysis of variance, written out with sums of squares."""
    found = contrast({"": BLOCKS}, {"": {"b": 1.0, "a": -1.0}})
    values = [[BLOCKS[name][seed] for seed in range(4)] for name in "abc"]
    grand = sum(map(sum, values)) / 12
    rows = sum(4 * (sum(row) / 4 - grand) ** 2 for row in values)
    columns = sum(3 * (sum(column) / 3 - grand) ** 2 for column in zip(*values, strict=True))
    total = sum((value - grand) ** 2 for row in values for value in row)
    noise = (total - rows - columns) / 6
    assert found.value == pytest.approx(0.1)
    assert (found.error, found.freedom) == (pytest.approx(math.sqrt(noise * 2 / 4)), 6)


def test_very_unequal_noise_is_not_pooled():
    """Then it is the paired t-test of the two, as scipy has it, with a degree of freedom less."""
    wild = BLOCKS | {"c": {0: 5.0, 1: -3.0, 2: 8.0, 3: 0.0}}
    found = contrast({"": wild}, {"": {"b": 1.0, "a": -1.0}})
    test = stats.ttest_rel(list(BLOCKS["b"].values()), list(BLOCKS["a"].values()))
    assert found.freedom == test.df - 1
    whole = Estimate(found.value, found.error, test.df)
    assert whole.chance_above(0.0) == pytest.approx(test.pvalue / 2)
    assert whole.bounds(0.95) == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_bounds_and_chances_agree():
    one = Estimate(0.02, 0.01, 7)
    low, _ = one.bounds(0.95)
    assert one.chance_above(low) == pytest.approx(0.025)
    assert one.chance_below(one.bounds(0.95)[1]) == pytest.approx(0.025)


@pytest.mark.parametrize(("solved", "count"), [(0, 16), (5, 16), (16, 16)])
def test_shares_have_exact_bounds(solved, count):
    wanted = stats.binomtest(solved, count).proportion_ci(0.95, method="exact")
    assert share_bounds(solved, count, 0.025) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_shares_of_seeds_that_solved_it_are_compared():
    rows = [
        Row({"condition": "", "stratum": "", "variant": name}, seed, {"error": error, "trivial_error": 0.8}, "k")
        for name, errors in (("base", [0.01] * 16), ("thin", [0.01] * 3 + [0.5] * 13))
        for seed, error in enumerate(errors)
    ]
    wanted = claim(tests=(better("base", "thin", scale="solved", direction="at least", threshold=0.2),))
    found = judge_rows(registered(), wanted, rows, {})
    assert found.verdict == "holds"
    assert found.deciding.estimate == pytest.approx(13 / 16)


def test_holm_steps_down():
    """The textbook's example: 0.01, 0.02, 0.03 and 0.04 at 0.05 keep only the first."""
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.02}) == {"a"}
    assert holm({"a": 0.01, "b": 0.015, "c": 0.02, "d": 0.05}) == {"a", "b", "c", "d"}


# ---- the studies ---------------------------------------------------------------------------------------------------

REGISTERED = [study for study in load_all() if study.registered]


@pytest.mark.parametrize("study", REGISTERED, ids=lambda study: study.name)
def test_registered_studies_say_what_they_decide(study):
    desktop = study.presets["desktop"]
    assert desktop.study == study.name
    assert set(study.presets) == {"smoke", "desktop"}
    for one in desktop.claims:
        assert one.id in study.about
        assert one.id.startswith(one.family)
        families = [arm.options for arm in desktop.arms if arm.options.family != "encoder"]  # whose own is torch's
        assert all(options.init not in ("unit", "torch", "orthogonal") for options in families)
    assert f"headwise study run {study.name} --preset desktop" in study.about
    assert "Paper: " in study.about or "Source: " in study.about
    assert {at.run.seed for at in study.of("desktop")} <= set(desktop.judged_seeds(64))


def test_equal_parameters_are_equal():
    for name, rest in (("value-rank", ", MLP as it was"), ("shared-cache", "nothing")):
        sizes = {}
        for one in load(name).presets["desktop"].arms:
            if rest not in one.variant:
                sizes.setdefault(one.stratum, []).append(one.parameters)
        assert all(max(some) <= 1.005 * min(some) for some in sizes.values())


def test_the_ladder_weighs_a_slope_and_a_prediction():
    """A law that is a line in log N gives its slope back, and nothing beyond the prediction."""
    desktop = load("ladder").presets["desktop"]
    sizes = {one.stratum: one.parameters for one in desktop.arms if one.variant == "base"}
    values = {name: 0.1 + 0.03 * math.log10(size) for name, size in sizes.items()}
    for wanted, test in ((0.03, desktop.claims[0].tests[0]), (0.0, desktop.claims[1].tests[0])):
        found = sum(
            weight * values[name.split(":")[0]] for name, weight in test.weights.items() if not name.endswith(":base")
        )
        assert found == pytest.approx(wanted, abs=1e-6)


def test_smoke_presets_train():
    from headwise.training.loop import train_run

    for study in REGISTERED:
        cells = {str(at.run.shape) + at.run.task["name"]: at for at in study.of("smoke")}
        one: Cell = next(iter(cells.values()))
        assert train_run(one.run).status == "done"


def test_rates_are_plain_data():
    assert Rate(value=0.01, interior=True) == Rate(value=0.01, interior=True)
    assert replace(Estimate(0.0, 1.0, 3), value=1.0).value == 1.0


def test_an_arm_may_take_the_rate_of_one_elsewhere_and_begin_with_its_training():
    tuned = arm(stratum="after", rate="like base", begin={"name": "pretrained", "run": {"task": RECALL, "steps": 30}})
    registration = registered(arms=(arm(), arm("thin", shape="w16-h4-L1"), tuned))
    rates = registration.rates_of(trials(registration, parabola(0.02)))
    assert rates["base, after"] == rates["base"]
    (run, *_) = [at.run for at in registration.judged(trials(registration, parabola(0.02))) if at.place["stratum"]]
    assert run.begin["run"]["steps"] == 30


# ---- a change point against a power law ----------------------------------------------------------------------------

DOSES = {f"rank {part}": part / 8 for part in range(1, 8)}


def curve(error, noise=0.002, seeds=5):
    random = np.random.default_rng(5)
    return [
        Row(
            {"condition": "", "stratum": "", "variant": name}, seed,
            {"error": error(dose) * math.exp(noise * random.standard_normal()), "trivial_error": 1.0}, "k",
        )
        for name, dose in DOSES.items()
        for seed in range(seeds)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (lambda x: 0.9 * (1 - x) ** 0.52, "fails"),
        (lambda x: 0.9 if x < 0.5 else 0.9 * math.exp(-4 * (x - 0.5)), "holds"),
    ],
)
def test_a_curve_that_only_falls_has_no_threshold(error, verdict):
    test = Contrast(
        name="threshold", variant="two lines", baseline="a power law", metric="log ratio", scale="change point",
        weights={}, doses=DOSES, direction="at most",
    )  # fmt: skip
    arms = tuple(arm(name, shape=f"w16-h2-r{2 + 2 * i}-L1") for i, name in enumerate(DOSES))
    one = claim(tests=(test,))
    assert judge_rows(registered(claims=(one,), arms=arms), one, curve(error), {}).verdict == verdict


def test_the_source_of_the_change_point_is_part_of_what_uses_it(monkeypatch):
    from headwise.ledger import change_point

    old, other = load("rank-and-dimension").presets["desktop"], load("thin-stories").presets["desktop"]
    hashes = [one.replace().hash for one in (old, other)]

    def power_law(x, y, at):
        return 0.0

    monkeypatch.setitem(change_point.CURVES, "power_law", power_law)
    again = [one.replace().hash for one in (old, other)]
    assert again[0] != hashes[0]
    assert again[1] == hashes[1]


def test_one_metric_over_another_can_be_compared():
    rows = [
        Row(
            {"condition": "", "stratum": "", "variant": name}, seed,
            {"error": 1.0, "trivial_error": 1.0, "a": 1 + 0.01 * seed, "b": b * (1 + 0.011 * seed)}, "k",
        )
        for name, b in (("base", 1.0), ("thin", 2.0))
        for seed in range(5)
    ]  # fmt: skip
    one = claim(tests=(better(field="a/b"),))
    found = judge_rows(registered(), one, rows, {})
    assert found.verdict == "holds"
    assert found.deciding.estimate == pytest.approx(2.0)
