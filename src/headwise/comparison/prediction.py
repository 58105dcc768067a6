"""What loss a shape is predicted to end at, before it is trained; where no law reaches, what others published instead.

A shape that is a rung of a ladder (one variant at several sizes, trained alike) is predicted by that variant's own law,

    log loss = a − b · log parameters,

by least squares with its covariance: the interval is for a new size, and widens with the distance from the rungs. Any
other shape is predicted by the fitted law of all shapes (`ledger.law`). Beyond a factor of 30 in parameters from the
runs no law gives a number. A prediction is of the runs' own data, tokenizer, batch and context, which it names.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from headwise.comparison.evidence.rows import EvidenceRow, published
from headwise.comparison.evidence.weigh import distance
from headwise.cost import parameters
from headwise.known import find
from headwise.ledger.law import LEAST_POINTS, Law, Prediction, families_left_out, features, fit
from headwise.ledger.statistics import LEVEL, t_quantile
from headwise.ledger.study import study_rows
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened
from headwise.store.rows import Row, cell
from headwise.store.store import Store
from headwise.studies.predict_the_trade import LEAST_RUNGS, PRESETS, STUDY, points, rung

FARTHEST = 30.0  # times the largest, or a part of the smallest, model that a law was fitted to
NEAREST = 5
ROUNDING = 1e-9


@dataclass(frozen=True)
class VariantLaw:
    """The law of one variant: a line through its rungs in logarithms, with what its covariance needs."""

    name: str
    sizes: tuple[float, ...]  # logarithms
    level: float
    slope: float
    spread: float

    def predict(self, size: int) -> Prediction:
        """The loss at a new size."""
        at, count = math.log(size), len(self.sizes)
        middle = mean(self.sizes)
        around = sum((one - middle) ** 2 for one in self.sizes)
        error = self.spread * math.sqrt(1 + 1 / count + (at - middle) ** 2 / around)
        half = t_quantile(count - 2, LEVEL) * error
        value, low, high = (math.exp(self.level + self.slope * (at - middle) + by) for by in (0.0, -half, half))
        least, most = (math.exp(end) for end in (min(self.sizes), max(self.sizes)))
        beyond = f"parameters {size:,}, the ladder has {least:,.0f} to {most:,.0f}"
        within = _beyond(self.sizes, at) <= 1 + ROUNDING
        return Prediction(value, low, high, () if within else (beyond,))


def fit_variant(name: str, rungs: Sequence[tuple[int, float]]) -> VariantLaw:
    """From parameters and losses, three sizes or more."""
    sizes, logs = np.log([size for size, _ in rungs]), np.log([loss for _, loss in rungs])
    slope = float(((sizes - sizes.mean()) * logs).sum() / np.square(sizes - sizes.mean()).sum())
    rest = logs - logs.mean() - slope * (sizes - sizes.mean())
    spread = math.sqrt(float(np.square(rest).sum()) / (len(rungs) - 2))
    return VariantLaw(name, tuple(map(float, sizes)), float(logs.mean()), slope, spread)


@dataclass(frozen=True)
class PredictedLoss(Shown):
    """A predicted final loss with its interval, or the published rows nearest in scale where no law reaches."""

    shape: str
    task: str
    steps: int
    law: str  # which one, and what it was fitted to
    trained: str  # data, tokenizer, batch and context of the runs
    prediction: Prediction | None
    points: int  # shapes, or sizes, that the law was fitted to
    families_left_out: dict[str, float]  # the relative error for each family of shapes, predicted from the others
    beyond: float  # times the parameters lie outside those of the runs; 1 within
    nearest: tuple[EvidenceRow, ...] = ()

    @property
    def loss(self) -> float | None:
        """In bits per byte; None where no law reaches."""
        return self.prediction.value if self.prediction else None

    @property
    def outside(self) -> tuple[str, ...]:
        return self.prediction.outside if self.prediction else ()

    @property
    def level(self) -> float:
        """The share of new shapes that the interval is for."""
        return LEVEL

    @property
    def headline(self) -> str:
        if self.prediction is None:
            far = f"its parameters are {self.beyond:,.0f} times those of any run"
            return f"No number for {self.shape}: {far}, and a law reaches {FARTHEST:.0f} times at most"
        at = self.prediction
        trust = f"; not to be trusted: {'; '.join(self.outside)}" if self.outside else ""
        return f"{at.value:.3f} bits per byte ({at.low:.3f} to {at.high:.3f}, {LEVEL:.0%} of new shapes){trust}"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise predict --json` prints."""
        asked = {"shape": self.shape, "task": self.task, "steps": self.steps, "loss": self.loss}
        known = self.prediction.as_dict() if self.prediction else {"low": None, "high": None, "outside": []}
        fitted = {"level": LEVEL, "points": self.points, "families_left_out": self.families_left_out}
        about = {"law": self.law, "trained": self.trained, "beyond": self.beyond}
        return {**asked, **known, **fitted, **about, "evidence": [row.as_dict() for row in self.nearest]}

    def records(self) -> list[dict[str, Any]]:
        nested = ("families_left_out", "evidence")
        return [{name: value for name, value in self.as_dict().items() if name not in nested}]


def predict(
    shape: str, steps: int, *, task: str = "text", store: StoreLike = None, results: str | Path | None = None
) -> PredictedLoss:
    """The loss that a shape is predicted to end at after so many steps, with its interval.

    The laws are fitted to the runs of the study predict-the-trade that the store holds, or exported files at `results`,
    or the results that are shipped. Beyond a factor of 30 in parameters there is no number.
    """
    if task != "text":
        instead = "headwise compare measures shapes on any task"
        raise SpecError(f"the law is fitted to runs of text, on the data that they had, and not of '{task}'; {instead}")
    asked = find(shape).shape
    with opened(store, results, shipped=True) as source:
        preset, rows = _runs(source)
        trained = _trained(source, rows)
    law, size = fit(points(rows)), parameters(asked, ModelOptions())["body"]
    sizes = [math.log(parameters(point.shape, ModelOptions())["body"]) for point in law.points]
    beyond = _beyond(sizes, math.log(size))
    families = families_left_out(law.points)
    if beyond > FARTHEST:
        quality = (row for row in published() if row.kind == "quality")
        rows_near = tuple(sorted(quality, key=lambda row: distance(row, size))[:NEAREST])
        return PredictedLoss(str(asked), task, steps, _of_all(law), trained, None, len(law.points), families, beyond,
                             rows_near)  # fmt: skip
    own = _variant(asked, steps, preset, rows)
    if own is None:
        said = law.predict(asked, steps)
        return PredictedLoss(str(asked), task, steps, _of_all(law), trained, said, len(law.points), families, beyond)
    name = f"of the variant '{own.name}', fitted to its {len(own.sizes)} sizes"
    count = len(own.sizes)
    return PredictedLoss(str(asked), task, steps, name, trained, own.predict(size), count, families, beyond)


def law_in_numbers(source: Store) -> dict[str, Any] | None:
    """The law of all shapes as plain data, for a page that computes with it; None where there are too few runs."""
    try:
        preset, rows = _runs(source)
    except SpecError:
        return None
    return in_numbers(fit(points(rows)), PRESETS[preset].steps) | {"trained": _trained(source, rows)}


def in_numbers(law: Law, steps: int) -> dict[str, Any]:
    """A law as plain data, for models that train for so many steps."""
    known = [features(point.shape, point.steps) for point in law.points]
    within = {name: {"low": min(at[name] for at in known), "high": max(at[name] for at in known)} for name in known[0]}
    numbers = {name: getattr(law, name).tolist() for name in ("centre", "scale", "slopes", "cover")}
    about = {"steps": steps, "points": len(law.points), "level": LEVEL, "quantile": t_quantile(law.freedom, LEVEL)}
    about |= {"farthest": FARTHEST, "within": within, "names": list(law.names), "floor": float(law.floor)}
    return {**numbers, **about, "spread": law.spread, "farthest_leverage": law.farthest}


def _of_all(law: Law) -> str:
    return f"of all shapes, fitted to {len(law.points)}"


def _runs(source: Store) -> tuple[str, list[Row]]:
    """The largest preset with enough runs."""
    for preset in ("paper", "laptop"):
        rows = study_rows(STUDY, preset, source)
        if len(points(rows)) >= LEAST_POINTS:
            return preset, rows
    remedy = "headwise study run predict-the-trade --preset laptop makes them"
    raise SpecError(f"there are no runs here that a law could be fitted to; {remedy}")


def _variant(shape: ModelShape, steps: int, preset: str, rows: list[Row]) -> VariantLaw | None:
    """The law of the ladder that the shape is a rung of, trained for as many steps; None where there is no such."""
    ladder = PRESETS[preset].ladder
    if steps != PRESETS[preset].steps or shape.width % ladder.head:
        return None
    name = next((kind for kind, one in rung(ladder, shape.width).items() if one == shape), None)
    losses: dict[int, list[float]] = {}
    for row in cell(rows, part="ladder", kind=name) if name else ():
        size = parameters(ModelShape.parse(row.cell["shape"]), ModelOptions())["body"]
        losses.setdefault(size, []).append(row.metrics["error"])
    rungs = [(size, mean(some)) for size, some in sorted(losses.items())]
    return fit_variant(name, rungs) if name and len(rungs) >= LEAST_RUNGS else None


def _beyond(sizes: Sequence[float], at: float) -> float:
    """How many times a size lies outside others; logarithms."""
    return math.exp(max(at - max(sizes), min(sizes) - at, 0.0))


def _trained(source: Store, rows: list[Row]) -> str:
    """Data, tokenizer, batch and context of the runs behind a law."""
    stored = next(pair[0] for row in rows if (pair := source.get(row.key)))
    task = stored.task
    data = Path(task["source"]).name if task.get("source") else "Python's standard library"
    tokens = f"{task.get('tokenizer') or 'bytes'}, context {task['context']}, batch {stored.recipe.batch}"
    return f"{data}, {tokens}, {stored.options.family} with {stored.options.positions} positions"
