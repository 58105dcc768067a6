"""What a plan would cost here: exact FLOPs, and time from a few steps of a few of its runs."""

import time
from dataclasses import dataclass

from headwise.sweep.plan import SweepPlan, work

CALIBRATED_CELLS, CALIBRATED_STEPS = 4, 3


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
    """FLOPs are exact; time comes from a few steps of a few of the plan's runs, here and now."""
    from headwise.cost import parameters

    speeds = _calibrate(plan)
    seconds = sum(work(run) / _nearest(speeds, work(run)) for run in plan.todo if run.steps)
    count = sum(parameters(run.model_shape, run.options)["total"] for run in plan.todo)
    return Price(len(plan.todo), len(plan.found), plan.flops, count, seconds / workers, workers)


def _calibrate(plan: SweepPlan) -> dict[int, float]:
    """FLOPs per second, by the work of a run: a few steps of runs from the smallest to the largest."""
    from headwise.training.loop import train_run
    from headwise.training.machine import keep_memory

    keep_memory()
    order = sorted({work(run): run for run in plan.todo if run.steps}.items())
    chosen = order[:: max(1, len(order) // CALIBRATED_CELLS)] + order[-1:]
    speeds = {}
    for flops, run in chosen:
        few = run.replace(steps=CALIBRATED_STEPS, evaluations=1)
        train_run(few)  # warms up
        start = time.perf_counter()
        result = train_run(few)
        seconds = result.seconds if result.steps else time.perf_counter() - start
        speeds[flops] = flops * CALIBRATED_STEPS / run.steps / max(seconds, 1e-9)
    return speeds


def _nearest(speeds: dict[int, float], flops: int) -> float:
    return speeds[min(speeds, key=lambda known: abs(known - flops))]
