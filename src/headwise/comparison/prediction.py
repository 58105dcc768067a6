"""What loss a shape is predicted to end at, before it is trained: the fitted scaling law, asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.known import find
from headwise.ledger.law import Prediction, families_left_out
from headwise.ledger.statistics import LEVEL
from headwise.ledger.study import study_rows
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened
from headwise.studies.predict_the_trade import STUDY, law_of


@dataclass(frozen=True)
class PredictedLoss(Shown):
    """A predicted final loss with its interval; `outside` says in what the shape lies beyond the fitted runs."""

    shape: str
    task: str
    steps: int
    prediction: Prediction
    points: int  # shapes that the law was fitted to
    families_left_out: dict[str, float]  # the relative error for each family of shapes, predicted from the others

    @property
    def loss(self) -> float:
        """In bits per byte."""
        return self.prediction.value

    @property
    def low(self) -> float:
        return self.prediction.low

    @property
    def high(self) -> float:
        return self.prediction.high

    @property
    def outside(self) -> tuple[str, ...]:
        return self.prediction.outside

    @property
    def level(self) -> float:
        """The share of new shapes that the interval is for."""
        return LEVEL

    @property
    def headline(self) -> str:
        beyond = f"; not to be trusted: {'; '.join(self.outside)}" if self.outside else ""
        return f"{self.loss:.3f} bits per byte ({self.low:.3f} to {self.high:.3f}, {LEVEL:.0%} of new shapes){beyond}"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise predict --json` prints."""
        asked = {"shape": self.shape, "task": self.task, "steps": self.steps, "loss": self.loss}
        fitted = {"level": LEVEL, "points": self.points, "families_left_out": self.families_left_out}
        return {**asked, **self.prediction.as_dict(), **fitted}

    def records(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in self.as_dict().items() if name != "families_left_out"}]


def predict(
    shape: str, steps: int, *, task: str = "text", store: StoreLike = None, results: str | Path | None = None
) -> PredictedLoss:
    """The loss that a shape is predicted to end at after so many steps, with its interval.

    The law is fitted to the runs of the study predict-the-trade that the store (or Parquet files at `results`) holds.
    """
    if task != "text":
        instead = "headwise compare measures shapes on any task"
        raise SpecError(f"the law is fitted to runs of text, on the data that they had, and not of '{task}'; {instead}")
    asked = find(shape).shape
    with opened(store, results) as source:
        law = law_of(lambda preset: study_rows(STUDY, preset, source))
    if law is None:
        remedy = "headwise study run predict-the-trade --preset laptop makes them"
        raise SpecError(f"there are no runs here that a law could be fitted to; {remedy}")
    prediction, families = law.predict(asked, steps), families_left_out(law.points)
    return PredictedLoss(str(asked), task, steps, prediction, len(law.points), families)
