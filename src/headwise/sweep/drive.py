"""Doing the runs that the store lacks, here or on a Ray cluster."""

import signal
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwise.store.store import Store
from headwise.sweep.plan import Stopped, Summary, Watch, make_plan
from headwise.sweep.resolve import compile_kernels
from headwise.sweep.sharing import Sharing
from headwise.training.run import Run, RunResult


@dataclass(frozen=True)
class Stamped:
    """A store that is told of each result what it was done for."""

    store: Store
    registration: str

    def finished(self, keys: Iterable[str]) -> set[str]:
        return self.store.finished(keys)

    def add(self, run: Run, result: RunResult) -> bool:
        return self.store.add(run, replace(result, registration=self.registration))


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
    registration: str = "",
) -> Summary:
    """Do what the store lacks, here or on a Ray cluster. Ctrl-C and SIGTERM save checkpoints, then raise `Stopped`.

    Several drivers on one store share the runs; each returns when all are in it. Results are stored with the
    `registration` that they were done for.
    """
    plan, into = make_plan(runs, store, shard), Stamped(store, registration)
    weights = folder / "weights" if keep_weights else None
    with stoppable(watch or Watch()) as watching:
        settings: dict[str, Any] = {"weights": weights, "watch": watching, "checkpoint_seconds": checkpoint_seconds}
        settings |= {"checkpoints": folder / "checkpoints"}
        if ray_address is None:
            from headwise.sweep import local

            compile_kernels(plan.todo, watching)
            with closing(Sharing(store)) as sharing:
                summary = local.sweep(plan, into, workers=workers, sharing=sharing, **settings)
        else:
            from headwise.sweep import ray_cluster

            with closing(Sharing(store)) as sharing:
                summary = ray_cluster.sweep(plan, into, address=ray_address, sharing=sharing, **settings)
        if watching.stop_asked():
            raise Stopped(summary)
        return summary


@contextmanager
def stoppable(watch: Watch) -> Iterator[Watch]:
    """Count Ctrl-C and SIGTERM instead of dying of them: one asks runs to checkpoint, two stop now."""
    asked = [0]

    def count(number: int, frame: Any) -> None:
        asked[0] += 1

    kinds = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {kind: signal.signal(kind, count) for kind in kinds}
    except ValueError:  # not the main thread: signals are handled elsewhere
        yield watch
        return
    try:
        yield replace(watch, stop_asked=lambda: asked[0])
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
