"""A comparison before and between its runs: what will be done, and how far it is.

`follow` is a pure function of the plan and the results there are. Trials of learning rates are whole schedules of fewer
steps, with a seed that no judged run has. No torch here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from headwise.activations import fitting_micro_batches
from headwise.comparison.metric import Metric
from headwise.cost import FORWARDS_PER_STEP, kv_bytes_per_token, parameter_counts, sequence_length, training_flops
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import JsonSpec, SpecError
from headwise.store.rows import TRIAL_SEED, Cell
from headwise.training.run import Execution, Recipe, Run, RunResult

FINALISTS = 3  # at least, with the base, where there are so many variants
EVALUATIONS = 5  # of a finalist's validation curve
GROWN_FIRST, GROWN_LATER = 3, 1  # learning rates by which a grid grows: in the first round of trials, in others
NEAR = 0.01  # costs closer than this are called equal

ResultsOf = Callable[[list[Run]], Sequence[RunResult | None]]


class PlannedVariant(JsonSpec):
    """A variant: a shape, how long it trains, and how long a step of it took when the plan was made."""

    shape: str
    steps: int = Field(gt=0)
    step_seconds: float = Field(ge=0)


class ComparisonPlan(JsonSpec):
    """Everything that is decided before the first run; the base is the first variant."""

    task: dict[str, Any]
    options: ModelOptions
    tokens: int
    held_out: tuple[int, int]
    hold: str
    recipe: Recipe
    execution: Execution
    arms: tuple[PlannedVariant, ...]
    rates: tuple[float, ...]
    rungs: tuple[int, ...] = Field(description="what a full run's steps are divided by in each round of trials")
    seeds: int
    metric: Metric = Field(default=Metric(), description="what is compared")
    baseline: tuple[str, float] = Field(default=("", 0.0), description="a simple model and its metric; unnamed: none")

    @property
    def base(self) -> str:
        return self.arms[0].shape

    def final(self, variant: PlannedVariant, rate: float, seed: int) -> Run:
        return self._run(variant, rate, steps=variant.steps, seed=seed, evaluations=min(EVALUATIONS, variant.steps))

    def trial(self, variant: PlannedVariant, rate: float, divisor: int) -> Run:
        """Of fewer steps, but a whole schedule, with a seed that no judged run has."""
        return self._run(variant, rate, steps=max(1, variant.steps // divisor), seed=TRIAL_SEED, evaluations=1)

    def _run(self, variant: PlannedVariant, rate: float, **settings: Any) -> Run:
        model, recipe = ModelShape.parse(variant.shape), self.recipe.replace(learning_rate=rate)
        if self.tokens:
            parts = fitting_micro_batches(model, self.options, self.tokens, recipe.batch)
            recipe = recipe.replace(micro_batches=parts)
        return Run(task=self.task, shape=variant.shape, options=self.options, recipe=recipe, **settings)

    def step_units(self, run: Run, test: bool = False) -> float:
        """What a run takes, in training steps: a forward pass, which is all that evaluation needs, is a third of one.

        The test after the last step is not in a result's seconds.
        """
        evaluated = run.evaluations * self.held_out[0] + test * self.held_out[1]
        return run.steps + evaluated / run.recipe.batch / FORWARDS_PER_STEP


def costs(plan: ComparisonPlan, shape: str) -> dict[str, int]:
    """What a variant costs: its parameters (all, and the body's), the FLOPs of training on one token, its KV cache."""
    model, length = ModelShape.parse(shape), sequence_length(plan.options, plan.tokens)
    return {
        **parameter_counts(model, plan.options),
        "flops": training_flops(model, plan.options, length) // length,
        "kv_bytes_per_token": kv_bytes_per_token(model, plan.options),
    }


# ---- from one stage to the next ------------------------------------------------------------------------------------


@dataclass
class Course:
    """How far a comparison is: the runs of the stage that is not at its end, and what earlier stages decided."""

    stage: str = ""
    runs: list[Run] = field(default_factory=list)  # empty when every run has ended
    round: int = 0  # of trials, counted from 1; 0 before and after them
    grown: int = 0  # how often this round has widened the grids of learning rates
    alive: list[str] = field(default_factory=list)  # variants of this round
    rates: dict[str, float] = field(default_factory=dict)  # learning rates of the finalists
    tried: dict[str, list[float]] = field(default_factory=dict)  # all that were, in order, by variant
    dropped: dict[str, str] = field(default_factory=dict)  # why a variant is none
    finals: list[Cell] = field(default_factory=list)


def follow(plan: ComparisonPlan, results_of: ResultsOf) -> Course:
    """Walk through the stages as far as results go; `results_of` gives the result of each run, or None."""
    course = Course(tried={variant.shape: list(plan.rates) for variant in plan.arms})
    alive = {variant.shape: plan.rates for variant in plan.arms}
    for number in range(1, len(plan.rungs) + 1):
        course.round, course.alive = number, [*alive]
        losses = _round(plan, number, alive, course, results_of)
        if losses is None:
            return course
        alive = _halve(plan, losses, kept_rates(plan, number), course.dropped)
    course.round, course.alive = 0, [*alive]
    course.rates = {variant: kept[0] for variant, kept in alive.items()}
    finalists = [variant for variant in plan.arms if variant.shape in alive]
    course.finals = [
        Cell({"arm": variant.shape}, plan.final(variant, course.rates[variant.shape], seed))
        for seed in range(plan.seeds)
        for variant in finalists
    ]
    runs = [at.run for at in course.finals]
    if None in results_of(runs):
        course.stage, course.runs = f"{len(finalists)} finalists, {plan.seeds} seeds each", runs
    return course


Trials = dict[str, dict[float, float]]  # by variant and learning rate: validation metrics as losses, less is better


def _round(
    plan: ComparisonPlan, number: int, alive: dict[str, tuple[float, ...]], course: Course, results_of: ResultsOf
) -> Trials | None:
    """A round of trials; None while it is not at its end.

    A variant that is best at the edge of what it has tried gets another learning rate beyond it, as far again as
    the last two are from each other, and so on a few times: until one that is worse lies on either side.
    """
    divisor, rates = plan.rungs[number - 1], {variant: list(its_rates) for variant, its_rates in alive.items()}
    stage = f"learning rates, round {number} of {len(plan.rungs)}: 1/{divisor} of the steps"
    course.grown = 0
    while True:
        trials = [(variant, rate) for variant in plan.arms for rate in rates.get(variant.shape, ())]
        runs = [plan.trial(variant, rate, divisor) for variant, rate in trials]
        results = results_of(runs)
        if None in results:
            lacking = [run for run, result in zip(runs, results, strict=True) if result is None]
            course.stage, course.runs = (f"{stage}, beyond the grid", lacking) if course.grown else (stage, runs)
            return None
        losses: Trials = {}
        for (variant, rate), result in zip(trials, results, strict=True):
            assert result is not None
            losses.setdefault(variant.shape, {})[rate] = plan.metric.loss(result.validation_error)
        if min(losses[plan.base].values()) == math.inf:
            raise SpecError(_no_end(plan.base, [r for r in results if r]))
        wider = {shape: beyond(course.tried[shape], by_rate) for shape, by_rate in losses.items()}
        if course.grown == growth(number) or not any(wider.values()):
            return losses
        course.grown += 1
        for shape, new in wider.items():
            if new:
                rates[shape] = sorted([*rates[shape], new])
                course.tried[shape] = sorted([*course.tried[shape], new])


def growth(number: int) -> int:
    """How often a round of trials, counted from 1, may widen a variant's grid."""
    return GROWN_FIRST if number == 1 else GROWN_LATER


def beyond(tried: list[float], losses: dict[float, float]) -> float | None:
    """The learning rate next to try, where the best is the least or the greatest of those that were tried."""
    best = min(losses, key=lambda rate: losses[rate])
    if losses[best] == math.inf or len(tried) < 2 or tried[0] < best < tried[-1]:
        return None
    other = tried[1] if best == tried[0] else tried[-2]
    return float(f"{best * best / other:.3g}")


def kept_rates(plan: ComparisonPlan, number: int) -> int:
    """How many learning rates of a variant go on after a round: half as many as the grid had, in the end one."""
    if number == len(plan.rungs):
        return 1
    return math.ceil(len(plan.rates) / 2**number)


def _halve(plan: ComparisonPlan, losses: Trials, keep: int, dropped: dict[str, str]) -> dict[str, tuple[float, ...]]:
    """The rule: each variant keeps the better half of its learning rates (in the end one), and of the variants other
    than the base the better half stay, by their best validation metric, or as many as make FINALISTS; one whose
    every learning rate failed is dropped."""
    best = {variant: min(by_rate.values()) for variant, by_rate in losses.items()}
    finished = (variant for variant in losses if variant != plan.base and best[variant] < math.inf)
    others = sorted(finished, key=lambda variant: best[variant])
    kept = others[: still_in(len(losses) - 1)]
    name = "validation error" if plan.metric == Metric() else f"validation {plan.metric.name}"
    for variant in losses:
        if variant not in (plan.base, *kept):
            failed = best[variant] == math.inf
            shown = f"{name} {plan.metric.value(best[variant]):.4g}"
            why = "every learning rate diverged or failed" if failed else shown
            bound = "or more" if plan.metric.higher_is_better else "or less"
            limit = f", those kept had {plan.metric.value(best[kept[-1]]):.4g} {bound}" if kept and not failed else ""
            dropped[variant] = why + limit
    return {variant: _best_rates(losses[variant], keep) for variant in (plan.base, *kept)}


def _best_rates(losses: dict[float, float], keep: int) -> tuple[float, ...]:
    return tuple(sorted(sorted(losses, key=lambda rate: losses[rate])[:keep]))


def still_in(others: int) -> int:
    """How many of so many variants, the base not counted, a round of trials leaves."""
    return min(others, max(FINALISTS - 1, math.ceil(others / 2)))


def _no_end(base: str, results: list[RunResult]) -> str:
    said = next((r.message.strip().splitlines()[-1] for r in results if r.message.strip()), "the error was not finite")
    return f"the base {base} diverged or failed at every learning rate ({said}); try a lower --lr"
