"""A comparison before and between its runs: what will be done, and how far it is.

`follow` is a pure function of the plan and the results there are. Trials of learning rates are whole schedules of fewer
steps, with a seed that no judged run has. No torch here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from headwise.cost import (
    FORWARDS_PER_STEP,
    fitting_micro_batches,
    kv_bytes_per_token,
    parameters,
    sequence_length,
    training_flops,
)
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import JsonSpec, SpecError
from headwise.store.rows import TRIAL_SEED, Cell
from headwise.training.run import Execution, Recipe, Run, RunResult

FINALISTS = 3  # at least, with the base, where there are so many variants
EVALUATIONS = 5  # of a finalist's validation curve
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
    """What a variant costs: the parameters and cache of its body, the FLOPs of training on one token."""
    model, length = ModelShape.parse(shape), sequence_length(plan.options, plan.tokens)
    return {
        "parameters": parameters(model, plan.options)["body"],
        "flops": training_flops(model, plan.options, length) // length,
        "kv_bytes_per_token": kv_bytes_per_token(model),
    }


# ---- from one stage to the next ------------------------------------------------------------------------------------


@dataclass
class Course:
    """How far a comparison is: the runs of the stage that is not at its end, and what earlier stages decided."""

    stage: str = ""
    runs: list[Run] = field(default_factory=list)  # empty when every run has ended
    rates: dict[str, float] = field(default_factory=dict)  # learning rates of the finalists
    dropped: dict[str, str] = field(default_factory=dict)  # why a variant is none
    finals: list[Cell] = field(default_factory=list)


def follow(plan: ComparisonPlan, results_of: ResultsOf) -> Course:
    """Walk through the stages as far as results go; `results_of` gives the result of each run, or None."""
    alive, course = {variant.shape: plan.rates for variant in plan.arms}, Course()
    for number, divisor in enumerate(plan.rungs, 1):
        trials = [(variant, rate) for variant in plan.arms for rate in alive.get(variant.shape, ())]
        runs = [plan.trial(variant, rate, divisor) for variant, rate in trials]
        results = results_of(runs)
        if None in results:
            course.stage = f"learning rates, round {number} of {len(plan.rungs)}: 1/{divisor} of the steps"
            course.runs = runs
            return course
        errors: dict[str, dict[float, float]] = {}
        for (variant, rate), result in zip(trials, results, strict=True):
            assert result is not None
            errors.setdefault(variant.shape, {})[rate] = result.validation_error
        if min(errors[plan.base].values()) == math.inf:
            raise SpecError(_no_end(plan.base, [r for r in results if r]))
        alive = _halve(errors, plan.base, last=number == len(plan.rungs), dropped=course.dropped)
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


def _halve(
    errors: dict[str, dict[float, float]], base: str, last: bool, dropped: dict[str, str]
) -> dict[str, tuple[float, ...]]:
    """The rule: each variant keeps the better half of its learning rates (in the end one), and of the variants other
    than the base the better half stay, by their best validation error, or as many as make FINALISTS; one whose
    every learning rate failed is dropped."""
    best = {variant: min(by_rate.values()) for variant, by_rate in errors.items()}
    finished = (variant for variant in errors if variant != base and best[variant] < math.inf)
    others = sorted(finished, key=lambda variant: best[variant])
    kept = others[: still_in(len(errors) - 1)]
    for variant in errors:
        if variant not in (base, *kept):
            failed = best[variant] == math.inf
            why = "every learning rate diverged or failed" if failed else f"validation error {best[variant]:.4g}"
            limit = f", those kept had {best[kept[-1]]:.4g} or less" if kept and not failed else ""
            dropped[variant] = why + limit
    return {variant: _better_rates(errors[variant], last) for variant in (base, *kept)}


def _better_rates(errors: dict[float, float], last: bool) -> tuple[float, ...]:
    ranked = sorted(errors, key=lambda rate: errors[rate])
    return tuple(sorted(ranked[: 1 if last else math.ceil(len(ranked) / 2)]))


def still_in(others: int) -> int:
    """How many of so many variants, the base not counted, a round of trials leaves."""
    return min(others, max(FINALISTS - 1, math.ceil(others / 2)))


def _no_end(base: str, results: list[RunResult]) -> str:
    said = next((r.message.strip().splitlines()[-1] for r in results if r.message.strip()), "the error was not finite")
    return f"the base {base} diverged or failed at every learning rate ({said}); try a lower --lr"
