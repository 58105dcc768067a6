"""Mirroring curves to a tracker while runs go on: one small hook, which anyone can implement for another.

A tracker opens a log for a run; the log is given points of the run's curve as they are measured, and is closed when the
run ends. All of it happens in the driver. The store stays the one home of results: a tracker is a copy for looking at.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from headwise.extras import extra
from headwise.spec import SpecError
from headwise.sweep.plan import Watch
from headwise.sweep.watching import Watching
from headwise.training.run import Point, Run, RunResult


class Log(Protocol):
    """One run in a tracker."""

    def add(self, points: list[Point]) -> None:
        """Show these points now."""

    def close(self, result: RunResult | None) -> None:
        """The run ended, or was interrupted (None)."""


Tracker = Callable[[Run], Log]
Opener = Callable[[str, str, dict[str, Any]], Log]  # name, key and settings of what is logged


def open_log(name: str, project: str, title: str, config: dict[str, Any]) -> Log:
    """A log of something that is no run, such as a model's healing."""
    key = hashlib.sha256(json.dumps([title, config], sort_keys=True).encode()).hexdigest()[:16]
    return _with_package(OPENERS, name, project)(title, key, config)


def _with_package(known: dict[str, Callable[[str], Any]], name: str, project: str) -> Any:
    if name not in known:
        raise SpecError(f"no tracker '{name}'; there are {', '.join(known)}")
    try:
        return known[name](project)
    except ImportError:
        raise SpecError(f"--track {name} needs its package: pip install 'headwise[track]'") from None


def _of_runs(opener: Opener) -> Tracker:
    return lambda run: opener(title(run), run.key, run.model_dump())


def tracked(watching: Watching, name: str, project: str) -> Watching:
    """How runs are shown, and beside it the tracker of that name ('' for none)."""
    if not name:
        return watching
    tracker: Tracker = _with_package(TRACKERS, name, project)

    @contextmanager
    def both(runs: list[Run], stage: str) -> Iterator[Watch]:
        with watching(runs, stage) as watch:
            mirror = _Mirror(tracker, watch)
            try:
                yield replace(watch, on_points=mirror.points, on_end=mirror.end)
            finally:
                mirror.close()

    return both


class _Mirror:
    """The logs of runs that have begun, each given every point once: a run that goes on tells all it had again."""

    def __init__(self, tracker: Tracker, watch: Watch) -> None:
        self.tracker, self.watch = tracker, watch
        self.logs: dict[str, Log] = {}
        self.told: dict[str, set[tuple[int, str]]] = defaultdict(set)

    def points(self, run: Run, points: list[Point]) -> None:
        self.watch.on_points(run, points)
        told = self.told[run.key]
        if new := [point for point in points if point[:2] not in told]:
            told.update(point[:2] for point in new)
            self._log(run).add(new)

    def end(self, run: Run, result: RunResult) -> None:
        self.watch.on_end(run, result)
        self.points(run, result.curve)  # those that were not heard of on the way
        self._log(run).close(result)
        del self.logs[run.key]

    def close(self) -> None:
        for log in self.logs.values():
            log.close(None)

    def _log(self, run: Run) -> Log:
        if run.key not in self.logs:
            self.logs[run.key] = self.tracker(run)
        return self.logs[run.key]


def title(run: Run) -> str:
    """A run among others, for people; its key makes it unique."""
    return f"{run.shape}-lr{run.recipe.learning_rate:g}-{run.steps}steps-seed{run.seed}-{run.key}"


# ---- TensorBoard ---------------------------------------------------------------------------------------------------


def _tensorboard(project: str) -> Opener:
    from torch.utils.tensorboard import SummaryWriter

    return lambda name, key, config: _Events(SummaryWriter(f"runs/{project}/{name}"))


class _Events:
    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def add(self, points: list[Point]) -> None:
        for step, name, value in points:
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, result: RunResult | None) -> None:
        self.writer.close()


# ---- Weights & Biases ----------------------------------------------------------------------------------------------


def _wandb(project: str) -> Opener:
    with extra("track", "curves at Weights & Biases"):
        import wandb

    def opened(name: str, key: str, config: dict[str, Any]) -> Log:
        names = {"project": f"headwise-{project}", "id": key, "name": name, "resume": "allow"}
        return _Session(wandb.init(**names, config=config, reinit="create_new"))  # several at once

    return opened


class _Session:
    def __init__(self, session: Any) -> None:
        self.session = session

    def add(self, points: list[Point]) -> None:
        for step in dict.fromkeys(step for step, _, _ in points):
            self.session.log({name: value for at, name, value in points if at == step}, step=step)

    def close(self, result: RunResult | None) -> None:
        self.session.summary.update(result.metrics if result else {})
        self.session.finish(0 if result and result.status != "failed" else 1)


OPENERS: dict[str, Callable[[str], Opener]] = {"tensorboard": _tensorboard, "wandb": _wandb}
TRACKERS: dict[str, Callable[[str], Tracker]] = {
    name: lambda project, opener=opener: _of_runs(opener(project))  # type: ignore[misc]
    for name, opener in OPENERS.items()
}
