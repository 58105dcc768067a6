"""Which shape is best for a task within a budget: arms of equal cost, tuned rates, finalists on paired seeds.

    from headwise.compare import compare
    frame = compare("text:my.txt", "w64-h4-L2", budget="25m")      # polars, a row an arm

A question is answered by a plan, and a plan by rows of the store. The plan is drawn up once (`pacing` measures what a
step takes here and chooses lengths and seeds that fit the budget) and kept beside the store under the question's hash;
from there on everything is a pure function of plan and rows, so that a comparison that was interrupted goes on, and one
that is finished is found again. No torch here.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headwise.comparison.judge import Answer, Curve, judge
from headwise.comparison.pace import allowed, draw_up, measure
from headwise.comparison.plan import Course, Plan, Question, follow
from headwise.known import find
from headwise.store.rows import Row, rows
from headwise.store.store import Store
from headwise.sweep.plan import Summary, Watch
from headwise.training.run import Execution, Run, RunResult

if TYPE_CHECKING:
    import polars


class Trainer(Protocol):
    """Who does the runs: this machine or a cluster (`Ours`), or a command of somebody's own (`foreign.Theirs`)."""

    workers: int

    def fit(self, runs: list[Run]) -> list[Run]:
        """The runs as they are planned here."""

    def step_seconds(self, runs: list[Run]) -> list[float]:
        """How long a step of each run takes."""

    def do(self, runs: list[Run], watch: Watch) -> Summary:
        """Those that the store lacks."""


class Ours:
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
        return measure(self.fit(runs), min(self.workers, len(runs)))

    def do(self, runs: list[Run], watch: Watch) -> Summary:
        from headwise.sweep.drive import conduct

        settings: dict[str, Any] = {"folder": self.folder, "workers": self.workers, "ray_address": self.ray}
        return conduct(runs, self.store, watch=watch, **settings)


Watching = Callable[[list[Run], str], AbstractContextManager[Watch]]


def carry_out(
    plan: Plan, store: Store, trainer: Trainer, watching: Watching = lambda runs, stage: nullcontext(Watch())
) -> Summary:
    """Do what the store lacks, stage by stage; a failed run is tried once more each time this is called."""
    tried: set[str] = set()
    summary = Summary()
    while True:
        course = follow(plan, lambda runs: results(store, trainer.fit(runs), tried))
        if not course.runs:
            return summary
        planned = trainer.fit(course.runs)
        tried.update(run.key for run in planned)
        with watching(planned, course.stage) as watch:
            summary += trainer.do(planned, watch)


def results(store: Store, runs: list[Run], failed: set[str] | None = None) -> list[RunResult | None]:
    """Results of runs, in their order; failed ones count where their keys are given, or no keys are."""
    found = []
    for run in runs:
        held = store.get(run.key)
        again = held is not None and held[1].status == "failed" and failed is not None and run.key not in failed
        found.append(held[1] if held and not again else None)
    return found


@dataclass(frozen=True)
class Comparison:
    """A plan, what its trials decided, the rows of its finalists, and the answer they give."""

    plan: Plan
    course: Course
    rows: list[Row]
    answer: Answer


def answer(plan: Plan, store: Store, trainer: Trainer) -> Comparison:
    """From nothing but the plan and the store."""
    course = follow(plan, lambda runs: results(store, trainer.fit(runs)))
    found: list[Row] = []
    curves: dict[str, Curve] = {}
    if course.finals:
        planned = trainer.fit([at.run for at in course.finals])
        for at, result in zip(course.finals, results(store, planned), strict=True):
            if result is None or result.status == "failed":
                continue
            if result.status == "diverged":
                found.append(Row(at.place, at.run.seed, {"error": math.inf}, result.key))
                continue
            (row,) = rows([at], {at.run.cell_key: result})
            row.metrics["step_seconds"] = result.seconds / plan.step_units(at.run)
            if result.tokens and result.seconds:
                row.metrics["tokens_per_second"] = result.tokens / result.steps / row.metrics["step_seconds"]
            found.append(row)
            curves[row.key] = [(step, value) for step, name, value in result.curve if name == "error"]
    return Comparison(plan, course, found, judge(found, plan.base, curves))


def remembered(question: Question, folder: Path, trainer: Trainer) -> Plan:
    """The plan of a question: drawn up once, and found again."""
    file = folder / "compare" / f"{question.key}.json"
    if file.exists():
        return Plan(**json.loads(file.read_text()))
    plan = draw_up(question, trainer.workers, trainer.step_seconds)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")  # so that the name only ever stands for a whole file
    partial.write_text(json.dumps(plan.model_dump()))
    partial.replace(file)
    return plan


def ask(task: str, base: str, **settings: Any) -> Question:
    """A question about one of headwise's tasks, as it is written on the command line."""
    from headwise.sweep.resolve import resolve
    from headwise.tasks import parse
    from headwise.training.loop import TEST_SAMPLES, VALIDATION_SAMPLES

    asked, execution = parse(task), resolve(settings.pop("device", "auto"), settings.pop("precision", "auto"))
    held_out = min(VALIDATION_SAMPLES, asked.samples("validation") or VALIDATION_SAMPLES)
    about: dict[str, Any] = {"options": asked.default_options(), "tokens": asked.tokens, "execution": execution}
    about |= {"held_out": (held_out, asked.samples("test") or TEST_SAMPLES)}
    return Question(task=asked.spec(), base=str(find(base).shape), **about, **settings)


def compare(
    task: str,
    base: str,
    arms: Sequence[str] = (),
    *,
    budget: str = "30m",
    steps: int = 0,
    seeds: int = 0,
    store: str | Path | None = None,
    workers: int = 0,
    ray: str | None = None,
    **settings: Any,
) -> "polars.DataFrame":
    """The answer as a data frame, a row an arm. `settings` are fields of Question: hold, vary, rates, batch, ...

    It starts processes, so a script that calls it does so under `if __name__ == "__main__"`.
    """
    import polars as pl

    from headwise.comparison.verdict import arm_rows

    lengths: dict[str, Any] = {"steps": steps, "seeds": seeds, "budget": allowed(budget, steps, seeds)}
    question = ask(task, base, arms=tuple(arms), **lengths, **settings)
    with Store(store) as held:
        folder = held.files
        trainer = Ours(held, folder, question.execution, workers, ray)
        plan = remembered(question, folder, trainer)
        carry_out(plan, held, trainer)
        return pl.DataFrame(arm_rows(answer(plan, held, trainer)))
