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

from headwise.comparison.command import COMMAND_TASK
from headwise.comparison.gates import passed_gates
from headwise.comparison.judge import Curve, Ranking, rank_variants
from headwise.comparison.metric import Metric
from headwise.comparison.pace import draw_up, in_words, measure_steps, seconds_left
from headwise.comparison.plan import ComparisonPlan, Course, follow
from headwise.comparison.question import Question
from headwise.comparison.throughput import Throughput, throughput
from headwise.store.notes import keep
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
    here = standing(plan, store, trainer, tried)
    earlier = here.found - (len(here.course.runs) - len(here.missing))  # in stages that are at their end
    summary = Summary(planned=earlier, found=earlier)
    while here.course.runs:
        planned = trainer.fit(here.course.runs)
        tried.update(run.key for run in planned)
        stage = f"{here.course.stage}; in all at most about {in_words(here.seconds_left)} left"
        with watching(list(make_plan(planned, store).todo), stage) as watch:
            try:
                summary += trainer.do(planned, watch)
            except Stopped as stopped:
                raise Stopped(summary + stopped.summary, stopped.checkpoints) from None
        here = standing(plan, store, trainer, tried)
    return summary


@dataclass(frozen=True)
class Standing:
    """How far a comparison is."""

    course: Course
    missing: list[Run]  # of the stage that it is at
    found: int  # runs in the store
    seconds_left: float


def standing(plan: ComparisonPlan, store: Store, trainer: Trainer, tried: set[str]) -> Standing:
    """By what the store holds; runs that failed count where they were tried."""
    ended: dict[str, bool] = {}

    def look(runs: list[Run]) -> list[RunResult | None]:
        planned = trainer.fit(runs)
        found = results(store, planned, tried)
        ended.update({run.key: result is not None for run, result in zip(planned, found, strict=True)})
        return found

    course = follow(plan, look)
    missing = [run for run in trainer.fit(course.runs) if not ended[run.key]]
    return Standing(course, missing, sum(ended.values()), seconds_left(plan, trainer.workers, course, missing))


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


def speeds(plan: ComparisonPlan, store: Store, trainer: Trainer) -> Throughput | None:
    """How fast the finalists train here; somebody's own trainer tells itself, if at all."""
    if plan.task["name"] == COMMAND_TASK:
        return None
    course = follow(plan, lambda runs: results(store, trainer.fit(runs)))
    finalists = {at.run.shape: at.run for at in course.finals}
    return throughput(trainer.fit([*finalists.values()]), store.files)


def outcome_of(plan: ComparisonPlan, store: Store, trainer: Trainer, speed: Throughput | None = None) -> Outcome:
    """From nothing but the plan, the store and, where there is one that tells something, the measured speed."""
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
            if seconds := _step_seconds(result, at.run.shape, speed):
                row.metrics["step_seconds"] = seconds
                row.metrics.update(
                    {"tokens_per_second": result.tokens / result.steps / seconds} if result.tokens else {}
                )
            finished.append(row)
            curves[row.key] = [(step, value) for step, name, value in result.curve if name == "error"]
    ranking = rank_variants(finished, plan.base, curves, metric=plan.metric)
    return Outcome(plan, course, finished, passed_gates(plan, course, finished, ranking))


def _step_seconds(result: RunResult, variant: str, speed: Throughput | None) -> float:
    """As it was measured on a quiet machine, or as somebody's own trainer wrote it; 0 where neither is known."""
    if speed:
        return speed.step_seconds[variant] if speed.quiet else 0.0
    return result.metrics.get("train_seconds", 0.0) / result.steps


def remembered(question: Question, folder: Path, trainer: Trainer) -> ComparisonPlan:
    """The plan of a question: drawn up once, and read again."""
    file = folder / "compare" / f"{question.key}.json"
    known = file.exists()
    if known:
        plan = ComparisonPlan(**json.loads(file.read_text()))
        if plan.baseline[0] or plan.task["name"] == COMMAND_TASK:
            return plan
    else:
        plan = draw_up(question, trainer.workers, trainer.step_seconds)
    text = json.dumps(with_baseline(plan).model_dump())
    return ComparisonPlan(**json.loads(keep(file, text, replace=known)))  # another driver's, if it was first


def with_baseline(plan: ComparisonPlan) -> ComparisonPlan:
    """With what the task calls its error, and the simple model that the base must beat; a command has neither."""
    if plan.task["name"] == COMMAND_TASK:
        return plan
    from headwise.tasks import load_task

    task = load_task(plan.task)
    name, error = task.simple_baseline()
    return plan.replace(metric=Metric(name=task.metric_name), baseline=(name, float(error)))
