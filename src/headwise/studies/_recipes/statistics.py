"""What several studies read off their rows: effects of rank, costs of a change, condition numbers of a history."""

import math
from statistics import fmean
from typing import Any

from headwise.store.rows import Row, cell
from headwise.training.run import ProbeName

HEADS_KAPPA: ProbeName = "heads-condition"
LARGEST = 2.0**23  # float32, in which models are trained, cannot tell a larger κ from an infinite one
SEEN = 0.01  # recall errors below this are alike

Sides = tuple[list[Row], list[Row]]


def half_and_full(rows: list[Row], **place: Any) -> Sides:
    """The rows of a place at half and at full rank."""
    full = int(rows[0].cell["dim"])  # rows may still lack it
    return cell(rows, rank=full // 2, **place), cell(rows, rank=full, **place)


def worse(rows: list[Row], task: str, base: dict[str, Any], changed: dict[str, Any]) -> dict[int, float]:
    """By seed: the error of one place over that of another."""
    before = {row.seed: row for row in cell(rows, task=task, **base)}
    after = {row.seed: row for row in cell(rows, task=task, **changed)}
    least = SEEN if task == "recall" else 0.0
    both = before.keys() & after.keys()
    seen = {seed: [max(row[seed].metrics["error"], least) for row in (after, before)] for seed in both}
    return {seed: worse / better for seed, (worse, better) in seen.items()}


def keys_of(rows: list[Row]) -> tuple[str, ...]:
    """The runs behind rows."""
    return tuple(row.key for row in rows)


def kappa(row: Row, probe: str, first: float = 1.0, last: float = 1.0, most: float = math.inf) -> float:
    """The geometric mean, over layers and over the evaluations between two parts of training, of a probe's values.

    Of a single part, the evaluation nearest to it. A value counts as `most` at most, which is for matrices that were
    singular: their κ is infinite. NaN where nothing was probed.
    """
    values = [(step, value) for step, name, value in row.history if name.startswith(f"{probe}.")]
    if not values:
        return math.nan
    steps = sorted({step for step, _ in values})
    begin, end = (min(steps, key=lambda step: abs(step - part * steps[-1])) for part in (first, last))
    return math.exp(fmean(math.log(min(value, most)) for step, value in values if begin <= step <= end))
