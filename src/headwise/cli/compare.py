"""The commands about choosing a shape: compare on a task or in one's own trainer, or ask the ledger."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.terminal import AsJson, StorePath, open_store, print_json

if TYPE_CHECKING:
    from headwise.comparison.answer import Trainer
    from headwise.comparison.plan import Plan, Question
    from headwise.store.store import Store
    from headwise.sweep.plan import Watch


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise compare --task text:my.txt --base w64-h4-L2 --budget 25m")(compare)
    app.command(epilog="Example: headwise suggest --base w512-h8-L6 --goal memory")(suggest)


def compare(
    task: Annotated[
        str, typer.Option(help="What to learn, as in text:my.txt; headwise tasks lists them.", show_default="none")
    ] = "",
    base: Annotated[str, typer.Option(help="The shape to beat.", show_default="the task's usual one")] = "",
    arms: Annotated[
        list[str] | None, typer.Option(help="Shapes to compare, each its own --arms.", show_default="of equal cost")
    ] = None,
    hold: Annotated[str, typer.Option(help="What is equal in all arms: params, flops, kv or time.")] = "params",
    vary: Annotated[str, typer.Option(help="Proposed arms: heads,qk_rank,v_rank,kv_heads,depth,mlp.")] = "heads",
    budget: Annotated[str, typer.Option(help="Time for all of it: 90s, 30m, 2h.")] = "30m",
    steps: Annotated[int, typer.Option(help="Of the finalists' runs.", show_default="what fits the budget")] = 0,
    seeds: Annotated[int, typer.Option(help="Of each finalist.", show_default="what fits the budget")] = 0,
    rates: Annotated[str, typer.Option(help="Learning rates to choose from.", show_default="0.002 to 0.032")] = "",
    batch: Annotated[int, typer.Option(help="Samples a step.", show_default="16")] = 0,
    command: Annotated[str, typer.Option(help="Your own trainer, with {heads}, {lr}, {seed}, ... in it.")] = "",
    metric_json: Annotated[str, typer.Option(help="The file it writes; may have {seed}, {key}, ... in it.")] = "",
    metric: Annotated[str, typer.Option(help="Name of the number in that file, or column of --from.")] = "metric",
    from_: Annotated[
        Path | None, typer.Option("--from", help="Judge finished runs: a CSV of arm, seed, metric.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.", show_default="one a core")] = 0,
    ray: Annotated[str | None, typer.Option(help="A Ray cluster: auto or its address.", show_default="none")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    store: StorePath = None,
    out: Annotated[Path, typer.Option(help="Folder for the chart.")] = Path("headwise-compare"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan and price it, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Which shape is best for a task within a budget: tuned, paired, judged."""
    from headwise.comparison.pace import allowed
    from headwise.comparison.plan import BATCH, RATES
    from headwise.spec import SpecError

    if sum(map(bool, (task, command, from_))) != 1:
        raise SpecError("give one of --task (to train here), --command (your own trainer) and --from (finished runs)")
    if from_:
        return _judge_table(from_, base, metric, out, as_json)
    axes = tuple(axis.strip() for axis in vary.split(",") if axis.strip())
    shapes = tuple(shape for text in arms or [] for shape in text.split())
    settings: dict[str, Any] = {"arms": shapes, "hold": hold, "vary": axes, "steps": steps, "seeds": seeds}
    settings |= {"budget": allowed(budget, steps, seeds)}
    grid = _rates(rates)
    with open_store(store) as held:
        trainer: Trainer
        if command:
            from headwise.comparison.external import Theirs

            question, trainer = _their_question(command, metric_json, metric, base, grid, settings), Theirs(held)
        else:
            from headwise.comparison.answer import Ours, ask
            from headwise.tasks import parse

            place = {"device": device, "precision": precision}
            settings |= {"rates": grid or RATES, "batch": batch or BATCH}
            question = ask(task, base or parse(task).usual_shape, **settings, **place)
            trainer = Ours(held, held.files, question.execution, workers, ray)
        words = ["headwise", "compare", *(["--task", task] if task else ["--command", command])]
        words += ["--metric-json", metric_json, "--metric", metric] if command else []
        words += [
            word
            for name, value in (("--device", device), ("--precision", precision))
            if value != "auto"
            for word in (name, value)
        ]
        words += ["--store", str(store)] if store else []
        _answer(question, trainer, held, words, out, dry_run, as_json)


def _answer(
    question: "Question", trainer: "Trainer", held: "Store", words: list[str], out: Path, dry_run: bool, as_json: bool
) -> None:
    from headwise.comparison.answer import answer, carry_out, remembered
    from headwise.comparison.pace import plan_seconds
    from headwise.comparison.verdict import arm_rows, confounds, document, held_equal, rerun, settle
    from headwise.report.compare import answer_tables, chart, plan_lines
    from headwise.report.tables import show
    from headwise.sweep.plan import Stopped

    plan = remembered(question, held.files, trainer)
    seconds = plan_seconds(plan, trainer.workers)
    lines = plan_lines(plan, seconds, trainer.workers)
    if dry_run:
        return print_json(_planned(plan, seconds)) if as_json else show(*lines)
    typer.echo("\n".join(lines), err=True)
    try:
        summary = carry_out(plan, held, trainer, lambda runs, stage: _watched(held, runs, stage))
    except Stopped:
        typer.echo("headwise: stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    found = answer(plan, held, trainer)
    again = rerun(plan, words) if plan.hold != "time" else shlex.join(["headwise", *sys.argv[1:]])
    told: dict[str, Any] = {
        "held": held_equal(plan),
        "confounds": confounds(found),
        "settle": settle(found, words, trainer.workers),
    }
    told |= {"rerun": again, "runs": summary.as_dict(), "plan": _planned(plan, seconds)}
    whole = document(found.answer, arm_rows(found), **told)
    whole["chart"] = _draw(chart(found.rows, whole, _loss_name(plan)), out, question.key)
    print_json(whole) if as_json else show("", *answer_tables(whole))
    if summary.failed:
        typer.echo(f"headwise: {summary.failed} runs failed; headwise runs --status failed lists them", err=True)
        raise typer.Exit(1)


def _their_question(
    command: str, metric_json: str, metric: str, base: str, grid: tuple[float, ...], settings: dict[str, Any]
) -> "Question":
    from headwise.comparison.external import WORD, trainer
    from headwise.comparison.plan import RATES, Question
    from headwise.known import find
    from headwise.options import ModelOptions
    from headwise.spec import SpecError

    task, words = trainer(command, metric_json, metric), set(WORD.findall(command))
    if not base:
        raise SpecError("--command needs a --base: the shape that your model has now")
    if settings["hold"] == "time":
        raise SpecError("time cannot be held in a trainer of your own: hold params, flops or kv, or give --arms")
    if "lr" in words and not grid:
        raise SpecError("the command asks for {lr}: give --rates, as in --rates 0.0003,0.001,0.003")
    if "steps" in words and not settings["steps"]:
        raise SpecError("the command asks for {steps}: give --steps, the length of a full run")
    settings |= {"rates": grid if "lr" in words else RATES[:1], "steps": settings["steps"] or 1}
    about: dict[str, Any] = {"options": ModelOptions(), "tokens": 0, "held_out": (0, 0), "shorter": "steps" in words}
    return Question(task=task, base=str(find(base).shape), **about, **settings)


def _judge_table(path: Path, base: str, metric: str, out: Path, as_json: bool) -> None:
    """Finished runs: nothing is done, and what was held equal is not known."""
    from headwise.comparison.external import read_rows
    from headwise.comparison.judge import judge
    from headwise.comparison.verdict import csv_rows, csv_settle, document
    from headwise.report.compare import answer_tables, chart
    from headwise.report.tables import show
    from headwise.spec import SpecError

    rows = read_rows(path, metric)
    arms = list(dict.fromkeys(row.cell["arm"] for row in rows))
    if base and base not in arms:
        raise SpecError(f"no runs of the base '{base}' in {path}; its arms are {', '.join(arms)}")
    answer = judge(rows, base or arms[0])
    whole = document(answer, csv_rows(answer, rows), settle=csv_settle(answer))
    whole["chart"] = _draw(chart(rows, whole, metric), out, path.stem)
    print_json(whole) if as_json else show(*answer_tables(whole))


def _rates(text: str) -> tuple[float, ...]:
    from headwise.spec import SpecError

    try:
        grid = tuple(sorted(float(part) for part in text.split(","))) if text else ()
    except ValueError:
        raise SpecError(f"cannot read '{text}' as learning rates; write them as in 0.001,0.003,0.01") from None
    if any(rate <= 0 for rate in grid) or len(set(grid)) < len(grid):
        raise SpecError(f"learning rates are positive and different from each other, not {text}")
    return grid


def _planned(plan: "Plan", seconds: float) -> dict[str, Any]:
    arms = [arm.model_dump() for arm in plan.arms]
    lengths = {"steps": plan.arms[0].steps, "seeds": plan.seeds, "rates": plan.rates, "rungs": plan.rungs}
    return {"base": plan.base, "hold": plan.hold, **lengths, "seconds": seconds, "arms": arms}


def _loss_name(plan: "Plan") -> str:
    return str(plan.task.get("metric", f"test error on {plan.task['name']}"))


def _draw(drawn: Any, out: Path, name: str) -> str | None:
    if drawn is None:
        return None
    from headwise.charts.grammar import save

    return str(save(drawn, out, name)[0])


@contextmanager
def _watched(held: "Store", runs: list[Any], stage: str) -> Iterator["Watch"]:
    from headwise.report.live import live_sweep
    from headwise.sweep.plan import make_plan

    typer.echo(stage, err=True)
    with live_sweep(list(make_plan(runs, held).todo)) as watch:
        yield watch


def suggest(
    base: Annotated[str, typer.Option(help="The shape you have in mind, or a known model.", show_default=False)],
    goal: Annotated[str, typer.Option(help="quality, speed or memory.")] = "quality",
    context: Annotated[int, typer.Option(help="Tokens in a sequence.", show_default="the model's, else 1024")] = 0,
    from_: Annotated[Path | None, typer.Option("--from", help="Read runs from Parquet files here instead.")] = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Shapes to try before any training: exact costs, and what the ledger says."""
    from headwise.comparison.suggest import STUDIES, suggestions
    from headwise.known import find
    from headwise.ledger.judge import judge_all
    from headwise.ledger.study import study_rows
    from headwise.report.suggest import suggestion_lines
    from headwise.report.tables import show
    from headwise.studies import load
    from headwise.studies.predict_the_trade import STUDY, law_of

    known = find(base)
    with open_store(store, from_) as held:
        judged = [judgement for name in STUDIES for judgement in judge_all(load(name), held)]
        law = law_of(lambda preset: study_rows(STUDY, preset, held))
    found = suggestions(known.shape, known.options, goal, judged, context, law)
    print_json(found) if as_json else show(*suggestion_lines(found))
