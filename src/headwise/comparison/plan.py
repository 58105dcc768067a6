"""A comparison before and between its runs: what will be done, and how far it is.

`follow` is a pure function of the plan and the results there are. Trials of learning rates are whole schedules of fewer
steps, with a seed that is judged nowhere. No torch here.
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

Found = Callable[[list[Run]], Sequence[RunResult | None]]


class Arm(JsonSpec):
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
    arms: tuple[Arm, ...]
    rates: tuple[float, ...]
    rungs: tuple[int, ...] = Field(description="what a full run's steps are divided by in each round of trials")
    seeds: int

    @property
    def base(self) -> str:
        return self.arms[0].shape

    def final(self, arm: Arm, rate: float, seed: int) -> Run:
        return self._run(arm, rate, steps=arm.steps, seed=seed, evaluations=min(EVALUATIONS, arm.steps))

    def trial(self, arm: Arm, rate: float, divisor: int) -> Run:
        """Of fewer steps, but a whole schedule, with a seed that is judged nowhere."""
        return self._run(arm, rate, steps=max(1, arm.steps // divisor), seed=TRIAL_SEED, evaluations=1)

    def _run(self, arm: Arm, rate: float, **settings: Any) -> Run:
        model, recipe = ModelShape.parse(arm.shape), self.recipe.replace(learning_rate=rate)
        if self.tokens:
            parts = fitting_micro_batches(model, self.options, self.tokens, recipe.batch)
            recipe = recipe.replace(micro_batches=parts)
        return Run(task=self.task, shape=arm.shape, options=self.options, recipe=recipe, **settings)

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


def follow(plan: ComparisonPlan, found: Found) -> Course:
    """Walk through the stages as far as results go; `found` gives the result of each run, or None."""
    alive, course = {arm.shape: plan.rates for arm in plan.arms}, Course()
    for number, divisor in enumerate(plan.rungs, 1):
        trials = [(arm, rate) for arm in plan.arms for rate in alive.get(arm.shape, ())]
        runs = [plan.trial(arm, rate, divisor) for arm, rate in trials]
        results = found(runs)
        if None in results:
            course.stage = f"learning rates, round {number} of {len(plan.rungs)}: 1/{divisor} of the steps"
            course.runs = runs
            return course
        errors: dict[str, dict[float, float]] = {}
        for (arm, rate), result in zip(trials, results, strict=True):
            assert result is not None
            errors.setdefault(arm.shape, {})[rate] = result.validation_error
        if min(errors[plan.base].values()) == math.inf:
            raise SpecError(_no_end(plan.base, [r for r in results if r]))
        alive = _halve(errors, plan.base, last=number == len(plan.rungs), dropped=course.dropped)
    course.rates = {arm: kept[0] for arm, kept in alive.items()}
    finalists = [arm for arm in plan.arms if arm.shape in alive]
    course.finals = [
        Cell({"arm": arm.shape}, plan.final(arm, course.rates[arm.shape], seed))
        for seed in range(plan.seeds)
        for arm in finalists
    ]
    runs = [at.run for at in course.finals]
    if None in found(runs):
        course.stage, course.runs = f"{len(finalists)} finalists, {plan.seeds} seeds each", runs
    return course


def _halve(
    errors: dict[str, dict[float, float]], base: str, last: bool, dropped: dict[str, str]
) -> dict[str, tuple[float, ...]]:
    """The rule: each variant keeps the better half of its learning rates (in the end one), and of the variants other
    than the base the better half stay, by their best rate, or as many as make FINALISTS; one that no rate suits is
    dropped."""
    best = {arm: min(found.values()) for arm, found in errors.items()}
    others = sorted((arm for arm in errors if arm != base and best[arm] < math.inf), key=lambda arm: best[arm])
    kept = others[: still_in(len(errors) - 1)]
    for arm in errors:
        if arm not in (base, *kept):
            why = "no learning rate came to an end" if best[arm] == math.inf else f"validation error {best[arm]:.4g}"
            limit = f", those kept had {best[kept[-1]]:.4g} or less" if kept and best[arm] < math.inf else ""
            dropped[arm] = why + limit
    return {arm: _better_rates(errors[arm], last) for arm in (base, *kept)}


def _better_rates(errors: dict[float, float], last: bool) -> tuple[float, ...]:
    ranked = sorted(errors, key=lambda rate: errors[rate])
    return tuple(sorted(ranked[: 1 if last else math.ceil(len(ranked) / 2)]))


def still_in(others: int) -> int:
    """How many of so many variants, the base not counted, a round of trials leaves."""
    return min(others, max(FINALISTS - 1, math.ceil(others / 2)))


def _no_end(base: str, results: list[RunResult]) -> str:
    said = next((r.message.strip().splitlines()[-1] for r in results if r.message.strip()), "the error was not finite")
    return f"the base {base} did not come to an end at any learning rate ({said}); try a lower --lr, or look there"
