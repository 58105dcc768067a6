"""What loss a shape is predicted to end at, before it is trained; where no law reaches, what others published instead.

The law is the registered ladder's (`studies/ladder`): each of its variants was trained at several sizes, alike and with
bytes in proportion to parameters, and has a line of its own,

    log loss = a + b · log parameters,

by least squares over sizes weighted by their seeds, with the covariance of a and b: an interval is for one run of a new
size, and widens with the distance from the rungs. It knows how the rungs scatter around the line, not whether the line
goes on. There is no number for a shape that is none of the variants, for another number of steps, beyond a factor of
30 in parameters, and where the store has no judged runs of the ladder.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headwise.comparison.evidence.rows import EvidenceRow, published
from headwise.comparison.evidence.weigh import distance
from headwise.cost import parameters
from headwise.known import find
from headwise.ledger.law import Prediction
from headwise.ledger.registration import Arm
from headwise.ledger.standing import registered_rows
from headwise.ledger.statistics import LEVEL, t_quantile
from headwise.shape import ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened
from headwise.store.rows import Row
from headwise.store.store import Store
from headwise.studies.ladder import BYTES_PER_PARAMETER, DESKTOP, OPTIONS, VARIANTS

FARTHEST = 30.0  # times the largest, or a part of the smallest, model that a law was fitted to
LEAST_RUNGS = 3  # sizes: a line, and one to have a spread
SAME_LENGTH = 0.02  # steps that differ by less are those of the ladder
NEAREST = 5
ROUNDING = 1e-9
COMMAND = "headwise study run ladder --preset desktop --data text=books.txt.xz"


@dataclass(frozen=True)
class Rung:
    """One size of a variant: parameters, the mean of the logarithms of its losses, and how many seeds that is of."""

    parameters: int
    log_loss: float
    seeds: int


@dataclass(frozen=True, eq=False)
class VariantLaw:
    """The law of one variant: a line through its rungs in logarithms, around `centre`."""

    name: str
    rungs: tuple[Rung, ...]
    centre: float
    coefficients: Any  # level at the centre, and slope
    covariance: Any  # of these two
    variance: float  # of one run around the line

    def predict(self, size: int) -> Prediction:
        """The loss of one run at a size."""
        at = np.array([1.0, math.log(size) - self.centre])
        error = math.sqrt(self.variance + float(at @ self.covariance @ at))
        half = t_quantile(len(self.rungs) - 2, LEVEL) * error
        value, low, high = (math.exp(float(at @ self.coefficients) + by) for by in (0.0, -half, half))
        sizes = [rung.parameters for rung in self.rungs]
        beyond = f"parameters {size:,}, the ladder has {min(sizes):,} to {max(sizes):,}"
        return Prediction(value, low, high, () if _beyond(sizes, size) <= 1 + ROUNDING else (beyond,))

    @property
    def about(self) -> str:
        """Which law this is, and what it was fitted to."""
        seeds = sum(rung.seeds for rung in self.rungs)
        return f"of the ladder's variant '{self.name}', fitted to {len(self.rungs)} sizes ({seeds} runs)"

    def in_numbers(self) -> dict[str, Any]:
        """As plain data."""
        sizes = [rung.parameters for rung in self.rungs]
        line = {name: getattr(self, name).tolist() for name in ("coefficients", "covariance")}
        line |= {"centre": self.centre, "variance": self.variance, "quantile": t_quantile(len(sizes) - 2, LEVEL)}
        return {**line, "least": min(sizes), "most": max(sizes), "about": self.about}


def fit_variant(name: str, rungs: Sequence[Rung]) -> VariantLaw:
    """By least squares, three sizes or more; a rung counts as often as it has seeds."""
    sizes, losses = np.log([one.parameters for one in rungs]), np.array([one.log_loss for one in rungs])
    weights = np.array([float(one.seeds) for one in rungs])
    centre = float(weights @ sizes / weights.sum())
    design = np.column_stack([np.ones(len(rungs)), sizes - centre])
    inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
    coefficients = inverse @ design.T @ (weights * losses)
    variance = float(weights @ np.square(losses - design @ coefficients)) / (len(rungs) - 2)
    return VariantLaw(name, tuple(rungs), centre, coefficients, variance * inverse, variance)


@dataclass(frozen=True)
class PredictedLoss(Shown):
    """A predicted final loss with its interval; or why there is none, and the published rows nearest in scale."""

    shape: str
    task: str
    steps: int  # as the ladder trains a model of that size; 0 where the shape is none of its variants
    law: str = ""  # which one, and what it was fitted to
    trained: str = ""  # data, tokenizer, batch and context of the runs
    prediction: Prediction | None = None
    points: int = 0  # sizes that the law was fitted to
    beyond: float | None = None  # times the parameters lie outside those of the runs; 1 within
    why_not: str = ""  # why there is no number
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
        """The share of new runs that the interval is for."""
        return LEVEL

    @property
    def headline(self) -> str:
        if self.prediction is None:
            return f"No number for {self.shape}: {self.why_not}"
        at = self.prediction
        trust = f"; carried on beyond the runs: {'; '.join(self.outside)}" if self.outside else ""
        return f"{at.value:.3f} bits per byte ({at.low:.3f} to {at.high:.3f}, {LEVEL:.0%} of new runs){trust}"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise predict --json` prints."""
        asked = {"shape": self.shape, "task": self.task, "steps": self.steps, "loss": self.loss}
        known = self.prediction.as_dict() if self.prediction else {"low": None, "high": None, "outside": []}
        about = {"level": LEVEL, "points": self.points, "law": self.law, "trained": self.trained}
        about |= {"beyond": self.beyond, "why_not": self.why_not}
        return {**asked, **known, **about, "evidence": [row.as_dict() for row in self.nearest]}

    def records(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in self.as_dict().items() if name != "evidence"}]


def predict(
    shape: str, steps: int = 0, *, task: str = "text", store: StoreLike = None, results: str | Path | None = None
) -> PredictedLoss:
    """The loss that a shape is predicted to end at with its interval, trained as the ladder trains that size.

    The laws are fitted to the judged runs of the registered study `ladder` that the store holds, or exported files at
    `results`, or the results that are shipped; without such runs there is no number. Steps, if given, must be those of
    the ladder, which has 10 bytes per parameter.
    """
    if task != "text":
        instead = "headwise compare measures shapes on any task"
        raise SpecError(f"the law is fitted to runs of text, on the data that they had, and not of '{task}'; {instead}")
    known = find(shape)
    arm = _as_rung(known.shape)
    with opened(store, results, shipped=True) as source:
        rows = registered_rows(source, DESKTOP)
        said = _predicted(arm, steps, rows) if arm else None
        trained = _trained_on(source, rows)
    if said is None:
        said = PredictedLoss(str(known.shape), task, 0, why_not=_no_variant() if rows else _no_runs())
    if said.prediction:
        return replace(said, trained=trained)
    size = parameters(known.shape, known.options)["total"]
    quality = (row for row in published() if row.effect and row.scale)
    nearest = tuple(sorted(quality, key=lambda row: distance(row, size))[:NEAREST])
    return replace(said, trained=trained, nearest=nearest)


def ladder_in_numbers(source: Store) -> dict[str, Any]:
    """The ladder's laws as plain data, for a page that computes what `predict` says."""
    rows = registered_rows(source, DESKTOP)
    variants = []
    for name, letters in VARIANTS.items():
        few = _too_few(name, rungs := _rungs(name, rows))
        law = None if few else fit_variant(name, rungs).in_numbers()
        variants.append({"name": name, "letters": _written(letters), "why_not": few, "law": law})
    return {
        "variants": variants,
        "none": "" if rows else _no_runs(),
        "others": _no_variant(),
        "options": OPTIONS.model_dump(),
        "trained": _trained_on(source, rows),
        "level": LEVEL,
        "farthest": FARTHEST,
    }


def _written(letters: str) -> tuple[str, str]:
    """The part of a variant's heads that turns need not be written."""
    return letters, letters.replace("-p4", "")


def _as_rung(shape: ModelShape) -> Arm | None:
    """The ladder's variant that a shape is, at its width."""
    for name, letters in VARIANTS.items():
        arm = next(one for one in DESKTOP.arms if one.variant == name)
        try:
            own, plain = (ModelShape.parse(f"w{shape.width}-{one}") for one in _written(letters))
        except SpecError:  # heads that do not divide this width
            continue
        if shape in (own, plain):
            return arm.replace(shape=str(own))
    return None


def _predicted(arm: Arm, steps: int, rows: Sequence[Row]) -> PredictedLoss:
    """Of a rung that may not have been trained."""
    base = ModelShape.parse(f"w{arm.run.model_shape.width}-{VARIANTS['base']}")
    usual = round(BYTES_PER_PARAMETER * parameters(base, arm.options)["total"] / _bytes_per_step(arm))
    said = PredictedLoss(arm.shape, "text", usual)
    rungs = _rungs(arm.variant, rows)
    if few := _too_few(arm.variant, rungs):
        return replace(said, why_not=few if rows else _no_runs())
    if steps and abs(steps / usual - 1) > SAME_LENGTH:
        why = f"the ladder trains a model of that size for {usual:,} steps, and no law knows {steps:,}"
        return replace(said, why_not=f"{why}; leave --steps out")
    beyond = _beyond([rung.parameters for rung in rungs], arm.parameters)
    said = replace(said, beyond=beyond, points=len(rungs))
    if beyond > FARTHEST:
        far = f"its parameters are {beyond:,.0f} times those of any run"
        return replace(said, why_not=f"{far}, and a law reaches {FARTHEST:.0f} times at most")
    law = fit_variant(arm.variant, rungs)
    return replace(said, law=law.about, prediction=law.predict(arm.parameters))


def _too_few(variant: str, rungs: Sequence[Rung]) -> str:
    """What is said of a variant with too few sizes; nothing where there are enough."""
    if len(rungs) >= LEAST_RUNGS:
        return ""
    few = f"the variant '{variant}' has judged runs at {len(rungs)} sizes, and a law needs {LEAST_RUNGS}"
    return f"{few}; {COMMAND} goes on"


def _no_variant() -> str:
    variants = ", ".join(f"{name} {letters}" for name, letters in VARIANTS.items())
    return f"the only laws are of the ladder's variants, by width: {variants}"


def _no_runs() -> str:
    return f"there are no judged runs of the ladder here, which a law is fitted to; {COMMAND} makes them"


def _rungs(variant: str, rows: Sequence[Row]) -> list[Rung]:
    """The sizes of a variant that have runs; one that diverged has no logarithm, and its size is left out."""
    found = []
    for arm in (one for one in DESKTOP.arms if one.variant == variant):
        losses = [row.metrics["error"] for row in rows if row.cell == arm.place]
        if losses and all(map(math.isfinite, losses)):
            found.append(Rung(arm.parameters, sum(map(math.log, losses)) / len(losses), len(losses)))
    return found


def _bytes_per_step(arm: Arm) -> int:
    return int(arm.recipe.batch * arm.task["context"])


def _beyond(sizes: Sequence[int], size: int) -> float:
    """How many times a size lies outside others; 1 within."""
    return max(size / max(sizes), min(sizes) / size, 1.0)


def _trained_on(source: Store, rows: Sequence[Row]) -> str:
    """Data, tokenizer, batch, context and length of the runs behind the laws."""
    stored = next((pair[0] for row in rows if (pair := source.get(row.key))), None)
    if stored is None:
        return ""
    task = stored.task
    data = Path(task["source"]).name if task.get("source") else "Python's standard library"
    tokens = f"{task.get('tokenizer') or 'bytes'}, context {task['context']}, batch {stored.recipe.batch}"
    model = f"{stored.options.family} with {stored.options.positions} positions"
    return f"{data}, {tokens}, {model}, {BYTES_PER_PARAMETER} bytes per parameter"
