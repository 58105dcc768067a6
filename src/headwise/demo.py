"""The rank cliff in a minute: encoders of equal size, from one head of full rank to many of rank 1.

Each arm trains on nearest-neighbour search with two seeds; arms share data. Two processes of one thread each run the
arms, the slowest first.
"""

import multiprocessing
import queue
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from headwise.cost import parameters
from headwise.options import preset
from headwise.shape import ModelShape, divisors
from headwise.spec import SpecError
from headwise.train import Recipe

DIM, POINTS, HIDDEN, TEST_SETS = 16, 16, 64, 8192
REPORT_EVERY = 50


@dataclass(frozen=True)
class Arm:
    """One shape with its test error for every seed."""

    shape: ModelShape
    parameters: int
    errors: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        layer = self.shape.layers[0]
        return {
            "shape": str(self.shape),
            "heads": layer.heads,
            "qk_rank": layer.qk_rank,
            "parameters": self.parameters,
            "error": mean(self.errors),
            "low": min(self.errors),
            "high": max(self.errors),
            "seeds": len(self.errors),
        }


@dataclass(frozen=True)
class Demo:
    """What the demo found; `verdict` says it in a sentence."""

    arms: tuple[Arm, ...]
    trivial_error: float
    steps: int

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [arm.as_dict() for arm in self.arms]

    @property
    def verdict(self) -> str:
        full, half = self.rows[0], self.rows[1]
        told = (
            f"with the same {full['parameters']:,} parameters, {_heads(full)} has error {full['error']:.2f} "
            f"and {_heads(half)} have {half['error']:.2f} (trivial: {self.trivial_error:.2f})"
        )
        if full["high"] < 0.5 * half["low"]:
            return f"Rank decides what a head can see: {told}."
        return f"No cliff after {self.steps} steps: {told}. The usual {Recipe().steps} steps show it."


def arms() -> list[ModelShape]:
    """Every split of the width into heads, from one head of full rank down to rank 1."""
    return [ModelShape(width=DIM, heads=heads, mlp=HIDDEN) for heads in divisors(DIM)]


def run_demo(seeds: int, steps: int, on_progress: Callable[[int, int], None] = lambda done, total: None) -> Demo:
    """Train every arm with every seed; `on_progress` hears of steps done and of all steps."""
    if seeds < 1 or steps < 1:
        raise SpecError(f"the demo needs at least one seed and one step, not {seeds} and {steps}")
    shapes = arms()
    jobs = [(shape, seed) for shape in reversed(shapes) for seed in range(seeds)]
    context = multiprocessing.get_context("spawn")  # a forked torch may inherit a locked thread pool
    reports = context.Queue()
    with ProcessPoolExecutor(2, context, initializer=_start_worker, initargs=(reports,)) as pool:
        futures = {job: pool.submit(_train, str(job[0]), job[1], steps) for job in jobs}
        try:
            _follow(list(futures.values()), reports, len(jobs) * steps, on_progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in pool._processes.values():
                process.terminate()
            raise
        found = {job: future.result() for job, future in futures.items()}
    options = preset("encoder")
    return Demo(
        tuple(
            Arm(shape, parameters(shape, options)["total"], tuple(found[shape, s] for s in range(seeds)))
            for shape in shapes
        ),
        _trivial_error(),
        steps,
    )


def _follow(futures: list[Future[float]], reports: Any, total: int, on_progress: Callable[[int, int], None]) -> None:
    done = 0
    while any(not future.done() for future in futures):
        try:
            done += reports.get(timeout=0.2)
        except queue.Empty:
            continue
        on_progress(done, total)
        for future in futures:
            if future.done() and future.exception():
                raise future.exception() or RuntimeError("a worker failed")
    on_progress(total, total)


# ---- in a worker ---------------------------------------------------------------------------------------------------

_reports: Any = None


def _start_worker(reports: Any) -> None:
    from headwise.machine import use_one_core

    global _reports
    _reports = reports
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    use_one_core()


def _train(text: str, seed: int, steps: int) -> float:
    """Train one arm and give its test error."""
    import torch

    from headwise.models import build
    from headwise.tasks.nearest_neighbor import draw, error
    from headwise.train import train

    recipe = Recipe(steps=steps)
    torch.manual_seed(seed)
    model = build(text, preset("encoder"))
    batches = partial(draw, seed, "train", batch=recipe.batch, points=POINTS, dim=DIM)
    train(model, batches, error, recipe, _report)
    _reports.put(steps % REPORT_EVERY)
    with torch.no_grad():
        points, labels = _test_set()
        return float(error(model(points), labels))


def _report(step: int) -> None:
    if (step + 1) % REPORT_EVERY == 0:
        _reports.put(REPORT_EVERY)


def _test_set() -> Any:
    from headwise.tasks.nearest_neighbor import draw

    return draw(0, "test", 0, TEST_SETS, POINTS, DIM)


def _trivial_error() -> float:
    from headwise.tasks.nearest_neighbor import trivial_error

    return trivial_error(*_test_set())


def _heads(row: dict[str, Any]) -> str:
    return f"{row['heads']} head{'s' if row['heads'] > 1 else ''} of rank {row['qk_rank']}"
