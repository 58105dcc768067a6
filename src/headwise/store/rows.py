"""What claims, studies and comparisons share: cells of a grid, their finished runs as rows, trials of learning rates.

No torch here.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headwise.cost import kv_bytes_per_token
from headwise.spec import SpecError
from headwise.store.store import Store
from headwise.training.run import Execution, Run, RunResult

TRIAL_SEED = 1000  # no preset has so many seeds


@dataclass(frozen=True)
class Row:
    """One finished run as a claim sees it: its cell and seed, its metrics, and (step, name, value) on the way there."""

    cell: dict[str, Any]
    seed: int
    metrics: dict[str, float]
    key: str
    history: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True)
class Cell:
    """A run and its place in the study's grid."""

    place: dict[str, Any]
    run: Run


def cell(rows: Iterable[Row], **place: Any) -> list[Row]:
    """The rows of one place of a grid."""
    return [row for row in rows if all(row.cell.get(name) == value for name, value in place.items())]


def rows(cells: list[Cell], results: Mapping[str, RunResult]) -> list[Row]:
    """The finished runs among the cells, as claims and charts read them; a diverged trial has an infinite error."""
    done = []
    for at in cells:
        result = results.get(at.run.cell_key)
        if result is not None and result.status == "done":
            history = tuple((step, name, value) for step, name, value in (*result.curve, *result.probes))
            done.append(Row(at.place, at.run.seed, {**result.metrics, **_facts(at.run, result)}, result.key, history))
        elif result is not None and result.status == "diverged" and "trial" in at.place:
            done.append(Row(at.place, at.run.seed, {"validation_error": math.inf}, result.key))
    return done


def _facts(run: Run, result: RunResult) -> dict[str, float]:
    """Cost and setting of a run, beside its metrics."""
    sizes = {"parameters": float(result.parameters), "heads": float(run.model_shape.layers[0].heads)}
    spent = {"flops": float(result.flops), "seconds": result.seconds, "learning_rate": run.recipe.learning_rate}
    spent |= {"kv_bytes_per_token": float(kv_bytes_per_token(run.model_shape, run.options))}
    return {**sizes, **spent, **({"latency": result.latency} if result.latency else {})}


def results_of(store: Store, cells: list[Cell]) -> dict[str, RunResult]:
    """Results by the key of a cell: a GPU's row counts as well as a laptop's.

    Rows on different data are never mixed: of a task's data sets, the one that most of the runs were done on counts,
    and of several such the newest.
    """
    keys = {cell.run.cell_key for cell in cells}
    by_data: dict[tuple[str, str], dict[str, RunResult]] = {}
    for run, result in store.runs(asked=asked_for(cells)) if keys else ():
        if run.cell_key in keys:
            same = by_data.setdefault((run.task["name"], run.content), {})
            if run.cell_key not in same or run.execution == Execution():
                same[run.cell_key] = result
    largest: dict[str, dict[str, RunResult]] = {}
    for (task, _), same in by_data.items():
        largest[task] = max(same, largest.get(task, {}), key=len)
    chosen = {key: result for same in largest.values() for key, result in same.items()}
    return dict(zip(chosen, store.with_points(chosen.values()), strict=True))


def asked_for(cells: Iterable[Cell]) -> dict[str, set[str | int]]:
    """What finds the runs of these cells by the store's index, and few others."""
    runs = [cell.run for cell in cells]
    fields = {"task.name": {run.task["name"] for run in runs}, "shape": {run.shape for run in runs}}
    return fields | {"steps": {run.steps for run in runs}, "seed": {run.seed for run in runs}}


def at_rates(run: Run, rates: Iterable[float]) -> list[Run]:
    """Trials of learning rates, each a whole schedule, with a seed that no comparison uses."""
    return [at_rate(run, rate).replace(seed=TRIAL_SEED) for rate in rates]


def at_rate(run: Run, rate: float) -> Run:
    return run.replace(recipe=run.recipe.replace(learning_rate=rate))


def best_rate(trials: list[Run], store: Store) -> float:
    """Of runs that differ in their learning rate, the learning rate with the least validation error."""
    errors = {}
    for run in trials:
        stored = store.get(run.key)
        errors[run.recipe.learning_rate] = stored[1].validation_error if stored else math.inf
    if min(errors.values()) == math.inf:
        raise SpecError(f"no run finished with learning rate {', '.join(map(str, errors))}; try lower ones")
    return min(errors, key=lambda rate: errors[rate])
