"""Comparisons: plans that fit a budget, rates tuned by halving in a grid that grows, and what answers say."""

import json
import math
from contextlib import contextmanager

import pytest

from headwise.comparison import verdict
from headwise.comparison.answer import PlannedComparison
from headwise.comparison.gates import rates_inside
from headwise.comparison.judge import rank_variants
from headwise.comparison.metric import measured
from headwise.comparison.pace import BudgetError, draw_up, makespan, measure_step, plan_seconds
from headwise.comparison.plan import ComparisonPlan, costs, follow
from headwise.comparison.question import MOST_VARIANTS, ask, chosen_variants, read_budget
from headwise.comparison.tables import sizes_of
from headwise.comparison.trainers import carry_out, outcome_of, standing
from headwise.cost import cost_of, parameters
from headwise.known import find
from headwise.options import preset
from headwise.report.compare import plan_lines
from headwise.report.tables import parameters_cell, parameters_heading
from headwise.spec import SpecError
from headwise.store.rows import TRIAL_SEED
from headwise.store.store import Store
from headwise.sweep.plan import Summary, Watch
from headwise.training.run import RunResult
from helpers.comparisons import BASE, OTHER, THIRD, arm, question, rows_of

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


def test_latents_are_variants_as_the_models_are_built():
    llama = preset("llama", vocab=10)
    assert chosen_variants(question(arms=("w16-h4-c8-L2",), options=llama)) == [BASE, "w16-h4-c8-p2-L2"]
    proposed = chosen_variants(question(base="w64-h4-L2", vary=("kv_latent",), options=llama))
    assert len(proposed) == MOST_VARIANTS
    assert {find(text).shape.rope_rank for text in proposed[1:]} == {8}
    learned = preset("gpt2", vocab=10, context=8)
    with pytest.raises(SpecError, match="positions here are not rotary"):
        chosen_variants(question(vary=("rope_rank",), options=learned))


def test_given_arms_are_taken_and_their_distance_is_said():
    assert chosen_variants(question(arms=(OTHER, BASE, OTHER))) == [BASE, OTHER]
    plan = planned(arms=(OTHER, "w16-h4-L3"))
    assert verdict.difference(plan, "w16-h4-L3") == pytest.approx(0.5)
    assert "parameters of the body, against the base's: w16-h4-L3 +50%" in [*verdict._unequal_costs(plan)]
    assert not any("largest difference" in line for line in verdict.held_equal(plan))
    asked = PlannedComparison(plan, 1.0, 1)
    assert plan_lines(asked)[0].startswith(f"3 variants: base {BASE}; ")
    equal = PlannedComparison(planned(arms=(OTHER,)), 1.0, 1)
    assert plan_lines(equal)[0].startswith("2 variants of equal parameters of the body: ")
    for changes, said in (({"hold": "mood"}, "cannot hold"), ({"arms": (BASE,)}, "nothing to compare")):
        with pytest.raises(SpecError, match=said):
            chosen_variants(question(**changes))


def test_parameters_are_counted_once_and_labelled():
    options = preset("gpt2", vocab=100, context=64)
    plan = planned(options=options, arms=(OTHER,))
    counts = costs(plan, OTHER)
    built = parameters(find(OTHER).shape, options)
    assert (counts["parameters"], counts["parameters_body"]) == (built["total"], built["body"])
    assert verdict.held_equal(plan)[0].startswith("parameters of the body")
    assert parameters_heading([counts]) == "parameters\n(body)"
    assert parameters_cell(counts) == f"{built['total'] / 1000:.3g} k ({built['body'] / 1000:.3g} k)"
    bare = sizes_of(OTHER)  # nothing is known of the rest of the model
    assert bare["parameters"] == bare["parameters_body"]
    assert parameters_heading([bare]) == "parameters\nof the body"
    assert parameters_cell(bare) == f"{bare['parameters'] / 1000:.3g} k"
    assert parameters_cell({}) == "–"


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
    fixed = planned(steps=100, budget=400.0)
    assert fixed.arms[0].steps == 100
    assert fixed.seeds > 4
    assert plan_seconds(fixed, 2) <= 400 < plan_seconds(fixed.replace(seeds=fixed.seeds + 1), 2) or fixed.seeds == 12
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
    assert [sum(run.steps == steps for run in trials) for steps in (100, 200, 400)] == [5 * 4 + 2, 3 * 2, 3 * 1]
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
    assert any("beyond the grid" in line and SHAPES[0] in line and BASE not in line for line in said)
    assert found.course.tried[SHAPES[0]] == [0.0005, *RATES]  # its best was the least of the grid
    assert found.course.tried[SHAPES[1]] == [*RATES, 0.016]


def trials_of(best, rates=(0.002, 0.004), rungs=(8, 4, 2), wild=(), metric=None):
    """The course of a plan in which each variant's validation error grows with the distance from its best rate, which
    may depend on how many steps a trial has; `wild` rates diverge. Gives it with the rates each round tried."""
    plan = planned(arms=(OTHER,), rates=rates, steps=800, seeds=3).replace(rungs=rungs)
    plan = plan.replace(metric=metric) if metric else plan
    tried = {}

    def results_of(runs):
        results = []
        for run in runs:
            rate, target = run.recipe.learning_rate, best[run.shape]
            target = target.get(run.steps) if isinstance(target, dict) else target
            tried.setdefault((run.shape, run.steps), []).append(rate)
            error = plan.metric.value(1 + abs(math.log2(rate / (target or rate))))
            status = "diverged" if rate in wild else "done"
            results.append(RunResult(run.key, status, {"validation_error": error, "error": -error}))
        return results

    return follow(plan, results_of), {place: sorted(set(rates)) for place, rates in tried.items()}


def test_a_grid_of_learning_rates_grows_until_the_best_is_inside():
    course, tried = trials_of({BASE: 0.016, OTHER: 0.0005})
    assert course.rates == {BASE: 0.016, OTHER: 0.0005}
    assert course.tried == {BASE: [0.002, 0.004, 0.008, 0.016, 0.032], OTHER: [0.00025, 0.0005, 0.001, 0.002, 0.004]}
    assert rates_inside(course).passed
    assert tried[BASE, 200] == [0.016]  # half of the grid's two go on, however far it grew
    course, _ = trials_of({BASE: 0.016, OTHER: 0.004}, wild=(0.008,))
    assert course.rates == {BASE: 0.004, OTHER: 0.004}  # what diverges is worse, and so the edge
    assert rates_inside(course).passed
    later, tried = trials_of({BASE: {100: 0.004, 200: 0.001, 400: 0.001}, OTHER: 0.004}, rates=(0.002, 0.004, 0.008))
    assert tried[BASE, 100] == [0.002, 0.004, 0.008]
    assert tried[BASE, 200] == [0.001, 0.002, 0.004]  # longer runs want lower ones: the second round grows once
    assert later.rates[BASE] in (0.001, 0.002)


def test_a_grid_that_grew_in_vain_is_no_basis():
    course, _ = trials_of({BASE: 100.0, OTHER: 0.004}, rungs=(2,))
    gate = rates_inside(course)
    assert (gate.passed, course.rates[BASE]) == (False, 0.032)  # three times
    assert f"{BASE} (0.032)" in gate.detail
    assert OTHER not in gate.detail


def test_learning_rates_are_chosen_in_the_direction_of_the_metric():
    course, _ = trials_of({BASE: 0.016, OTHER: 0.001}, metric=measured("accuracy"))
    assert course.rates == {BASE: 0.016, OTHER: 0.001}


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


def test_time_left_counts_only_what_is_not_in_the_store(plan):
    with Store(":memory:") as store:
        trainer, times, stages = Invented(store), [], []
        trials = follow(plan, lambda runs: [None] * len(runs)).runs
        fresh = standing(plan, store, trainer, set())
        assert (fresh.found, fresh.missing) == (0, trials)
        assert fresh.seconds_left == pytest.approx(plan_seconds(plan, 1))

        @contextmanager
        def looking(runs, stage):
            here = standing(plan, store, trainer, set())
            times.append(here.seconds_left)
            stages.append(stage)
            assert {run.key for run in here.missing} == {run.key for run in runs}
            yield Watch()

        trainer.do(trials[:7], Watch())
        summary = carry_out(plan, store, trainer, looking)
        done = standing(plan, store, trainer, set())
    assert times == sorted(times, reverse=True)
    assert times[0] < fresh.seconds_left
    finals = 3 * 4 * plan.arms[0].step_seconds * plan.step_units(plan.final(plan.arms[0], 0.001, 0), test=True)
    assert times[-1] >= finals  # the base is the fastest of them
    assert stages[-1].startswith("3 finalists, 4 seeds each; in all at most about ")
    assert (done.seconds_left, done.found) == (0, len(trainer.done))
    assert summary.found == 0  # that trainer does not count


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
