"""Which shape is best for a task within a budget: variants of equal cost, tuned learning rates, paired seeds.

    answer = headwise.compare("text:my.txt", "w64-h4-L2", budget="25m")
    answer.winner, answer.probability_best, answer.verdict
    answer.table                    # a polars frame, one row per variant
    answer.chart()

A question (`question`) is answered by a plan (`plan`, `pace`), a plan by rows of the store (`trainers`), and the rows
by statistics (`judge`, `verdict`). No torch here.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from headwise.comparison import verdict as words
from headwise.comparison.command import COMMAND_TASK, CommandTrainer, device_slots, version_notices
from headwise.comparison.judge import Ranking, rank_variants
from headwise.comparison.metric import measured
from headwise.comparison.pace import BudgetError, in_words, plan_seconds
from headwise.comparison.plan import ComparisonPlan
from headwise.comparison.question import BATCH, RATES, Question, allowed, ask, ask_command, read_budget, read_rates
from headwise.comparison.tables import read_table
from headwise.comparison.trainers import HeadwiseTrainer, Trainer, carry_out, outcome_of, remembered, speeds, standing
from headwise.extras import require
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened
from headwise.store.rows import Row
from headwise.store.store import Store
from headwise.sweep.plan import Summary
from headwise.sweep.tracking import tracked
from headwise.sweep.watching import Watching, unwatched
from headwise.training.asked import RECIPE_NAMES, RecipeSettings, asked_recipe, model_in_words, recipe_in_words

PROJECT = "compare"  # of a tracker


class Settings(RecipeSettings, total=False):
    """What `compare` and `plan_comparison` may be told beside task, base and variants."""

    command: str  # your own trainer in the task's place, with {heads}, {lr}, {seed}, ... in it
    metric_json: str  # the file it writes; may have {seed}, {key}, ... in it
    metric: str  # name of the number in that file ("metric")
    higher_is_better: bool | None  # of that number (what is known by its name, else lower)
    parallel: int  # commands at once (one per device, else 1)
    devices: Sequence[str | int] | str  # CUDA_VISIBLE_DEVICES for them, divided evenly (none)
    hold: str  # what is equal in all variants: params (of the body), flops, kv or time ("params")
    vary: Sequence[str]  # axes along which variants are proposed (["heads"])
    budget: str  # time for all of it: "90s", "30m", "2h" ("30m")
    steps: int  # of the finalists' runs (what fits the budget)
    seeds: int  # of each finalist (what fits the budget)
    learning_rates: Sequence[float] | str  # to choose from (0.002 to 0.032)
    batch_size: int  # samples per step (16)
    family: str  # of the models: gpt2, llama, ... (what the task usually has)
    options: Mapping[str, Any]  # of the models, over the family's: {"tied": True, "norm": "rms"} (none)
    context: int  # tokens per sample (the task's own)
    tokenizer: str  # of a text: bytes, characters or bpe ("bytes")
    device: str  # auto, cpu, cuda or mps ("auto")
    precision: str  # auto, float32 or bfloat16 ("auto")
    workers: int  # processes (one per core)
    ray: str | None  # a Ray cluster: "auto" or its address (none)
    track: str  # mirror curves as they are measured: tensorboard or wandb (none)
    store: StoreLike  # results file (HEADWISE_STORE, else your data folder)


@dataclass(frozen=True)
class PlannedComparison(Shown):
    """What a comparison would do and take here; where it does not fit the budget, the least that makes sense."""

    plan: ComparisonPlan
    seconds: float
    workers: int
    problem: str = ""  # why there is no plan that fits
    budget: float = math.inf  # seconds
    found: int = 0  # runs of it that the store holds
    seconds_left: float = math.nan  # for the others; NaN where that was not asked
    notices: list[str] = field(default_factory=list)  # what to know before it begins

    @property
    def model(self) -> str:
        """What kind of model is trained, in words; empty for somebody's own trainer."""
        return model_in_words(self.plan.options) if self.plan.tokens else ""

    @property
    def recipe(self) -> str:
        """How it is trained, in words."""
        if not self.plan.tokens:
            return ""
        rate = "tuned per variant" if len(self.plan.rates) > 1 else f"{self.plan.rates[0]:g}"
        return recipe_in_words(self.plan.recipe, rate, self.plan.tokens)

    @property
    def fits(self) -> bool:
        """Whether what is left to do fits the budget: it may not where steps and seeds were given."""
        left = self.seconds if math.isnan(self.seconds_left) else self.seconds_left
        return not self.problem and left <= self.budget

    @property
    def headline(self) -> str:
        return self.problem or f"{len(self.plan.arms)} variants, at most about {in_words(self.seconds)}"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise compare --dry-run --json` prints."""
        plan = self.plan
        lengths = {"steps": plan.arms[0].steps, "seeds": plan.seeds, "rates": plan.rates, "rungs": plan.rungs}
        about = {"base": plan.base, "hold": plan.hold, **lengths, "seconds": self.seconds, "fits": self.fits}
        about |= {"budget": self.budget, "found": self.found, "seconds_left": self.seconds_left}
        return {**about, "model": self.model, "recipe": self.recipe, "arms": self.records(), "notices": self.notices}

    def records(self) -> list[dict[str, Any]]:
        return [variant.model_dump() for variant in self.plan.arms]


@dataclass(frozen=True)
class Answer(Shown):
    """What a comparison says: the best variant, how sure that is, and what it rests on.

    `verdict` is the sentence, `winner` the variant (None where there is no answer), `confounds` what was not equal,
    `table` the frame with one row per variant; `learned` and `gates` say whether the runs can be ranked at all.
    """

    ranking: Ranking
    variants: list[dict[str, Any]]  # one row per variant: sizes, costs, loss and differences with their intervals
    rows: list[Row]  # the finished runs behind it
    held: list[str] = field(default_factory=list)  # what was equal
    confounds: list[str] = field(default_factory=list)  # what was not, or is to be kept in mind
    settle: str | None = None  # what it takes to resolve it, where it is not decided
    rerun: str | None = None  # the command that asks the same again
    summary: Summary | None = None
    planned: PlannedComparison | None = None
    speed: str | None = None  # how the speeds were measured, or why they are not shown
    chart_file: str | None = None
    vary: tuple[str, ...] = ()  # the sizes that were asked about: what the chart has on its axis
    variant_columns: tuple[str, ...] = ()  # of a table: the columns that name a variant
    notices: list[str] = field(default_factory=list)  # what was found in a table, or of older versions of a trainer
    extra_columns: list[str] = field(default_factory=list)  # of a table: other numbers of its runs, by their names

    @property
    def winner(self) -> str | None:
        """The variant with the best mean; whether that is more than chance, `decided` says.

        None where there is no answer: a gate failed, too few runs, one variant left, or the best exactly equal.
        """
        return self.ranking.winner

    @property
    def metric(self) -> str:
        """The name of what is compared."""
        return self.ranking.metric.name

    @property
    def higher_is_better(self) -> bool:
        return self.ranking.metric.higher_is_better

    @property
    def gates(self) -> list[dict[str, Any]]:
        """What was checked before ranking; `passed` is None where it could not be."""
        return [{"name": gate.name, "passed": gate.passed, "detail": gate.detail} for gate in self.ranking.gates]

    @property
    def learned(self) -> bool | None:
        """Whether the runs have learned enough to be ranked; None where nothing could be checked."""
        checked = [gate.passed for gate in self.ranking.gates if gate.passed is not None]
        return all(checked) if checked else None

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
        about: dict[str, Any] = {"base": ranking.base, "seeds": list(ranking.seeds), "seeds_needed": ranking.needed}
        about |= {"metric_name": self.metric, "higher_is_better": self.higher_is_better}
        about |= {"direction": ranking.metric.direction, "learned": self.learned, "gates": self.gates}
        rests = {"settle": self.settle, "held": self.held, "confounds": self.confounds, "rerun": self.rerun}
        rests |= {"speed": self.speed}
        document: dict[str, Any] = {
            **decided,
            "verdict": self.verdict,
            **about,
            "arms": self.variants,
            "how": words.how(ranking),
        }
        document |= {**rests, "chart": self.chart_file, "notices": self.notices, "extra_columns": self.extra_columns}
        done = {"runs": self.summary.as_dict()} if self.summary else {}
        return document | done | ({"plan": self.planned.as_dict()} if self.planned else {})

    def chart(self) -> Any:
        """The metric against the size that varies and against each cost that differs, an altair chart.

        None where no variant has a finite metric.
        """
        from headwise.charts.comparison import comparison_chart, varied

        axis = varied(self.variants, self.vary, self.variant_columns)
        about: dict[str, Any] = {"extra": self.extra_columns, "notes": [self.verdict]}
        about |= {"higher_is_better": self.higher_is_better}
        return comparison_chart(self.variants, self.ranking.base, self.metric, axis, **about)

    def _drawn(self, out: str | Path | None, about: str, question: str) -> "Answer":
        """With its chart saved in a folder, where there is one."""
        drawn = self.chart() if out is not None else None
        if out is None or drawn is None:
            return self
        from headwise.charts.comparison import chart_name, varied
        from headwise.charts.grammar import save

        axis = varied(self.variants, self.vary, self.variant_columns)
        name = about if self.planned is None else chart_name(about, self.ranking.base, axis)
        return replace(self, chart_file=str(save(drawn, Path(out), name, question)[0]))


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
    if out is not None:
        require("report", "charts")
    shown = tracked(watching, settings.get("track", ""), PROJECT)
    with opened(settings.get("store")) as store:
        question, trainer = _asked(task, base, variants, settings, store, shown)
        plan = _by_metric(remembered(question, store.files, trainer), settings)
        planned = _planned(plan, store, trainer, settings)
        on_plan(planned)
        summary = carry_out(plan, store, trainer, shown)
        speed = speeds(plan, store, trainer)
        outcome = outcome_of(plan, store, trainer, speed)
    command = _command(task, settings)
    again = words.rerun_in_time(question, command) if plan.hold == "time" else words.rerun(plan, command)
    return Answer(
        outcome.ranking,
        words.variant_rows(outcome),
        outcome.rows,
        held=words.held_equal(plan),
        confounds=words.confounds(outcome),
        settle=words.remedy(outcome, question, command) or words.settle(outcome, command, trainer.workers),
        rerun=again,
        summary=summary,
        planned=planned,
        vary=() if question.arms else question.vary,
        notices=planned.notices,
        speed=speed.in_words(again) if speed else None,
    )._drawn(out, _about(plan.task), question.key)


def plan_comparison(
    task: str = "",
    base: str = "",
    variants: Sequence[str] = (),
    *,
    watching: Watching = unwatched,
    **settings: Unpack[Settings],
) -> PlannedComparison:
    """What `compare` would do with the same arguments, and how long it takes here.

    Nothing is trained to its end, but for the first run of a `command`, which is timed and kept.
    """
    with opened(settings.get("store")) as store:
        question, trainer = _asked(task, base, variants, settings, store, watching)
        try:
            return _planned(remembered(question, store.files, trainer), store, trainer, settings)
        except BudgetError as error:
            least = _by_metric(error.least, settings)
            return PlannedComparison(least, plan_seconds(least, trainer.workers), trainer.workers, str(error))


def _planned(plan: ComparisonPlan, store: Store, trainer: Trainer, settings: Settings) -> PlannedComparison:
    """A plan with its time, and how much of it the store holds."""
    here, seconds = standing(plan, store, trainer, set()), plan_seconds(plan, trainer.workers)
    about: dict[str, Any] = {"budget": read_budget(settings.get("budget", "30m")), "found": here.found}
    left = min(seconds, here.seconds_left) if here.found else seconds
    about |= {"notices": version_notices(store, plan.task, [variant.shape for variant in plan.arms])}
    return PlannedComparison(plan, seconds, trainer.workers, **about, seconds_left=left)


def compare_table(
    source: Any,
    base: str = "",
    *,
    metric: str = "",
    arm_columns: Sequence[str] = (),
    higher_is_better: bool | None = None,
    out: str | Path | None = None,
) -> Answer:
    """Judge finished runs: a table with a line per run, in a file (CSV, TSV, JSON lines, Parquet) or a frame.

    `arm_columns` together name the variant (the column `arm`, `variant`, `shape`, `model` or `name`, if none is given),
    `metric` is what is judged (the only column that can be meant). With a column `seed`, runs with the same seed are
    pairs. Other columns of numbers are shown. Nothing is trained, and what was held equal is not known. The base is
    the first variant, if none is named.
    """
    table = read_table(source, metric, arm_columns)
    metric_read = measured(table.metric, higher_is_better)
    ranking = rank_variants(table.rows, table.variant(base), metric=metric_read, paired=table.paired)
    about: dict[str, Any] = {"confounds": words.reservations(ranking), "settle": words.csv_settle(ranking)}
    about |= {"notices": table.notices, "variant_columns": tuple(table.arms), "extra_columns": table.extra}
    answer = Answer(ranking, words.csv_rows(ranking, table.rows, table.extra), table.rows, **about)
    place = Path(source) if isinstance(source, str | Path) else Path("table")
    question = hashlib.sha256(f"{place.resolve()} {ranking.base} {table.metric}".encode()).hexdigest()
    return answer._drawn(out, place.stem, question)


def _asked(
    task: str, base: str, variants: Sequence[str], settings: Settings, store: Store, watching: Watching
) -> tuple[Question, Trainer]:
    """The question that the arguments ask, and who trains for it."""
    command, steps, seeds = settings.get("command", ""), settings.get("steps", 0), settings.get("seeds", 0)
    if bool(task) == bool(command):
        raise SpecError("give one of --task (to train here), --command (your own trainer) and --from (finished runs)")
    rates = read_rates(settings.get("learning_rates", ()))
    about: dict[str, Any] = {"arms": tuple(variants), "hold": settings.get("hold", "params"), "steps": steps}
    about |= {"vary": tuple(settings.get("vary", ("heads",))), "seeds": seeds, "rates": rates}
    about |= {"budget": allowed(settings.get("budget", "30m"), steps, seeds)}
    if command:
        if said := [name for name in _OF_OUR_MODELS if settings.get(name)]:
            raise SpecError(f"--command trains its own models: say {said[0]} in the command itself")
        names = settings.get("metric_json", ""), settings.get("metric") or "metric"
        slots = device_slots(command, settings.get("parallel", 0), _devices(settings))
        return ask_command(command, *names, base, **about), CommandTrainer(store, slots, watching)
    if settings.get("parallel") or settings.get("devices"):
        raise SpecError("--parallel and --devices are for --command; with --task, --workers is the number of processes")
    if settings.get("higher_is_better"):
        raise SpecError("a task's error is better the lower it is; --higher-is-better is for --command and --from")
    places: dict[str, Any] = {name: settings.get(name) for name in ("family", "options", "device", "precision")}
    recipe = asked_recipe(settings, batch=settings.get("batch_size", 0) or BATCH)
    about |= {"rates": rates or RATES, "recipe": recipe, "own": {name: settings.get(name) for name in _OF_THE_TASK}}
    question = ask(task, base, **{name: value for name, value in places.items() if value}, **about)
    workers, ray = settings.get("workers", 0), settings.get("ray")
    return question, HeadwiseTrainer(store, store.files, question.execution, workers, ray)


_OF_THE_TASK = ("context", "tokenizer")
_FLAGS = {"final_learning_rate": "--final-lr"}
_OF_OUR_MODELS = ("family", "options", *_OF_THE_TASK, *RECIPE_NAMES)


def _about(task: dict[str, Any]) -> str:
    """What a chart's file is named by: the task and its data, or the script that a command runs."""
    scripts = re.findall(r"([\w-]+)\.(?:py|sh)\b", task.get("command", ""))
    if scripts:
        return str(scripts[0])
    return "-".join(Path(str(part)).stem for part in (task["name"], task.get("source", "")) if part)


def _by_metric(plan: ComparisonPlan, settings: Settings) -> ComparisonPlan:
    """With the metric that one's own trainer writes, and its direction; a task's is known."""
    if plan.task["name"] != COMMAND_TASK:
        return plan
    return plan.replace(metric=measured(plan.task["metric"], settings.get("higher_is_better")))


def _devices(settings: Settings) -> list[str]:
    given = settings.get("devices", ())
    return [word.strip() for word in (given.split(",") if isinstance(given, str) else map(str, given)) if word.strip()]


def _command(task: str, settings: Settings) -> list[str]:
    """How the command line asks for the same, but for what the plan decides."""
    given: dict[str, Any] = {"--task": task, "--command": settings.get("command", "")}
    if given["--command"]:
        given |= {"--metric-json": settings.get("metric_json", ""), "--metric": settings.get("metric") or "metric"}
        given |= {"--parallel": str(settings.get("parallel") or ""), "--devices": ",".join(_devices(settings))}
    higher = settings.get("higher_is_better")
    for name in ("family", *_OF_THE_TASK, "device", "precision", "store", *RECIPE_NAMES):
        value = settings.get(name)
        unsaid = value in (None, "auto") or (name == "context" and not value) or isinstance(value, Store)
        said = "" if unsaid else value
        given[_FLAGS.get(name, f"--{name.replace('_', '-')}")] = said
    words = ["headwise", "compare", *(word for name, value in given.items() if value != "" for word in (name, value))]
    words += [] if higher is None else ["--higher-is-better" if higher else "--lower-is-better"]
    for name, value in (settings.get("options") or {}).items():
        words += ["--option", f"{name}={json.dumps(value).strip(chr(34))}"]
    return [",".join(map(str, word)) if isinstance(word, tuple) else str(word) for word in words]
