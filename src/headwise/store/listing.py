"""What a store holds, as calls: list runs, show one, join other stores, write them to a file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from textwrap import indent as text_indent
from typing import Any

from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened
from headwise.store.store import Merged
from headwise.training.run import Run, RunResult

SHORTEST_KEY = 6


@dataclass(frozen=True)
class StoredRun(Shown):
    """A run of the store: its spec and its result."""

    run: Run
    result: RunResult

    @property
    def headline(self) -> str:
        return f"run {self.result.key}: {self.result.status}, {self.run.shape} on {self.run.task['name']}"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise runs show --json` prints."""
        return {**self.run.model_dump(), **self.result.as_dict()}

    def records(self) -> list[dict[str, Any]]:
        return [{"metric": name, "value": value} for name, value in self.result.metrics.items()]


@dataclass(frozen=True)
class RunList(Shown):
    """Runs of a store: iterate over them, or look at the table."""

    runs: tuple[StoredRun, ...]
    total: int  # of the store, of that status and task: more than there are here where a limit was given
    key_digits: int  # how many first digits tell a key from all others of the store

    def __iter__(self) -> Iterator[StoredRun]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def headline(self) -> str:
        return f"{len(self)} runs" if len(self) == self.total else f"the newest {len(self)} of {self.total:,} runs"

    def as_dict(self) -> list[Any]:
        """What `headwise runs --json` prints."""
        return [stored.as_dict() for stored in self.runs]

    def to_json(self, indent: int | None = 2) -> str:
        """The same text, made one run at a time: all at once, those of a large store take twice the memory."""
        texts = [stored.to_json(indent) for stored in self.runs]
        if indent is None or not texts:
            return f"[{', '.join(texts)}]"
        return "[\n" + ",\n".join(text_indent(text, " " * indent) for text in texts) + "\n]"

    def records(self) -> list[dict[str, Any]]:
        """One row per run: key, status, task, shape, steps, seed and its metrics."""
        return [
            {"key": result.key, "status": result.status, "task": run.task["name"], "shape": run.shape}
            | {"steps": run.steps, "seed": run.seed, **result.metrics}
            for run, result in ((stored.run, stored.result) for stored in self.runs)
        ]


def runs(
    store: StoreLike = None,
    *,
    status: str = "",
    task: str = "",
    results: str | Path | None = None,
    limit: int = 0,
) -> RunList:
    """What the store (or exported files at `results`) holds: all, or one status (done, diverged, failed) or task.

    With a `limit`, the newest of them; a store may hold more than one wants to read.
    """
    with opened(store, results) as source:
        asked: dict[str, Any] = {"status": status or None, "task": task or None}
        listed = tuple(StoredRun(*pair) for pair in source.runs(**asked, newest=limit))
        return RunList(listed, source.count(**asked), telling_digits(source.keys()))


def telling_digits(keys: list[str]) -> int:
    """How many first digits make the keys, which are in order, differ; at least so many that they look like keys."""
    return next(n for n in count(SHORTEST_KEY) if all(one[:n] != other[:n] for one, other in pairwise(keys)))


def find_run(key: str, store: StoreLike = None) -> StoredRun:
    """One run, by its key or the beginning of it."""
    with opened(store) as source:
        pair = source.get(key)
    if pair is None:
        raise SpecError(f"no run {key} in this store; headwise runs lists them")
    return StoredRun(*pair)


def merge_runs(files: Iterable[str | Path], store: StoreLike = None) -> Merged:
    """Join other stores, or exported files, into this one by key; how many were new."""
    with opened(store) as source:
        return source.merge(files)


@dataclass(frozen=True)
class Removed(Shown):
    """The keys of the runs that were taken out of a store; None for a row that had none."""

    keys: tuple[str | None, ...]

    @property
    def headline(self) -> str:
        return f"{len(self.keys)} runs removed"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise runs remove --json` prints."""
        return {"removed": list(self.keys)}

    def records(self) -> list[dict[str, Any]]:
        return [{"key": key} for key in self.keys]


def remove_runs(keys: Iterable[str] = (), store: StoreLike = None, *, unreadable: bool = False) -> Removed:
    """Take runs out of the store, by key or the beginning of it; with `unreadable`, also rows that cannot be read."""
    keys = list(keys)
    if not keys and not unreadable:
        raise SpecError("give the key of a run, or --unreadable for rows that cannot be read")
    with opened(store) as source:
        return Removed(tuple(source.remove(keys, unreadable=unreadable)))


def export_runs(path: str | Path, store: StoreLike = None) -> Path:
    """Write the store's runs: .jsonl.xz or .parquet (everything), .csv (a table)."""
    with opened(store) as source:
        return source.export(path)
