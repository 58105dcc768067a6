"""Doing a comparison's plan: who trains, stage by stage, and what came of it.

The plan is made once (`pace` measures what a step takes here and chooses lengths and seeds that fit the budget) and
kept beside the store under the question's hash. From there on everything is a pure function of plan and rows, so that a
comparison that was interrupted goes on, and one that is finished is read from the store. No torch here.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headwise.comparison.judge import Curve, Ranking, rank_variants
from headwise.comparison.pace import draw_up, measure_steps
from headwise.comparison.plan import ComparisonPlan, Course, follow
from headwise.comparison.question import Question
from headwise.store.rows import Row, rows
from headwise.store.store import Store
from headwise.sweep.plan import Stopped, Summary, Watch, make_plan
from headwise.sweep.watching import Watching, unwatched
from headwise.training.run import Execution, Run, RunResult


class Trainer(Protocol):
    """Who does the runs: this machine or a cluster (`HeadwiseTrainer`), or a command (`CommandTrainer`)."""

    workers: int

    def fit(self, runs: list[Run]) -> list[Run]:
        """The runs as they are planned here."""

    def step_seconds(self, runs: list[Run]) -> list[float]:
        """How long a step of each run takes."""

    def do(self, runs: list[Run], watch: Watch) -> Summary:
        """Those that the store lacks."""


class HeadwiseTrainer:
    """headwise's own trainer, in processes of this machine or on a Ray cluster."""

    def __init__(self, store: Store, folder: Path, execution: Execution, workers: int = 0, ray: str | None = None):
        from headwise.sweep.local import usable_cores

        self.store, self.folder, self.execution, self.ray = store, folder, execution, ray
        self.workers = workers or usable_cores()
        self._fitted: dict[str, Run] = {}

    def fit(self, runs: list[Run]) -> list[Run]:
        from headwise.sweep.resolve import fitted

        new = [run for run in runs if run.key not in self._fitted]
        if new:
            planned = fitted(new, self.execution, self.store)
            self._fitted |= {run.key: one for run, one in zip(new, planned, strict=True)}
        return [self._fitted[run.key] for run in runs]

    def step_seconds(self, runs: list[Run]) -> list[float]:
        return measure_steps(self.fit(runs), min(self.workers, len(runs)))

    def do(self, runs: list[Run], watch: Watch) -> Summary:
        from headwise.sweep.drive import conduct

        settings: dict[str, Any] = {"folder": self.folder, "workers": self.workers, "ray_address": self.ray}
        return conduct(runs, self.store, watch=watch, **settings)


def carry_out(plan: ComparisonPlan, store: Store, trainer: Trainer, watching: Watching = unwatched) -> Summary:
    """Do what the store lacks, stage by stage; a failed run is tried once more each time this is called.

    An interrupt saves and raises `Stopped`; its summary counts all stages.
    """
    tried: set[str] = set()
    summary = Summary()
    while True:
        course = follow(plan, lambda runs: results(store, trainer.fit(runs), tried))
        if not course.runs:
            return summary
        planned = trainer.fit(course.runs)
        tried.update(run.key for run in planned)
        with watching(list(make_plan(planned, store).todo), course.stage) as watch:
            try:
                summary += trainer.do(planned, watch)
            except Stopped as stopped:
                raise Stopped(summary + stopped.summary) from None


def results(store: Store, runs: list[Run], failed: set[str] | None = None) -> list[RunResult | None]:
    """Results of runs, in their order; failed ones count where their keys are given, or no keys are."""
    ended = []
    for run in runs:
        stored = store.get(run.key)
        again = stored is not None and stored[1].status == "failed" and failed is not None and run.key not in failed
        ended.append(stored[1] if stored and not again else None)
    return ended


@dataclass(frozen=True)
class Outcome:
    """A plan, what its trials decided, the rows of its finalists, and how they rank."""

    plan: ComparisonPlan
    course: Course
    rows: list[Row]
    ranking: Ranking


def outcome_of(plan: ComparisonPlan, store: Store, trainer: Trainer) -> Outcome:
    """From nothing but the plan and the store."""
    course = follow(plan, lambda runs: results(store, trainer.fit(runs)))
    finished: list[Row] = []
    curves: dict[str, Curve] = {}
    if course.finals:
        planned = trainer.fit([at.run for at in course.finals])
        for at, result in zip(course.finals, results(store, planned), strict=True):
            if result is None or result.status == "failed":
                continue
            if result.status == "diverged":
                finished.append(Row(at.place, at.run.seed, {"error": math.inf}, result.key))
                continue
            (row,) = rows([at], {at.run.cell_key: result})
            row.metrics["step_seconds"] = result.seconds / plan.step_units(at.run)
            if result.tokens and result.seconds:
                row.metrics["tokens_per_second"] = result.tokens / result.steps / row.metrics["step_seconds"]
            finished.append(row)
            curves[row.key] = [(step, value) for step, name, value in result.curve if name == "error"]
    return Outcome(plan, course, finished, rank_variants(finished, plan.base, curves))


def remembered(question: Question, folder: Path, trainer: Trainer) -> ComparisonPlan:
    """The plan of a question: drawn up once, and read again."""
    file = folder / "compare" / f"{question.key}.json"
    if file.exists():
        return ComparisonPlan(**json.loads(file.read_text()))
    plan = draw_up(question, trainer.workers, trainer.step_seconds)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")  # so that the name only ever stands for a whole file
    partial.write_text(json.dumps(plan.model_dump()))
    partial.replace(file)
    return plan
