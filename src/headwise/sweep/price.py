"""What a plan would cost here: exact FLOPs, and time from a few steps and an evaluation of a few of its runs."""

import time
from collections.abc import Collection
from dataclasses import dataclass

from headwise.sweep.plan import SweepPlan, work
from headwise.training.run import Run

CALIBRATED_CELLS, CALIBRATED_STEPS, WARM_STEPS = 4, 3, 1


@dataclass(frozen=True)
class Price:
    """What a plan would cost here."""

    runs: int
    found: int
    flops: int
    parameters: int
    seconds: float
    workers: int


def price_plan(plan: SweepPlan, workers: int) -> Price:
    """FLOPs are exact; time comes from a few steps and an evaluation of a few of the plan's runs, here and now."""
    from headwise.cost import parameters

    paces = _calibrate(plan)
    seconds = sum(paces[_nearest(paces, work(run))].seconds(run) for run in plan.todo if run.steps)
    count = sum(parameters(run.model_shape, run.options)["total"] for run in plan.todo)
    return Price(len(plan.todo), len(plan.found), plan.flops, count, seconds / workers, workers)


@dataclass(frozen=True)
class Pace:
    """How fast a run goes here: a short run is mostly evaluation, which steps alone would not show."""

    speed: float  # FLOPs per second, of training steps
    evaluation: float  # seconds of one

    def seconds(self, run: Run) -> float:
        return work(run) / self.speed + run.evaluations * self.evaluation


def _calibrate(plan: SweepPlan) -> dict[int, Pace]:
    """By the work of a run: the pace of runs from the smallest to the largest."""
    from headwise.training.machine import keep_memory

    keep_memory()
    order = sorted({work(run): run for run in plan.todo if run.steps}.items())
    chosen = order[:: max(1, len(order) // CALIBRATED_CELLS)] + order[-1:]
    return {flops: _pace(flops, run) for flops, run in chosen}


def _pace(flops: int, run: Run) -> Pace:
    from headwise.training.loop import train_run, training_steps

    steps = training_steps(run.replace(steps=CALIBRATED_STEPS + WARM_STEPS))
    for _ in range(WARM_STEPS):  # kernels are compiled, memory is had
        next(steps)
    start = time.perf_counter()
    for _ in steps:
        pass
    step = (time.perf_counter() - start) / CALIBRATED_STEPS
    whole = train_run(run.replace(steps=1, evaluations=1, begin={}))
    evaluation = max(0.0, whole.seconds - step) if whole.steps else 0.0
    return Pace(flops / run.steps / max(step, 1e-9), evaluation)


def _nearest(known: Collection[int], flops: int) -> int:
    return min(known, key=lambda one: abs(one - flops))
