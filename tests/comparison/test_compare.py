"""Comparisons: plans that fit a budget, rates tuned by halving, and answers that statistics books agree with."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

from headwise.comparison import verdict
from headwise.comparison.judge import crossing, probabilities_best, rank_variants, seeds_needed
from headwise.comparison.pace import BudgetError, draw_up, makespan, measure_step, plan_seconds
from headwise.comparison.plan import ComparisonPlan, follow
from headwise.comparison.question import MOST_VARIANTS, ask, chosen_variants, read_budget
from headwise.comparison.trainers import carry_out, outcome_of
from headwise.cost import cost_of
from headwise.known import find
from headwise.spec import SpecError
from headwise.store.rows import TRIAL_SEED, Row
from headwise.store.store import Store
from headwise.sweep.plan import Summary, Watch
from headwise.training.run import RunResult
from helpers.comparisons import BASE, OTHER, THIRD, question


def rows_of(errors, **metrics):
    """Rows from errors by arm; None is a run that is missing, infinity one that diverged."""
    return [
        Row({"arm": arm}, seed, {"error": error, **metrics}, f"{arm}-{seed}")
        for arm, values in errors.items()
        for seed, error in enumerate(values)
        if error is not None
    ]


def arm(found, name):
    return next(one for one in found.arms if one.arm == name)


# ---- judging -------------------------------------------------------------------------------------------------------


def test_two_arms_are_a_paired_t_test():
    one, two = [1.00, 1.12, 0.95, 1.30], [0.96, 1.11, 0.90, 1.22]
    found = rank_variants(rows_of({BASE: one, OTHER: two}), BASE)
    book = stats.ttest_rel(two, one)
    low, high = book.confidence_interval(0.95)
    assert (arm(found, OTHER).delta_low, arm(found, OTHER).delta_high) == pytest.approx((low, high))
    assert arm(found, OTHER).delta == pytest.approx(np.mean(two) - np.mean(one))
    assert found.winner == OTHER
    assert found.probability_best == pytest.approx(1 - book.pvalue / 2, abs=0.002)
    mean = stats.t.interval(0.95, 3, np.mean(one), stats.sem(one))
    assert (arm(found, BASE).low, arm(found, BASE).high) == pytest.approx(mean)


def test_several_arms_are_a_randomised_block_design():
    """Against least squares with a dummy for each arm and seed."""
    random = np.random.default_rng(3)
    errors = {str(a): list(1 + 0.1 * a + random.normal(size=5)) for a in range(4)}
    table = np.array(list(errors.values()))
    design = [np.eye(4)[a].tolist() + np.eye(5)[s, 1:].tolist() for a in range(4) for s in range(5)]
    fit, (residual,), *_ = np.linalg.lstsq(np.array(design), table.ravel(), rcond=None)
    half = stats.t.ppf(1 - 0.025 / 3, 12) * math.sqrt(2 * residual / 12 / 5)
    found = arm(rank_variants(rows_of(errors), "0"), "3")
    assert found.delta == pytest.approx(fit[3] - fit[0])
    assert (found.delta_low, found.delta_high) == pytest.approx((found.delta - half, found.delta + half))


def test_probabilities_of_several_arms_against_an_integral():
    """Given the noise, arms are independent: P(best) is an integral over one arm's mean and over the noise's scale."""
    errors = {"a": [1.0, 1.2, 0.9], "b": [1.1, 1.2, 1.05], "c": [1.3, 1.31, 1.1]}
    table = np.array(list(errors.values()))
    residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    unit = math.sqrt((residuals**2).sum() / 4 / 3)
    scales = unit * np.sqrt(4 / stats.chi2.ppf((np.arange(400) + 0.5) / 400, 4))
    mean, z = table.mean(1), np.linspace(-8, 8, 2001)
    wanted = []
    for one in range(3):
        at = mean[one] + z * scales[:, None]
        others = [stats.norm.sf((at - mean[other]) / scales[:, None]) for other in range(3) if other != one]
        wanted.append(float(((others[0] * others[1] * stats.norm.pdf(z)).sum(1) * (z[1] - z[0])).mean()))
    assert sum(wanted) == pytest.approx(1, abs=1e-3)
    assert list(probabilities_best(errors).values()) == pytest.approx(wanted, abs=0.005)


def test_equal_arms_are_rarely_called_decided(monkeypatch):
    monkeypatch.setattr("headwise.comparison.judge.DRAWS", 2000)
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        seeds = random.normal(size=4)
        wrong += rank_variants(
            rows_of({str(a): list(seeds + 0.1 * random.normal(size=4)) for a in range(3)}), "0"
        ).decided
    assert wrong <= 0.08 * 200  # 5 % and chance


def test_a_clear_winner_a_tie_and_what_would_decide():
    noise = [0.00, 0.01, -0.01, 0.005]
    clear = rank_variants(rows_of({BASE: [1 + n for n in noise], OTHER: [0.5 - n for n in noise]}), BASE)
    assert (clear.winner, clear.decided, clear.needed) == (OTHER, True, None)
    assert "is best" in verdict.verdict(clear)
    equal = rank_variants(rows_of({BASE: [1.00, 1.02, 1.00, 1.02], OTHER: [1.02, 1.00, 1.02, 1.00]}), BASE)
    assert not equal.decided
    assert equal.needed is None
    assert "Not decided" in verdict.verdict(equal)
    assert "equal" in verdict.csv_settle(equal)
    both = rank_variants(
        rows_of({BASE: [2 + n for n in noise], OTHER: [1.00, 1.02, 1.0, 1.02], "c": [1.02, 1.0, 1.02, 1.0]}), BASE
    )
    assert verdict.verdict(both).startswith("Better than the base, but which is best is not decided")
    errors = {BASE: [1.00, 1.10, 0.95, 1.02], OTHER: [0.97, 1.09, 0.99, 0.94]}
    close = rank_variants(rows_of(errors), BASE)
    assert not close.decided
    gaps = np.subtract(errors[BASE], errors[OTHER])

    def chance(seeds):
        return stats.t.cdf(gaps.mean() / (gaps.std(ddof=1) / math.sqrt(seeds)), seeds - 1)

    assert close.needed == seeds_needed(errors) == next(n for n in itertools.count(5) if chance(n) >= 0.975)


def test_no_noise_is_no_doubt_and_one_seed_is_no_answer():
    sure = rank_variants(rows_of({BASE: [2.0, 3.0], OTHER: [1.0, 2.0]}), BASE)
    assert (sure.winner, sure.probability_best, sure.decided) == (OTHER, 1.0, True)
    shared = probabilities_best({BASE: [1.0, 2.0], OTHER: [1.0, 2.0]})
    assert list(shared.values()) == [0.5, 0.5]
    single = rank_variants(rows_of({BASE: [2.0], OTHER: [1.0]}), BASE)
    assert single.winner is None
    assert "too few" in verdict.verdict(single)
    assert not rank_variants(rows_of({BASE: [1.0, 1.1, 1.2]}), BASE).decided


def test_diverged_and_missing_runs():
    inf = math.inf
    errors = {BASE: [1.0, 1.1, 1.2, 1.1], OTHER: [0.1, 0.1, inf, 0.1], THIRD: [0.8, 0.9, None, 0.95], "few": [0.1]}
    found = rank_variants(rows_of(errors), BASE)
    assert found.seeds == (0, 1, 3)  # what all judged arms have
    assert arm(found, OTHER).note == "diverged with seed 2"
    assert arm(found, "few").note == "only 1 of 4 seeds finished"
    assert (arm(found, OTHER).probability_best, arm(found, "few").probability_best) == (0.0, 0.0)
    assert found.winner == THIRD
    without_base = rank_variants(rows_of({BASE: [inf] * 3, OTHER: [0.5, 0.6, 0.5], THIRD: [0.7, 0.9, 0.7]}), BASE)
    assert without_base.winner == OTHER
    assert math.isnan(arm(without_base, OTHER).delta)
    assert rank_variants([], BASE).winner is None


def test_steps_until_the_base_is_reached():
    curve = [(10, 4.0), (20, 2.0), (30, 1.0), (40, 1.5)]
    assert crossing(curve, 3.0) == 15
    assert crossing(curve, 1.0) == 30
    assert crossing(curve, 5.0) == 10
    assert math.isnan(crossing(curve, 0.5))
    assert math.isnan(crossing([], 1.0))
    rows = [
        Row({"arm": arm}, seed, {"error": 1.0 + seed, "step_seconds": cost}, f"{arm}-{seed}")
        for arm, cost in ((BASE, 2.0), (OTHER, 3.0))
        for seed in (0, 1)
    ]
    curves = {f"{BASE}-{s}": [(10, 3.0 + s), (20, 2.0 + s)] for s in (0, 1)}
    curves |= {f"{OTHER}-{s}": [(10, 2.0 + s), (20, 1.0 + s)] for s in (0, 1)}
    found = rank_variants(rows, BASE, curves)
    assert (arm(found, BASE).steps_to_base, arm(found, BASE).seconds_to_base, arm(found, BASE).speed_up) == (20, 40, 1)
    assert (arm(found, OTHER).steps_to_base, arm(found, OTHER).seconds_to_base) == (10, 30)
    assert arm(found, OTHER).speed_up == pytest.approx(40 / 30)


# ---- plans ---------------------------------------------------------------------------------------------------------


def planned(seconds=0.01, workers=2, **changes):
    return draw_up(question(**changes), workers, lambda runs: [seconds * (1 + n) for n in range(len(runs))])


def test_arms_are_proposed_around_the_base_at_equal_cost():
    arms = chosen_variants(question(base="w64-h4-L2"))
    assert arms == ["w64-h4-L2", "w64-h1-L2", "w64-h2-L2", "w64-h8-L2", "w64-h16-L2"]
    base = cost_of(find("w64-h4-L2").shape).parameters["body"]
    many = chosen_variants(question(base="w64-h4-L2", vary=("heads", "qk_rank", "depth")))
    assert len(many) == MOST_VARIANTS
    assert many[0] == "w64-h4-L2"
    for text in many:
        assert cost_of(find(text).shape).parameters["body"] == pytest.approx(base, rel=0.01)
    cached = cost_of(find(BASE).shape).kv_bytes_per_token
    assert {cost_of(find(s).shape).kv_bytes_per_token for s in chosen_variants(question(hold="kv"))} == {cached}


def test_given_arms_are_taken_and_their_distance_is_said():
    assert chosen_variants(question(arms=(OTHER, BASE, OTHER))) == [BASE, OTHER]
    plan = planned(arms=(OTHER, "w16-h4-L3"))
    assert verdict.difference(plan, "w16-h4-L3") == pytest.approx(0.5)
    assert any("w16-h4-L3" in line for line in verdict._unequal_costs(plan))
    for changes, said in (({"hold": "mood"}, "cannot hold"), ({"arms": (BASE,)}, "nothing to compare")):
        with pytest.raises(SpecError, match=said):
            chosen_variants(question(**changes))


def test_a_plan_fits_its_budget_and_no_longer_one_would():
    plan = planned()
    assert plan_seconds(plan, 2) <= 600
    longer = plan.replace(arms=tuple(arm.replace(steps=arm.steps * 11 // 10) for arm in plan.arms))
    assert plan_seconds(longer, 2) > 600
    assert plan.seeds == 4
    assert ComparisonPlan(**json.loads(json.dumps(plan.model_dump()))) == plan


def test_a_large_budget_buys_steps_and_then_seeds():
    rich = planned(budget=1e6)
    assert (rich.arms[0].steps, rich.seeds) == (4000, 12)
    fixed = planned(steps=100, budget=300.0)
    assert fixed.arms[0].steps == 100
    assert fixed.seeds > 4
    assert plan_seconds(fixed, 2) <= 300 < plan_seconds(fixed.replace(seeds=fixed.seeds + 1), 2) or fixed.seeds == 12
    assert planned(steps=7, seeds=9, budget=0.0).seeds == 9


def test_a_small_budget_says_the_least_that_would_do():
    with pytest.raises(BudgetError, match=r"too small: 200 steps and 3 seeds") as error:
        planned(budget=20.0)
    least = error.value.least
    assert (least.arms[0].steps, least.seeds) == (200, 3)
    assert planned(budget=60 * math.ceil(plan_seconds(least, 2) / 60)).arms[0].steps >= 200


def test_time_is_held_by_steps():
    plan = planned(hold="time", arms=(OTHER, THIRD))
    steps = [arm.steps for arm in plan.arms]
    assert [arm.step_seconds for arm in plan.arms] == pytest.approx([0.01, 0.02, 0.03])
    assert steps[1:] == [round(steps[0] / 2), round(steps[0] / 3)]
    assert "time" in verdict.held_equal(plan)[0]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2h", 7200), ("5", 300)])
def test_budgets_are_read(text, seconds):
    assert read_budget(text) == seconds
    for wrong in ("soon", "", "-3m", "3d"):
        with pytest.raises(SpecError, match="budget"):
            read_budget(wrong)


def test_the_time_of_several_workers():
    assert makespan([3, 3, 2, 2, 2], 2) == 7  # longest first gives 7; the best possible is 6
    assert makespan([1.0] * 5, 2) == 3
    assert makespan([1.0, 2.0, 4.0], 1) == 7
    assert makespan([], 3) == 0


def test_a_step_is_measured_on_the_task_itself():
    asked = ask("nearest-neighbor,dim=8,points=4", "w8-h2-m16", steps=20, seeds=3)
    plan = draw_up(asked, 1, lambda runs: [measure_step(runs[0])] * len(runs))
    assert plan.arms[0].step_seconds > 0
    with pytest.raises(SpecError, match="w9-h3 cannot be trained on nearest-neighbor"):
        measure_step(plan.final(plan.arms[0].replace(shape="w9-h3"), 0.01, 0))


# ---- the course of a comparison ------------------------------------------------------------------------------------

RATES = (0.001, 0.002, 0.004, 0.008)
SHAPES = ("w16-h1-L2", "w16-h2-L2", "w16-h8-L2", "w16-h16-L2")
QUALITY = {BASE: 0.9, SHAPES[0]: 0.5, SHAPES[1]: 0.6, SHAPES[2]: 0.8, SHAPES[3]: 0.7}
BEST_RATE = {BASE: 0.004, SHAPES[0]: 0.001, SHAPES[1]: 0.008, SHAPES[2]: 0.002, SHAPES[3]: 0.002}


class Invented:
    """A trainer whose results are known: each arm has a quality and a best rate, and test errors say the opposite of
    validation about rates."""

    workers = 1

    def __init__(self, store, diverging=(), failing=()):
        self.store, self.diverging, self.failing, self.done = store, set(diverging), set(failing), []

    def fit(self, runs):
        return runs

    def do(self, runs, watch):
        new = [run for run in runs if run.key not in self.store.finished([run.key])]
        for run in new:
            self.done.append(run)
            self.store.add(run, self.result(run))
        return Summary(trained=len(new))

    def result(self, run):
        rate = run.recipe.learning_rate
        if run.shape in self.failing:
            return RunResult(run.key, "failed", message="Traceback\nOSError: no such thing")
        if (run.shape, rate) in self.diverging or (run.shape, run.seed) in self.diverging:
            return RunResult(run.key, "diverged", metrics={"trivial_error": 1.0})
        miss = abs(math.log2(rate / BEST_RATE[run.shape]))
        error = QUALITY[run.shape] + 0.001 * (run.seed % 3)
        metrics = {"error": error - 0.01 * miss, "validation_error": error + 0.1 * miss}
        curve = [(run.steps, "error", metrics["validation_error"])]
        return RunResult(run.key, "done", metrics, curve=curve, steps=run.steps, seconds=2.0, tokens=640 * run.steps)


@pytest.fixture
def plan():
    return planned(arms=SHAPES, rates=RATES, steps=800, seeds=4)


def test_rates_are_halved_arms_dropped_and_the_base_kept(plan):
    with Store(":memory:") as store:
        trainer = Invented(store)
        carry_out(plan, store, trainer)
        found = outcome_of(plan, store, trainer)
    lengths = {(run.steps, run.seed == TRIAL_SEED) for run in trainer.done}
    assert lengths == {(100, True), (200, True), (400, True), (800, False)}
    trials = [run for run in trainer.done if run.seed == TRIAL_SEED]
    assert [sum(run.steps == steps for run in trials) for steps in (100, 200, 400)] == [5 * 4, 3 * 2, 3 * 1]
    assert found.course.rates == {name: BEST_RATE[name] for name in (BASE, SHAPES[0], SHAPES[1])}
    assert set(found.course.dropped) == {SHAPES[2], SHAPES[3]}
    assert {run.seed for run in trainer.done if run.steps == 800} == {0, 1, 2, 3}
    assert (found.ranking.winner, found.ranking.decided) == (SHAPES[0], True)
    listed = verdict.variant_rows(found)
    assert [row["shape"] for row in listed] == [BASE, SHAPES[0], SHAPES[1], SHAPES[2], SHAPES[3]]
    assert listed[1]["delta"] == pytest.approx(-0.4)
    assert listed[3]["note"].startswith("dropped: validation error")
    assert all(row.keys() == listed[0].keys() for row in listed)
    said = verdict.confounds(found)
    assert any("edge of the grid" in line and SHAPES[0] in line and BASE not in line for line in said)


def test_a_finished_comparison_is_found_again_and_an_interrupted_one_goes_on(plan):
    with Store(":memory:") as store:
        carry_out(plan, store, Invented(store))
        again = Invented(store)
        assert carry_out(plan, store, again).trained == 0
        more = Invented(store)
        carry_out(plan.replace(seeds=6), store, more)
        assert {(run.steps, run.seed) for run in more.done} == {(800, 4), (800, 5)}
    with Store(":memory:") as store:
        trainer = Invented(store)
        first = follow(plan, lambda runs: [None] * len(runs))
        trainer.do(first.runs[:7], Watch())
        carry_out(plan, store, trainer)
        assert len({run.key for run in trainer.done}) == len(trainer.done)


def test_runs_that_diverge_or_fail(plan):
    base_rates = {(BASE, rate) for rate in RATES}
    with Store(":memory:") as store:
        wild = Invented(store, {(SHAPES[0], 0.001), (SHAPES[1], 2)}, failing={SHAPES[3]})
        carry_out(plan, store, wild)
        found = outcome_of(plan, store, wild)
        assert found.course.rates[SHAPES[0]] == 0.002
        assert found.course.dropped[SHAPES[3]] == "every learning rate diverged or failed"
        assert arm(found.ranking, SHAPES[1]).note == "diverged with seed 2"
        assert found.ranking.winner == SHAPES[0]
        again = Invented(store)
        carry_out(plan, store, again)
        assert {run.shape for run in again.done} == {SHAPES[3]}  # what had failed is tried again
    with Store(":memory:") as store, pytest.raises(SpecError, match="diverged or failed at every learning rate"):
        carry_out(plan, store, Invented(store, base_rates))
    with Store(":memory:") as store, pytest.raises(SpecError, match="OSError: no such thing"):
        carry_out(plan, store, Invented(store, failing={BASE}))


def test_one_rate_is_no_tuning_and_said_so():
    plan = planned(arms=SHAPES[:1], rates=(0.004,), steps=100, seeds=3)
    with Store(":memory:") as store:
        trainer = Invented(store)
        carry_out(plan, store, trainer)
        found = outcome_of(plan, store, trainer)
    assert len(trainer.done) == 2 * 3
    assert any("one learning rate" in line for line in verdict.confounds(found))


def test_the_command_to_do_it_again_and_what_would_decide(plan):
    with Store(":memory:") as store:
        trainer = Invented(store)
        carry_out(plan, store, trainer)
        found = outcome_of(plan, store, trainer)
    said = verdict.rerun(plan, ["headwise", "compare", "--task", "text:my file.txt"])
    assert "--task 'text:my file.txt'" in said
    assert "--steps 800 --seeds 4 --lr 0.001,0.002,0.004,0.008" in said
    assert verdict.settle(found, [], 2) is None
    errors = {BASE: [1.00, 1.10, 0.95, 1.02], SHAPES[0]: [0.97, 1.09, 0.99, 0.94]}
    unclear = type(found)(plan, found.course, rows_of(errors), rank_variants(rows_of(errors), BASE))
    said = verdict.settle(unclear, ["headwise", "compare"], 2)
    assert f"--seeds {unclear.ranking.needed}" in said
    assert SHAPES[1] not in said
