"""Many runs: planned first, then done in processes of this machine or on a Ray cluster, each of them once.

    plan = make_plan(runs, store)          # what the store holds is not trained again
    summary = local.sweep(plan, store, checkpoints=folder)

Only the process that calls this writes the store; workers give their results back. A run whose worker dies goes on
from its checkpoint in another; one that fails is a row with its traceback, and the sweep goes on.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from headwise.activations import activation_bytes
from headwise.cost import parameters, training_flops
from headwise.spec import SpecError
from headwise.sweep.tokens import sample_tokens
from headwise.training.run import Point, Run, RunResult

DEATHS = 3  # a run whose process died so often has failed
STALLED_SECONDS = 900.0  # a run that makes no step for so long has failed


class ResultStore(Protocol):
    """What a sweep needs of a store."""

    def finished(self, keys: Iterable[str]) -> set[str]: ...

    def add(self, run: Run, result: RunResult) -> bool: ...


@dataclass(frozen=True)
class SweepPlan:
    """Runs still to do, longest first, and the keys of those already done."""

    todo: tuple[Run, ...]
    found: tuple[str, ...]

    @property
    def flops(self) -> int:
        return sum(work(run) for run in self.todo)


@dataclass
class Summary:
    """How a sweep ended."""

    planned: int = 0
    found: int = 0
    trained: int = 0
    diverged: int = 0
    failed: int = 0
    stopped: int = 0
    restarts: int = 0

    def as_dict(self) -> dict[str, int]:
        return dict(vars(self))

    def __add__(self, other: "Summary") -> "Summary":
        return Summary(**{name: count + getattr(other, name) for name, count in vars(self).items()})


class Stopped(KeyboardInterrupt):
    """A sweep was interrupted: what ended is in the store; `summary` counts it and what ran, which is in checkpoints
    or, where there are none, begins again."""

    def __init__(self, summary: Summary, checkpoints: bool = True) -> None:
        super().__init__(f"stopped; the same call goes on from the {'checkpoints' if checkpoints else 'store'}")
        self.summary, self.checkpoints = summary, checkpoints


@dataclass
class Watch:
    """What a sweep reports while it runs; the command line shows it."""

    on_compile: Callable[[int], None] = lambda kernels: None
    on_start: Callable[[Run], None] = lambda run: None
    on_step: Callable[[Run, int], None] = lambda run, step: None
    on_loss: Callable[[Run, float], None] = lambda run, loss: None  # of training, before on_step
    on_points: Callable[[Run, list[Point]], None] = lambda run, points: None  # of its curve, as they are measured
    on_part: Callable[[Run, float], None] = lambda run, part: None  # where steps are not known: how much is done
    on_end: Callable[[Run, RunResult], None] = lambda run, result: None
    stop_asked: Callable[[], int] = lambda: 0  # 1: checkpoint and stop; 2: stop now


def record(run: Run, result: RunResult, store: ResultStore, summary: Summary, watch: Watch) -> None:
    """A run has ended: stored first, then counted, then reported. Another driver may have been quicker."""
    if not store.add(run, result):
        summary.found += 1
        return watch.on_end(run, result)
    summary.trained += 1
    summary.diverged += result.status == "diverged"
    summary.failed += result.status == "failed"
    watch.on_end(run, result)


def make_plan(runs: Iterable[Run], store: ResultStore, shard: tuple[int, int] = (0, 1)) -> SweepPlan:
    """Each key once, without those the store holds; of n shards, shard i takes every n-th."""
    unique = {run.key: run for run in runs}
    index, count = shard
    mine = {key: unique[key] for key in sorted(unique)[index::count]}
    done = store.finished(mine)
    todo = sorted((run for key, run in mine.items() if key not in done), key=work, reverse=True)
    return SweepPlan(tuple(todo), tuple(sorted(done)))


def work(run: Run) -> int:
    """FLOPs of a run's training, as the price of its place in the queue."""
    return run.steps * run.recipe.batch * training_flops(run.model_shape, run.options, sample_tokens(run))


def memory(run: Run) -> int:
    """Bytes a run is expected to need: training state and the activations of one micro-batch."""
    state = 16 * parameters(run.model_shape, run.options)["total"]
    batch = -(-run.recipe.batch // run.recipe.micro_batches)
    return state + activation_bytes(run.model_shape, run.options, sample_tokens(run), batch)


def read_shard(text: str | None) -> tuple[int, int]:
    """'2/8' is shard 2 of 8, counted from 0; without text, a Slurm array says which."""
    if text is None:
        return _slurm_shard()
    try:
        index_text, count_text = text.split("/")
        shard = int(index_text), int(count_text)
    except ValueError:
        raise SpecError(f"cannot read the shard '{text}'; write 0/8 for the first of eight") from None
    if not 0 <= shard[0] < shard[1]:
        raise SpecError(f"shard {text} does not exist: they count from 0/{shard[1]} to {shard[1] - 1}/{shard[1]}")
    return shard


def _slurm_shard() -> tuple[int, int]:
    """From the variables of a Slurm array: an index that is not in the array would be a wrong part, and silently."""
    names = ("ID", "COUNT", "MIN", "MAX")
    given = {name: os.environ.get(f"SLURM_ARRAY_TASK_{name}", "") for name in names}
    if not given["ID"]:
        return 0, 1
    if not given["COUNT"]:
        raise SpecError("a Slurm array says which task this is, but not of how many; give --shard i/n")
    try:
        index, count, first = (int(given[name] or 0) for name in ("ID", "COUNT", "MIN"))
        last = int(given["MAX"] or first + count - 1)
    except ValueError:
        told = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise SpecError(f"cannot read the variables of a Slurm array ({told}); give --shard i/n") from None
    if last - first + 1 != count:
        raise SpecError("the shards of a Slurm array must follow each other; use --array=0-7, or give --shard i/n")
    if not first <= index <= last:
        raise SpecError(f"task {index} of a Slurm array is outside of it ({first} to {last}); give --shard i/n")
    return index - first, count
