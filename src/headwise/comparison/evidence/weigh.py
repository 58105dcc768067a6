"""What rows of evidence say together. The unit is the lab: all rows of one lab count as one.

A number (the mean of the labs' mean changes of the loss, with a t-interval over labs) is given from five labs on; below
that the rows are listed instead. Nearly all rows are one seed, so the spread between labs is the only one there is, and
it is never taken for less than the noise of a single run. Benchmarks give a direction and no number; speed is no
quality. Directions are counted by lab, half a lab added to each, so that none is ruled out by a few.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean, stdev
from typing import Any

from headwise.comparison.evidence.rows import EFFECTS, NOISE_LOSS, OPPOSITE, OWN, Dose, Effect, EvidenceRow
from headwise.ledger.statistics import LEVEL, t_quantile

LEAST_LABS = 5
LEAST_DECADES = 2.0
PRIOR = 0.5  # of a lab, to each direction


@dataclass(frozen=True)
class Interval:
    """An estimate and where it may lie."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Weighed:
    """What rows say of more, or of less, of a knob. Changes of the loss are positive where it is worse."""

    rows: tuple[EvidenceRow, ...]
    knob: str
    labs: int
    loss_labs: int  # those that measured a loss, and not a benchmark alone
    change: Interval | None
    trend: Interval | None  # of that change, for ten times the parameters
    directions: dict[Effect, float]  # labs

    @property
    def scales(self) -> tuple[int, int] | None:
        sizes = [row.scale for row in self.rows if row.scale]
        return (min(sizes), max(sizes)) if sizes else None

    @property
    def shares(self) -> dict[Effect, float]:
        """The directions as probabilities, half a lab added to each."""
        return shares(self.directions)

    @property
    def conflict(self) -> dict[Effect, tuple[str, ...]]:
        """The labs on either side, where some found it better and some worse."""
        sides: dict[Effect, list[str]] = {"better": [], "worse": []}
        for lab, rows in by_lab(self.rows).items():
            votes = lab_votes(rows, self.knob)
            for side in sides:
                if votes[side] > 0.5:
                    sides[side].append(lab)
        return {side: tuple(labs) for side, labs in sides.items()} if all(sides.values()) else {}

    @property
    def within_noise(self) -> dict[Effect, tuple[str, ...]]:
        """Those labs of a conflict that found nothing on their side beyond the noise of one run."""
        labs = by_lab(self.rows)
        return {
            side: tuple(lab for lab in names if _all_noise(labs[lab], self.knob, side))
            for side, names in self.conflict.items()
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "knob": self.knob,
            "labs": self.labs,
            "loss_labs": self.loss_labs,
            "loss_change": self.change.as_dict() if self.change else None,
            "trend_per_decade": self.trend.as_dict() if self.trend else None,
            "directions": dict(self.directions),
            "scales": list(self.scales) if self.scales else None,
            "conflict": {side: list(labs) for side, labs in self.conflict.items()},
            "within_noise": {side: list(labs) for side, labs in self.within_noise.items()},
            "rows": [row.id for row in self.rows],
        }


def weigh(rows: Iterable[EvidenceRow], knob: str = "less") -> Weighed:
    """Rows of one family, seen from one side: what `knob` (less or more of it) does."""
    known = tuple(row for row in rows if row.effect and row.lab != OWN)
    labs = by_lab(known)
    directions = dict.fromkeys(EFFECTS, 0.0)
    for own in labs.values():
        for effect, vote in lab_votes(own, knob).items():
            directions[effect] += vote
    losses = {lab: [(change, row.scale) for row in own if (change := _change(row, knob)) is not None]
              for lab, own in labs.items()}  # fmt: skip
    means = {lab: mean(change for change, _ in pairs) for lab, pairs in losses.items() if pairs}
    sizes = {lab: mean(math.log10(size) for _, size in losses[lab] if size) for lab in means if _all_sized(losses[lab])}
    line = [(sizes[lab], means[lab]) for lab in sizes]
    return Weighed(known, knob, len(labs), len(means), _mean_of(list(means.values())), _trend_of(line), directions)


def select(
    rows: Iterable[EvidenceRow], family: str, *, refilled: bool | None = None, dose: Dose | None = None
) -> list[EvidenceRow]:
    """Rows of a family (or of an axis), of one kind of comparison, of one size of change."""
    return [
        row
        for row in rows
        if family in (row.family, row.axis)
        and (refilled is None or row.refilled == refilled)
        and (dose is None or row.dose == dose)
    ]


def by_lab(rows: Iterable[EvidenceRow]) -> dict[str, list[EvidenceRow]]:
    labs: dict[str, list[EvidenceRow]] = {}
    for row in rows:
        labs.setdefault(row.lab, []).append(row)
    return labs


def lab_votes(rows: Sequence[EvidenceRow], knob: str) -> dict[Effect, float]:
    """How one lab's rows divide, as parts of one."""
    votes = dict.fromkeys(EFFECTS, 0.0)
    for row in rows:
        if effect := _effect(row, knob):
            votes[effect] += 1 / len(rows)
    return votes


def shares(directions: dict[Effect, float]) -> dict[Effect, float]:
    total = sum(directions.values()) + PRIOR * len(EFFECTS)
    return {effect: (directions[effect] + PRIOR) / total for effect in EFFECTS}


def distance(row: EvidenceRow, parameters: int | None) -> float:
    """Decades between a row's models and another; two where a source does not say its size."""
    return abs(math.log10(row.scale / parameters)) if row.scale and parameters else 2.0


def _effect(row: EvidenceRow, knob: str) -> Effect | None:
    return row.effect if row.effect is None or row.knob == knob else OPPOSITE[row.effect]


def _all_noise(rows: Sequence[EvidenceRow], knob: str, side: Effect) -> bool:
    return all(row.within_noise for row in rows if _effect(row, knob) == side)


def _change(row: EvidenceRow, knob: str) -> float | None:
    change = row.loss_change
    return change if change is None or row.knob == knob else -change


def _all_sized(pairs: list[tuple[float, int | None]]) -> bool:
    return all(size for _, size in pairs)


def _mean_of(values: list[float]) -> Interval | None:
    if len(values) < LEAST_LABS:
        return None
    spread = max(stdev(values), NOISE_LOSS)
    half = t_quantile(len(values) - 1, LEVEL) * spread / math.sqrt(len(values))
    return Interval(mean(values), mean(values) - half, mean(values) + half)


def _trend_of(line: list[tuple[float, float]]) -> Interval | None:
    """The slope over labs, where they span two decades of parameters."""
    sizes = [size for size, _ in line]
    if len(line) < LEAST_LABS or max(sizes) - min(sizes) < LEAST_DECADES:
        return None
    changes = [change for _, change in line]
    slope, level = linear_regression(sizes, changes)
    rest = sum((change - level - slope * size) ** 2 for size, change in line) / (len(line) - 2)
    around = sum((size - mean(sizes)) ** 2 for size in sizes)
    half = t_quantile(len(line) - 2, LEVEL) * math.sqrt(max(rest, NOISE_LOSS**2) / around)
    return Interval(slope, slope - half, slope + half)
