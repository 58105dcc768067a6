"""What a comparison would take here, and how long and how often its variants can train within a budget.

Time is measured on the variants themselves: a few training steps of each on the task, in as many processes as will
work, so that they slow each other as they will. Evaluation is counted as forward passes, a third of a step each. No
torch here.
"""

import heapq
import math
from collections.abc import Callable, Iterable
from time import perf_counter

from headwise.comparison.plan import ComparisonPlan, Course, PlannedVariant, growth, kept_rates, still_in
from headwise.comparison.question import Question, chosen_variants
from headwise.spec import SpecError
from headwise.training.run import Run

MANY = 10**9  # steps that no measurement reaches
MEASURED_STEPS, MEASURED_SECONDS = 3, 1.0  # at least; a busy machine gives its time in bursts
LEAST_STEPS, MOST_STEPS = 200, 4000  # of a full run: below, shapes have learned too little to be compared
LEAST_SEEDS, USUAL_SEEDS, MOST_SEEDS = 3, 4, 12
SHORTEST_TRIAL = 50  # steps; rounds of trials are as many as keep their runs longer than this, up to three
BUSIER = 1.1  # a machine may be busier later than it was when steps were measured
START_SECONDS = 3.0  # processes, at the beginning of each stage


def in_words(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{math.ceil(seconds)} seconds"
    return f"{math.ceil(seconds / 60)} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


# ---- measuring -----------------------------------------------------------------------------------------------------


def measure_steps(runs: list[Run], workers: int) -> list[float]:
    """Seconds of a training step of each run, with all workers busy."""
    from headwise.sweep.processes import each

    return each(measure_step, runs, workers)


def measure_step(run: Run) -> float:
    """The mean of some steps, after one that warms up."""
    from headwise.training.loop import Interrupted, train_run
    from headwise.training.machine import use_one_core

    times: list[float] = []

    def enough() -> bool:
        times.append(perf_counter())
        return len(times) > MEASURED_STEPS and times[-1] - times[0] > MEASURED_SECONDS

    use_one_core()
    try:
        result = train_run(run.replace(steps=MANY, evaluations=1), should_stop=enough)
    except Interrupted:
        return (times[-1] - times[0]) / (len(times) - 1)
    last = result.message.strip().splitlines()[-1]
    raise SpecError(f"{run.shape} cannot be trained on {run.task['name']}: {last}")


# ---- pricing -------------------------------------------------------------------------------------------------------


def run_seconds(plan: ComparisonPlan, variant: PlannedVariant, run: Run) -> float:
    return variant.step_seconds * plan.step_units(run, test=True)


def plan_seconds(plan: ComparisonPlan, workers: int) -> float:
    """At most, if the variants stay as fast as they were: the slowest survive every round of trials, and every
    variant's grid of learning rates grows as often as it may."""
    return BUSIER * _from_round(plan, workers, _slowest_first(plan, [variant.shape for variant in plan.arms]), 1)


def seconds_left(plan: ComparisonPlan, workers: int, course: Course, missing: list[Run]) -> float:
    """At most, for what is not done: the missing runs of the stage that a course is at, and what may come after it."""
    if not course.runs:
        return 0.0
    variants = _slowest_first(plan, course.alive)
    by_shape = {variant.shape: variant for variant in variants}
    stage = START_SECONDS + makespan((run_seconds(plan, by_shape[run.shape], run) for run in missing), workers)
    if course.finals:
        return BUSIER * stage
    wider = (growth(course.round) - course.grown) * _widening(plan, workers, variants, course.round)
    kept = variants[: 1 + still_in(len(variants) - 1)]
    return BUSIER * (stage + wider + _from_round(plan, workers, kept, course.round + 1))


def _slowest_first(plan: ComparisonPlan, shapes: list[str]) -> list[PlannedVariant]:
    """Those of these shapes: the base, then the others."""
    others = [variant for variant in plan.arms[1:] if variant.shape in shapes]
    return [plan.arms[0], *sorted(others, key=lambda one: one.step_seconds * one.steps, reverse=True)]


def _from_round(plan: ComparisonPlan, workers: int, variants: list[PlannedVariant], first: int) -> float:
    """Rounds of trials from this one on, and the finals."""
    total = 0.0
    for number in range(first, len(plan.rungs) + 1):
        rates = kept_rates(plan, number - 1) if number > 1 else len(plan.rates)
        total += START_SECONDS + makespan(_trials(plan, variants, number) * rates, workers)
        total += growth(number) * _widening(plan, workers, variants, number)
        variants = variants[: 1 + still_in(len(variants) - 1)]
    finals = [run_seconds(plan, variant, plan.final(variant, plan.rates[0], 0)) for variant in variants]
    return total + START_SECONDS + makespan(finals * plan.seeds, workers)


def _widening(plan: ComparisonPlan, workers: int, variants: list[PlannedVariant], number: int) -> float:
    """One more learning rate for each variant of a round."""
    return START_SECONDS + makespan(_trials(plan, variants, number), workers)


def _trials(plan: ComparisonPlan, variants: list[PlannedVariant], number: int) -> list[float]:
    """Seconds of one trial of each variant."""
    divisor = plan.rungs[number - 1]
    return [run_seconds(plan, variant, plan.trial(variant, plan.rates[0], divisor)) for variant in variants]


def makespan(seconds: Iterable[float], workers: int) -> float:
    """Until all are done, the longest given out first."""
    ends = [0.0] * workers
    for one in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)


# ---- drawing up a plan ---------------------------------------------------------------------------------------------


class BudgetError(SpecError):
    """A budget that is too small; `least` is the shortest plan that makes sense."""

    def __init__(self, message: str, least: ComparisonPlan) -> None:
        super().__init__(message)
        self.least = least


def draw_up(question: Question, workers: int, time_of: Callable[[list[Run]], list[float]]) -> ComparisonPlan:
    """As many steps as fit the budget, and more seeds where time is left.

    `time_of` gives the seconds of a step for each variant, from the first run that will be done of it.
    """
    shapes = chosen_variants(question)
    first = _plan(question, [(shape, 0.0) for shape in shapes], max(question.steps, 1), 1)
    rate, rungs = question.rates[0], first.rungs
    times = time_of(
        [first.trial(variant, rate, rungs[0]) if rungs else first.final(variant, rate, 0) for variant in first.arms]
    )
    timed = list(zip(shapes, times, strict=True))

    def cost(steps: int, seeds: int) -> float:
        return plan_seconds(_plan(question, timed, steps, seeds), workers)

    if question.steps and question.seeds:
        return _plan(question, timed, question.steps, question.seeds)
    least = question.steps or LEAST_STEPS, question.seeds or LEAST_SEEDS
    if cost(*least) > question.budget:
        raise BudgetError(_too_small(question, *least, cost(*least)), _plan(question, timed, *least))
    steps, seeds = _fitting(question, cost)
    return _plan(question, timed, steps, seeds)


def _too_small(question: Question, steps: int, seeds: int, needed: float) -> str:
    return (
        f"a budget of {in_words(question.budget)} is too small: {steps} steps and {seeds} seeds take "
        f"{in_words(needed)} here; give --budget {math.ceil(needed / 60)}m, fewer --arms or a smaller task"
    )


def _fitting(question: Question, cost: Callable[[int, int], float]) -> tuple[int, int]:
    """Steps and seeds that fit; the least that make sense do."""
    least, seeds = question.steps or LEAST_STEPS, question.seeds or LEAST_SEEDS
    if not question.seeds and cost(least, USUAL_SEEDS) <= question.budget:
        seeds = USUAL_SEEDS
    steps = question.steps or _most(lambda n: cost(n, seeds) <= question.budget, LEAST_STEPS, MOST_STEPS)
    steps = steps if question.steps else _rounded(steps)
    if not question.seeds and (question.steps or steps == MOST_STEPS):
        seeds = _most(lambda n: cost(steps, n) <= question.budget, seeds, MOST_SEEDS)
    return steps, seeds


def _most(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number that fits, where `low` does and all below one that fits do."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _rounded(steps: int) -> int:
    """Down to two digits."""
    unit = 10 ** max(0, int(math.log10(steps)) - 1)
    return steps - steps % unit


def _plan(question: Question, timed: list[tuple[str, float]], steps: int, seeds: int) -> ComparisonPlan:
    base = timed[0][1]
    scale = question.hold == "time" and base > 0
    variants = tuple(
        PlannedVariant(shape=shape, steps=max(1, round(steps * base / time)) if scale else steps, step_seconds=time)
        for shape, time in timed
    )
    recipe = question.recipe.replace(learning_rate=question.rates[0])
    fields = {name: getattr(question, name) for name in ("task", "options", "tokens", "held_out", "hold", "execution")}
    return ComparisonPlan(
        **fields, recipe=recipe, arms=variants, rates=question.rates, rungs=_rungs(question, steps), seeds=seeds
    )


def _rungs(question: Question, steps: int) -> tuple[int, ...]:
    """What the steps are divided by in each round of trials; no round without rates to choose from."""
    if len(question.rates) < 2:
        return ()
    if not question.shorter:
        return (1,)
    return tuple(divisor for divisor in (8, 4, 2) if steps // divisor >= SHORTEST_TRIAL) or (2,)
