"""Mirroring curves to a tracker: one small hook, which anyone can implement for another.

A tracker is a function of (run, result); it is called in the driver when a run ends. The store stays the one home of
results: a tracker is a copy for looking at.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headwise.spec import SpecError
from headwise.sweep.plan import Watch
from headwise.training.run import Run, RunResult

Tracker = Callable[[Run, RunResult], None]


@contextmanager
def tracker(name: str, project: str, watch: Watch) -> Iterator[Watch]:
    """The watch, and beside it the tracker of that name ('' for none)."""
    if not name:
        yield watch
        return
    if name not in TRACKERS:
        raise SpecError(f"no tracker '{name}'; there are {', '.join(TRACKERS)}")
    try:
        mirror = TRACKERS[name](project)
    except ImportError:
        raise SpecError(f"--track {name} needs its package: pip install 'headwise[track]'") from None

    def both(run: Run, result: RunResult) -> None:
        watch.on_end(run, result)
        mirror(run, result)

    yield replace(watch, on_end=both)


def _tensorboard(project: str) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    def mirror(run: Run, result: RunResult) -> None:
        writer: Any = SummaryWriter(f"runs/{project}/{run.key}")
        for step, name, value in result.curve:
            writer.add_scalar(name, value, step)
        writer.close()

    return mirror


def _wandb(project: str) -> Tracker:
    import wandb

    def mirror(run: Run, result: RunResult) -> None:
        session = wandb.init(project=f"headwise-{project}", id=run.key, config=run.model_dump(), reinit=True)
        for step, name, value in result.curve:
            session.log({name: value}, step=step)
        session.finish()

    return mirror


TRACKERS: dict[str, Callable[[str], Tracker]] = {"tensorboard": _tensorboard, "wandb": _wandb}
