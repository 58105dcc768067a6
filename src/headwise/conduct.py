"""A study from plan to verdict: price it, do the runs the store lacks, read the rows back, judge the claims."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwise.claims import Judgement, Row, judge
from headwise.run import Execution, Run, RunResult
from headwise.spec import SpecError
from headwise.store import Store
from headwise.studies import PRESETS, Study, rows
from headwise.sweep import Plan, Summary, Watch, make_plan, work

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


def resolve(device: str, precision: str) -> Execution:
    """What 'auto' means on this machine: the fastest device; bfloat16 on CUDA, or where tried, safe and faster."""
    import torch

    kinds = ("cpu", "cuda", "mps")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in kinds or (device == "cuda" and not torch.cuda.is_available()):
        raise SpecError(f"no device '{device}' here; use auto or one of {', '.join(kinds)} that headwise doctor lists")
    if precision not in ("auto", "float32", "bfloat16"):
        raise SpecError(f"no precision '{precision}'; there are auto, float32 and bfloat16")
    if precision != "float32" and device == "cpu":
        from headwise.doctor import worth_using

        if worth_using("bfloat16"):
            precision = "bfloat16"
        elif precision == "bfloat16":
            raise SpecError("bfloat16 is not safe, or not faster, on this processor; headwise doctor says why")
    if precision == "auto":
        precision = "bfloat16" if device == "cuda" else "float32"
    return Execution.model_validate({"device": device, "precision": precision})


def study_rows(study: Study, preset: str, store: Store) -> list[Row]:
    """What the store holds of a study's preset."""
    cells = study.of(preset)
    return rows(cells, results_of(store, {cell.run.key for cell in cells}))


def results_of(store: Store, keys: set[str]) -> dict[str, RunResult]:
    """Results by the key a run has with nothing resolved for a machine: a GPU's row counts as well as a laptop's."""
    found: dict[str, RunResult] = {}
    for run, result in store.runs():
        plain = run.replace(execution=Execution()).key
        if plain in keys and (plain not in found or plain == run.key):
            found[plain] = result
    return found


def judge_all(study: Study, store: Store) -> list[Judgement]:
    """Every claim of a study, from the largest preset that has rows."""
    found = {preset: study_rows(study, preset, store) for preset in PRESETS if preset in study.presets}
    used = next((preset for preset, held in found.items() if held), "laptop")
    smaller = "paper" if used == "laptop" and found[used] else "laptop"
    missing = len(study.of(smaller)) - len(found.get(smaller, []))
    settle = f"headwise study run {study.name} --preset {smaller} ({missing} runs to do)"
    return [judge(claim, used, found.get(used, []), settle) for claim in study.claims]


def conduct(
    runs: list[Run],
    store: Store,
    *,
    folder: Path,
    workers: int = 0,
    watch: Watch | None = None,
    shard: tuple[int, int] = (0, 1),
    ray_address: str | None = None,
    keep_weights: bool = False,
    checkpoint_seconds: float = 20.0,
) -> Summary:
    """Do what the store lacks, here or on a Ray cluster; Ctrl-C and SIGTERM checkpoint and stop."""
    plan = make_plan(runs, store, shard)
    weights = folder / "weights" if keep_weights else None
    with _stoppable(watch or Watch()) as watching:
        settings: dict[str, Any] = {"weights": weights, "watch": watching, "checkpoint_seconds": checkpoint_seconds}
        settings |= {"checkpoints": folder / "checkpoints"}
        if ray_address is None:
            from headwise.sweep import local

            return local.sweep(plan, store, workers=workers, **settings)
        from headwise.sweep import ray_cluster

        return ray_cluster.sweep(plan, store, address=ray_address, **settings)


@contextmanager
def _stoppable(watch: Watch) -> Iterator[Watch]:
    """Count Ctrl-C and SIGTERM instead of dying of them: one asks runs to checkpoint, two stop now."""
    asked = [0]

    def count(number: int, frame: Any) -> None:
        asked[0] += 1

    kinds = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {kind: signal.signal(kind, count) for kind in kinds}
    except ValueError:  # not the main thread: somebody else answers signals
        yield watch
        return
    try:
        yield replace(watch, stop_asked=lambda: asked[0])
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def price(plan: Plan, workers: int) -> Price:
    """FLOPs are exact; time comes from a few steps of a few of the plan's runs, here and now."""
    from headwise.cost import parameters

    rates = _calibrate(plan)
    seconds = sum(work(run) / _nearest(rates, work(run)) for run in plan.todo if run.steps)
    count = sum(parameters(run.model_shape, run.options)["total"] for run in plan.todo)
    return Price(len(plan.todo), len(plan.found), plan.flops, count, seconds / workers, workers)


def _calibrate(plan: Plan) -> dict[int, float]:
    """FLOPs a second, by the work of a run: a few steps of runs from the smallest to the largest."""
    from headwise.machine import keep_memory
    from headwise.train import train

    keep_memory()
    order = sorted({work(run): run for run in plan.todo if run.steps}.items())
    chosen = order[:: max(1, len(order) // CALIBRATED_CELLS)] + order[-1:]
    rates = {}
    for flops, run in chosen:
        few = run.replace(steps=CALIBRATED_STEPS, evaluations=1)
        train(few)  # warms up
        start = time.perf_counter()
        result = train(few)
        seconds = result.seconds if result.steps else time.perf_counter() - start
        rates[flops] = flops * CALIBRATED_STEPS / run.steps / max(seconds, 1e-9)
    return rates


def _nearest(rates: dict[int, float], flops: int) -> float:
    return rates[min(rates, key=lambda known: abs(known - flops))]
