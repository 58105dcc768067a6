"""A fitted scaling law: the predicted final loss of a shape after so many steps, from runs of other shapes.

    loss = floor + exp(b₀ + Σ bᵢ · log featureᵢ)

One point per shape and number of steps, the mean of its seeds: seeds differ by little compared with the law's
error for a shape, and counting them as points would make its intervals too narrow. Size (parameters and steps) is
fitted freely, the rest is shrunk (ridge): a dozen shapes do not tell parameters from depth cleanly, so the law departs
from one of size only as far as the points ask for. Penalty and floor are those that predict each point best from the
others. Intervals are for a new point: t, with its leverage. They know the scatter of the points, not how uncertain the
floor is nor whether the law bends beyond them, so a prediction says which of its features lie outside: there it may be
far too narrow. No torch here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import Any

import numpy as np

from headwise.cost import parameters
from headwise.ledger.statistics import LEVEL, t_quantile
from headwise.options import ModelOptions
from headwise.shape import AttentionShape, ModelShape
from headwise.spec import SpecError

FEATURES = ("parameters", "steps", "depth", "heads", "qk_rank", "mlp")
SIZE = ("parameters", "steps")  # what is known without looking at the shape
FLOORS = tuple(part / 20 for part in range(19))  # of the least loss
RIDGE_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)  # in points: 1 weighs as much as one point one deviation from the mean
LEAST_POINTS = len(FEATURES) + 3  # the constant, the floor, and one to have a spread


@dataclass(frozen=True)
class LossPoint:
    """The final loss of a shape, the mean of its seeds."""

    shape: ModelShape
    steps: int
    loss: float


@dataclass(frozen=True)
class Prediction:
    """A loss with its interval; `outside` says in what it lies beyond the runs, if it does."""

    value: float
    low: float
    high: float
    outside: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "outside": list(self.outside)}


def features(shape: ModelShape, steps: int) -> dict[str, float]:
    """What the law sees: the body's parameters, steps, and the shape's own numbers, means where layers differ."""
    layers, mlp = shape.layers, mean(shape.mlps)
    if not mlp or not steps:
        raise SpecError(
            f"the law knows only models with an MLP, trained some steps; {shape} for {steps} steps is not one"
        )
    sizes = {"parameters": parameters(shape, ModelOptions())["body"], "steps": steps, "depth": shape.depth}
    ranks = {"heads": mean(layer.heads for layer in layers), "qk_rank": mean(layer.qk_rank for layer in layers)}
    return {**sizes, **ranks, "mlp": mlp}


@dataclass(frozen=True, eq=False)
class Law:
    """A fitted law; `cover` is the inverse that leverages are read from, in standardised features with a constant."""

    names: tuple[str, ...]
    points: tuple[LossPoint, ...]
    floor: float
    penalty: float
    centre: Any
    scale: Any
    slopes: Any
    cover: Any
    spread: float
    freedom: float

    def loss(self, shape: ModelShape, steps: int) -> float:
        return self.floor + math.exp(self._row(shape, steps) @ self.slopes)

    def predict(self, shape: ModelShape, steps: int, level: float = LEVEL) -> Prediction:
        """The loss of a run that was not done."""
        at = self._row(shape, steps)
        half = t_quantile(self.freedom, level) * self.spread * math.sqrt(1 + self._leverage(at))
        value, low, high = (self.floor + math.exp(at @ self.slopes + by) for by in (0.0, -half, half))
        return Prediction(value, low, high, self.outside(shape, steps))

    def outside(self, shape: ModelShape, steps: int) -> tuple[str, ...]:
        """Which features lie outside those of the runs, or their combination if none does; and what is no feature."""
        known = [features(point.shape, point.steps) for point in self.points]
        reasons = []
        for name, value in features(shape, steps).items():
            low, high = min(at[name] for at in known), max(at[name] for at in known)
            if not low <= value <= high:
                reasons.append(f"{name} {value:,.10g}, runs have {low:,.10g} to {high:,.10g}")
        if not reasons and self._leverage(self._row(shape, steps)) > self.farthest:
            reasons.append("no feature alone, but their combination is farther from the runs than any of these is")
        return (*reasons, *_unseen(shape))

    @property
    def farthest(self) -> float:
        """The leverage of the run that is least like the others."""
        return max(self._leverage(self._row(point.shape, point.steps)) for point in self.points)

    def _row(self, shape: ModelShape, steps: int) -> Any:
        return np.concatenate([[1.0], (_logs(self.names, shape, steps) - self.centre) / self.scale])

    def _leverage(self, row: Any) -> float:
        return float(row @ self.cover @ row)


def fit(points: Iterable[LossPoint], names: Sequence[str] = FEATURES) -> Law:
    """The scaling law fitted to some points: floor and penalty by leave-one-out, slopes by least squares."""
    known = tuple(points)
    logs = np.array([_logs(names, point.shape, point.steps) for point in known])
    losses = np.array([point.loss for point in known])
    if len(known) < LEAST_POINTS:
        raise SpecError(f"a law needs runs of {LEAST_POINTS} shapes or more, not {len(known)}")
    centre, scale = logs.mean(0), logs.std(0)
    scale = np.where(scale > 1e-9, scale, 1.0)  # a feature in which all agree says nothing
    rows = np.column_stack([np.ones(len(known)), (logs - centre) / scale])
    shrunk = np.array([0.0, *(name not in SIZE for name in names)])
    tried = [
        (_left_out_error(rows, losses, part * losses.min(), penalty * shrunk), part * losses.min(), penalty)
        for part, penalty in product(FLOORS, RIDGE_PENALTIES)
    ]
    _, floor, penalty = min(tried)
    slopes, cover, used = _solve(rows, np.log(losses - floor), penalty * shrunk)
    freedom = len(known) - used - 1  # the floor is fitted too
    spread = math.sqrt(float(np.square(np.log(losses - floor) - rows @ slopes).sum()) / freedom)
    return Law(tuple(names), known, floor, penalty, centre, scale, slopes, cover, spread, freedom)


def _unseen(shape: ModelShape) -> list[str]:
    """What a shape has that the law does not look at: shared or compressed heads, values of a rank of their own."""
    names: dict[str, None] = {}
    for layer in dict.fromkeys(shape.layers):
        usual = AttentionShape(width=layer.width, heads=layer.heads, qk_rank=layer.qk_rank)
        names |= dict.fromkeys(name for name, value in usual.model_dump().items() if value != getattr(layer, name))
    return [f"{name}, which the law does not look at" for name in names]


def _logs(names: Sequence[str], shape: ModelShape, steps: int) -> Any:
    values = features(shape, steps)
    return np.log([values[name] for name in names])


def _solve(rows: Any, wanted: Any, penalties: Any) -> tuple[Any, Any, float]:
    """Ridge, a penalty per slope: slopes, the inverse for leverages, and how many numbers were fitted in effect."""
    cover = np.linalg.pinv(rows.T @ rows + np.diag(penalties), hermitian=True)
    return cover @ rows.T @ wanted, cover, float(np.trace(cover @ rows.T @ rows))


def _left_out_error(rows: Any, losses: Any, floor: float, penalties: Any) -> float:
    """Mean square of log loss, each point predicted from the others (in closed form, as for any linear smoother)."""
    wanted = np.log(losses - floor)
    slopes, cover, _ = _solve(rows, wanted, penalties)
    leverages = np.einsum("ij,jk,ik->i", rows, cover, rows)
    predicted = wanted - (wanted - rows @ slopes) / np.maximum(1 - leverages, 1e-9)
    with np.errstate(over="ignore"):
        return float(np.square(np.log(floor + np.exp(predicted)) - np.log(losses)).mean())


# ---- how good it is ------------------------------------------------------------------------------------------------


def predicted_losses(law: Law, points: Iterable[LossPoint]) -> list[float]:
    """Predicted losses of some points."""
    return [law.loss(point.shape, point.steps) for point in points]


def relative_error(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Root mean square of the differences of the logarithms."""
    return float(np.sqrt(np.square(np.log(measured) - np.log(predicted)).mean()))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's; ties share their ranks."""
    ranks = []
    for values in (np.asarray(first), np.asarray(second)):
        ranks.append((values[:, None] > values).sum(1) + ((values[:, None] == values).sum(1) - 1) / 2)
    return float(np.corrcoef(*ranks)[0, 1])
