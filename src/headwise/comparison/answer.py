"""Which shape is best for a task within a budget: variants of equal cost, tuned learning rates, paired seeds.

    answer = headwise.compare("text:my.txt", "w64-h4-L2", budget="25m")
    answer.winner, answer.probability_best, answer.verdict
    answer.table                    # a polars frame, one row per variant
    answer.chart()

A question (`question`) is answered by a plan (`plan`, `pace`), a plan by rows of the store (`trainers`), and the rows
by statistics (`judge`, `verdict`). No torch here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from headwise.comparison import verdict as words
from headwise.comparison.external import CommandTrainer, read_rows
from headwise.comparison.judge import Ranking, rank_variants
from headwise.comparison.pace import BudgetError, in_words, plan_seconds
from headwise.comparison.plan import ComparisonPlan
from headwise.comparison.question import BATCH, RATES, Question, allowed, ask, ask_command, read_rates
from headwise.comparison.trainers import HeadwiseTrainer, Trainer, carry_out, outcome_of, remembered
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened
from headwise.store.rows import Row
from headwise.store.store import Store
from headwise.sweep.plan import Summary
from headwise.sweep.watching import Watching, unwatched


class Settings(TypedDict, total=False):
    """What `compare` and `plan_comparison` may be told beside task, base and variants."""

    command: str  # your own trainer in the task's place, with {heads}, {lr}, {seed}, ... in it
    metric_json: str  # the file it writes; may have {seed}, {key}, ... in it
    metric: str  # name of the number in that file ("metric")
    hold: str  # what is equal in all variants: params, flops, kv or time ("params")
    vary: Sequence[str]  # axes along which variants are proposed (["heads"])
    budget: str  # time for all of it: "90s", "30m", "2h" ("30m")
    steps: int  # of the finalists' runs (what fits the budget)
    seeds: int  # of each finalist (what fits the budget)
    learning_rates: Sequence[float] | str  # to choose from (0.002 to 0.032)
    batch_size: int  # samples per step (16)
    family: str  # of the models: gpt2, llama, ... (what the task usually has)
    device: str  # auto, cpu, cuda or mps ("auto")
    precision: str  # auto, float32 or bfloat16 ("auto")
    workers: int  # processes (one per core)
    ray: str | None  # a Ray cluster: "auto" or its address (none)
    store: StoreLike  # results file (HEADWISE_STORE, else your data folder)


@dataclass(frozen=True)
class PlannedComparison(Shown):
    """What a comparison would do and take here; where it does not fit the budget, the least that makes sense."""

    plan: ComparisonPlan
    seconds: float
    workers: int
    problem: str = ""  # why it does not fit

    @property
    def fits(self) -> bool:
        return not self.problem

    @property
    def headline(self) -> str:
        return self.problem or f"{len(self.plan.arms)} variants, at most about {in_words(self.seconds)}"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise compare --dry-run --json` prints."""
        plan = self.plan
        lengths = {"steps": plan.arms[0].steps, "seeds": plan.seeds, "rates": plan.rates, "rungs": plan.rungs}
        about = {"base": plan.base, "hold": plan.hold, **lengths, "seconds": self.seconds, "fits": self.fits}
        return {**about, "arms": self.records()}

    def records(self) -> list[dict[str, Any]]:
        return [variant.model_dump() for variant in self.plan.arms]


@dataclass(frozen=True)
class Answer(Shown):
    """What a comparison says: the best variant, how sure that is, and what it rests on."""

    ranking: Ranking
    variants: list[dict[str, Any]]  # one row per variant: sizes, costs, loss and differences with their intervals
    rows: list[Row]  # the finished runs behind it
    metric: str  # what is compared, for the chart's axis
    held: list[str] = field(default_factory=list)  # what was equal
    confounds: list[str] = field(default_factory=list)  # what was not, or is to be kept in mind
    settle: str | None = None  # what it takes to resolve it, where it is not decided
    rerun: str | None = None  # the command that asks the same again
    summary: Summary | None = None
    planned: PlannedComparison | None = None
    chart_file: str | None = None

    @property
    def winner(self) -> str | None:
        """The variant with the least loss; whether that is more than chance, `decided` says."""
        return self.ranking.winner

    @property
    def probability_best(self) -> float:
        return self.ranking.probability_best

    @property
    def decided(self) -> bool:
        return self.ranking.decided

    @property
    def verdict(self) -> str:
        """One sentence."""
        return words.verdict(self.ranking)

    @property
    def headline(self) -> str:
        return self.verdict

    def records(self) -> list[dict[str, Any]]:
        return self.variants

    def as_dict(self) -> dict[str, Any]:
        """What `headwise compare --json` prints."""
        ranking = self.ranking
        decided = {"winner": self.winner, "probability_best": self.probability_best, "decided": self.decided}
        about = {"base": ranking.base, "seeds": list(ranking.seeds), "seeds_needed": ranking.needed}
        rests = {"settle": self.settle, "held": self.held, "confounds": self.confounds, "rerun": self.rerun}
        document: dict[str, Any] = {
            **decided,
            "verdict": self.verdict,
            **about,
            "arms": self.variants,
            "how": words.how(ranking),
        }
        document |= {**rests, "chart": self.chart_file}
        done = {"runs": self.summary.as_dict()} if self.summary else {}
        return document | done | ({"plan": self.planned.as_dict()} if self.planned else {})

    def chart(self) -> Any:
        """Loss against each cost, an altair chart; None where the runs do not know all costs."""
        from headwise.charts.curves import COSTS, frontier

        shown = [row for row in self.rows if math.isfinite(row.metrics["error"])]
        if not shown or not all(row.metrics.get(cost) for row in shown for cost in COSTS):
            return None
        return frontier(shown, "arm", f"Shapes against {self.ranking.base}", [self.verdict], self.metric)

    def _drawn(self, out: str | Path | None, name: str) -> "Answer":
        """With its chart saved in a folder, where there is one."""
        drawn = self.chart() if out is not None else None
        if out is None or drawn is None:
            return self
        from headwise.charts.grammar import save

        return replace(self, chart_file=str(save(drawn, Path(out), name)[0]))


def compare(
    task: str = "",
    base: str = "",
    variants: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    watching: Watching = unwatched,
    on_plan: Callable[[PlannedComparison], None] = lambda planned: None,
    **settings: Unpack[Settings],
) -> Answer:
    """Which shape is best for a task within a budget: tuned, paired, judged.

    `task` is written as in "text:my.txt" (or give `command=`, your own trainer), `base` is the shape to beat and
    `variants` are those to compare it with; without any, shapes of equal cost are proposed. The chart is saved in the
    folder `out`, where one is given. An interrupt saves and raises `KeyboardInterrupt`; the same call goes on.

    It starts processes, so a script that calls it does so under `if __name__ == "__main__"`.
    """
    with opened(settings.get("store")) as store:
        question, trainer = _asked(task, base, variants, settings, store)
        plan = remembered(question, store.files, trainer)
        planned = PlannedComparison(plan, plan_seconds(plan, trainer.workers), trainer.workers)
        on_plan(planned)
        summary = carry_out(plan, store, trainer, watching)
        outcome = outcome_of(plan, store, trainer)
    command = _command(task, settings)
    again = words.rerun_in_time(question, command) if plan.hold == "time" else words.rerun(plan, command)
    return Answer(
        outcome.ranking,
        words.variant_rows(outcome),
        outcome.rows,
        str(plan.task.get("metric", f"test error on {plan.task['name']}")),
        held=words.held_equal(plan),
        confounds=words.confounds(outcome),
        settle=words.settle(outcome, command, trainer.workers),
        rerun=again,
        summary=summary,
        planned=planned,
    )._drawn(out, question.key)


def plan_comparison(
    task: str = "", base: str = "", variants: Sequence[str] = (), **settings: Unpack[Settings]
) -> PlannedComparison:
    """What `compare` would do with the same arguments, and how long it takes here; nothing is trained to its end."""
    with opened(settings.get("store")) as store:
        question, trainer = _asked(task, base, variants, settings, store)
        try:
            plan, problem = remembered(question, store.files, trainer), ""
        except BudgetError as error:
            plan, problem = error.least, str(error)
    return PlannedComparison(plan, plan_seconds(plan, trainer.workers), trainer.workers, problem)


def compare_table(file: str | Path, base: str = "", *, metric: str = "metric", out: str | Path | None = None) -> Answer:
    """Judge finished runs: a CSV file with a line per run and the columns `arm`, `seed` and the metric.

    Nothing is trained, and what was held equal is not known. The base is the first variant, if none is named.
    """
    rows = read_rows(Path(file), metric)
    names = list(dict.fromkeys(row.cell["arm"] for row in rows))
    if base and base not in names:
        raise SpecError(f"no runs of the base '{base}' in {file}; its variants are {', '.join(names)}")
    ranking = rank_variants(rows, base or names[0])
    answer = Answer(ranking, words.csv_rows(ranking, rows), rows, metric, settle=words.csv_settle(ranking))
    return answer._drawn(out, Path(file).stem)


def _asked(task: str, base: str, variants: Sequence[str], settings: Settings, store: Store) -> tuple[Question, Trainer]:
    """The question that the arguments ask, and who trains for it."""
    command, steps, seeds = settings.get("command", ""), settings.get("steps", 0), settings.get("seeds", 0)
    if bool(task) == bool(command):
        raise SpecError("give one of --task (to train here), --command (your own trainer) and --from (finished runs)")
    rates = read_rates(settings.get("learning_rates", ()))
    about: dict[str, Any] = {"arms": tuple(variants), "hold": settings.get("hold", "params"), "steps": steps}
    about |= {"vary": tuple(settings.get("vary", ("heads",))), "seeds": seeds, "rates": rates}
    about |= {"budget": allowed(settings.get("budget", "30m"), steps, seeds)}
    if command:
        names = settings.get("metric_json", ""), settings.get("metric", "metric")
        return ask_command(command, *names, base, **about), CommandTrainer(store)
    places = {name: str(value) for name, value in settings.items() if name in ("family", "device", "precision")}
    about |= {"rates": rates or RATES, "batch": settings.get("batch_size", 0) or BATCH}
    question = ask(task, base, **places, **about)
    workers, ray = settings.get("workers", 0), settings.get("ray")
    return question, HeadwiseTrainer(store, store.files, question.execution, workers, ray)


def _command(task: str, settings: Settings) -> list[str]:
    """How the command line asks for the same, but for what the plan decides."""
    given = {"--task": task, "--command": settings.get("command", "")}
    if given["--command"]:
        given |= {"--metric-json": settings.get("metric_json", ""), "--metric": settings.get("metric", "metric")}
    for name in ("family", "device", "precision", "store"):
        value = settings.get(name)
        given[f"--{name}"] = "" if value in (None, "auto") or isinstance(value, Store) else str(value)
    return ["headwise", "compare", *(word for name, value in given.items() if value for word in (name, value))]
