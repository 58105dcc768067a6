"""The commands about runs: studies, claims, what the store holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.terminal import AsJson, StorePath, open_store, print_json

if TYPE_CHECKING:
    from headwise.ledger.study import Study

study_app = typer.Typer(no_args_is_help=True, help="Studies: runs, a chart and verdicts.")
runs_app = typer.Typer(no_args_is_help=False, invoke_without_command=True, help="What the store holds.")

Preset = Annotated[str, typer.Option(help="smoke, laptop or paper.")]


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.add_typer(study_app, name="study")
    app.add_typer(runs_app, name="runs")
    app.command(epilog="Example: headwise claims --source Q")(claims)
    app.command(epilog="Example: headwise export runs.parquet")(export)


# ---- studies -------------------------------------------------------------------------------------------------------


@study_app.command("list", epilog="Example: headwise study list")
def study_list(as_json: AsJson = False) -> None:
    """The studies there are."""
    from headwise.studies import load_all

    found = [
        {"name": s.name, "about": s.about.strip().splitlines()[0], "claims": [claim.id for claim in s.claims]}
        for s in load_all()
    ]
    if as_json:
        return print_json(found)
    for study in found:
        typer.echo(f"{study['name']:16} {study['about']} ({', '.join(study['claims'])})")


@study_app.command("show", epilog="Example: headwise study show rank-cliff")
def study_show(name: str, as_json: AsJson = False) -> None:
    """What a study asks, and what each preset would run."""
    from headwise.studies import load

    study = load(name)
    presets = {preset: {"runs": len(study.of(preset)), **study.presets[preset]} for preset in study.presets}
    if as_json:
        return print_json({"name": name, "about": study.about, "presets": presets})
    typer.echo(study.about.strip() + "\n")
    for preset, settings in presets.items():
        told = ", ".join(f"{key} {value}" for key, value in settings.items() if key != "grid")
        typer.echo(f"{preset:8} {told}")


@study_app.command("run", epilog="Example: headwise study run rank-cliff --preset laptop")
def study_run(
    name: Annotated[str, typer.Argument(help="A study; see headwise study list.", show_default=False)],
    preset: Preset = "laptop",
    store: StorePath = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the chart.", show_default="headwise-NAME")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="TASK=PLACE, for tasks that read data.", show_default="the tasks' own")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.", show_default="one a core")] = 0,
    shard: Annotated[str | None, typer.Option(help="Part i/n of the runs.", show_default="from a Slurm array")] = None,
    ray: Annotated[str | None, typer.Option(help="A Ray cluster: auto or its address.", show_default="none")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    keep_weights: Annotated[bool, typer.Option("--keep-weights", help="Keep final weights beside the store.")] = False,
    track: Annotated[str, typer.Option(help="Mirror curves: tensorboard or wandb.", show_default="none")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Price the runs, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Do a study's runs that the store lacks, draw its chart, judge its claims."""
    from headwise.ledger.judge import judge_all
    from headwise.ledger.study import stages, study_rows
    from headwise.report.live import live_sweep
    from headwise.studies import load
    from headwise.sweep.drive import conduct
    from headwise.sweep.plan import Stopped, Summary, make_plan, read_shard
    from headwise.sweep.price import price
    from headwise.sweep.resolve import fitted, resolve
    from headwise.sweep.tracking import tracker

    study, part, execution, sources = load(name), read_shard(shard), resolve(device, precision), _sources(data)
    summary = Summary()
    with open_store(store) as held:
        if dry_run:
            cells = study.trials(preset) + study.of(preset)
            plan = make_plan(fitted([cell.run for cell in cells], execution, held, sources), held, part)
            return _show_price(price(plan, workers or _cores()), as_json)
        for runs in stages(study, preset, held, execution, sources):
            plan = make_plan(runs, held, part)
            try:
                with live_sweep(list(plan.todo)) as watch, tracker(track, name, watch) as watching:
                    summary += conduct(
                        runs,
                        held,
                        folder=held.files,
                        workers=workers,
                        watch=watching,
                        shard=part,
                        ray_address=ray,
                        keep_weights=keep_weights or study.keep_weights,
                    )
            except Stopped as stopped:
                summary += stopped.summary
                break
        judgements, rows = judge_all(study, held), study_rows(study, preset, held)
    chart = _draw(study, rows, preset, out) if rows or not summary.planned else None
    beside = study.against_published(rows) if study.against_published else []
    _tell(study, preset, summary.as_dict(), judgements, chart, beside, as_json)
    if summary.failed or summary.stopped:
        raise typer.Exit(130 if summary.stopped else 1)


def _sources(data: list[str] | None) -> dict[str, str]:
    """Where tasks find their data, from TASK=PLACE."""
    from headwise.spec import SpecError

    found = dict(pair.partition("=")[::2] for pair in data or [])
    for task, place in found.items():
        if not place:
            raise SpecError(f"--data {task} names no place; write it as in --data text=stories.txt")
    return found


def _draw(study: "Study", rows: Any, preset: str, out: Path | None) -> str:
    from headwise.charts.grammar import save

    folder = out or Path(f"headwise-{study.name}")
    return str(save(study.chart(rows, preset), folder, f"{study.name}-{preset}")[0])


def _tell(
    study: Any,
    preset: str,
    counts: dict[str, int],
    judgements: Any,
    chart: str | None,
    beside: list[dict[str, float]],
    as_json: bool,
) -> None:
    if as_json:
        claims = [judgement.as_dict() for judgement in judgements]
        document = {"study": study.name, "preset": preset, "runs": counts, "claims": claims, "chart": chart}
        return print_json(document | {"published": beside})
    from headwise.report.ledger import ledger
    from headwise.report.tables import published_table, show

    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    show(f"{study.name} ({preset}): {told}", "", *ledger(judgements))
    if beside:
        show("", published_table(beside))
    if chart:
        show(f"Chart: {chart}, and .svg, .pdf, .html beside it")


def _show_price(found: Any, as_json: bool) -> None:
    if as_json:
        return print_json(vars(found))
    from headwise.report.tables import short as text
    from headwise.report.tables import show

    minutes = found.seconds / 60
    show(f"{found.runs} runs to do, {found.found} already in the store")
    show(f"{text(found.parameters)} parameters in all, {text(found.flops, 'FLOP')}")
    show(f"about {minutes:.0f} minutes on {found.workers} processes of this machine, from a few steps measured now")


# ---- claims --------------------------------------------------------------------------------------------------------


def claims(
    source: Annotated[str, typer.Option(help="Only claims of this paper: Q, L or N.", show_default="all")] = "",
    from_: Annotated[Path | None, typer.Option("--from", help="Read runs from Parquet files here instead.")] = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """The ledger: what the papers claim, and what the runs say."""
    from headwise.ledger.certify import check
    from headwise.ledger.judge import SOURCES, judge_all, place
    from headwise.report.ledger import certificate, ledger
    from headwise.report.tables import show
    from headwise.spec import SpecError
    from headwise.studies import load_all

    if source and source.upper() not in SOURCES:
        told = ", ".join(f"{letter} ({about})" for letter, about in SOURCES.items())
        raise SpecError(f"no source '{source}'; there are {told}")
    with open_store(store, from_) as held:
        asked = [study for study in load_all() if any(claim.id.startswith(source.upper()) for claim in study.claims)]
        found = sorted((judgement for study in asked for judgement in judge_all(study, held)), key=place)
        checked = check(held.runs(status="done", task="nearest-neighbor"))
    found = [judgement for judgement in found if judgement.claim.id.startswith(source.upper())]
    if as_json:
        print_json([judgement.as_dict() for judgement in found])
    else:
        show(*ledger(found), "", *certificate(checked))
    if wrong := [run for run in checked if run.violates]:
        typer.echo(f"headwise: below what is certified: {', '.join(run.key for run in wrong)}", err=True)
        raise typer.Exit(1)


# ---- the store -----------------------------------------------------------------------------------------------------


@runs_app.callback(epilog="Example: headwise runs --status failed")
def runs_list(
    context: typer.Context,
    status: Annotated[str, typer.Option(help="Only done, diverged or failed.", show_default="all")] = "",
    task: Annotated[str, typer.Option(help="Only runs of this task.", show_default="all")] = "",
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """List and filter runs; show one; merge other stores."""
    if context.invoked_subcommand:
        return
    from headwise.report.runs import runs_table
    from headwise.report.tables import show

    with open_store(store) as held:
        found = list(held.runs(status=status or None, task=task or None))
    if as_json:
        rows = [{**run.model_dump(), **result.as_dict()} for run, result in found]
        return print_json(rows)
    show(runs_table(found))


@runs_app.command("show", epilog="Example: headwise runs show 82cd05")
def runs_show(
    key: Annotated[str, typer.Argument(help="A run's key, or its beginning.")],
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """One run: its spec, environment, numbers, and the command to do it again."""
    from headwise.report.runs import run_card
    from headwise.report.tables import show
    from headwise.spec import SpecError

    with open_store(store) as held:
        found = held.get(key)
    if found is None:
        raise SpecError(f"no run {key} in this store; headwise runs lists them")
    run, result = found
    if as_json:
        return print_json({**run.model_dump(), **result.as_dict()})
    show(*run_card(run, result, result.curve))


@runs_app.command("merge", epilog="Example: headwise runs merge shard-0.db shard-1.db results/")
def runs_merge(files: list[Path], store: StorePath = None, as_json: AsJson = False) -> None:
    """Join other stores, or exported Parquet files, into this one by key."""
    with open_store(store) as held:
        merged = held.merge(files)
    if as_json:
        return print_json(vars(merged))
    typer.echo(", ".join(f"{count} {what}" for what, count in vars(merged).items()))


def export(
    path: Annotated[Path, typer.Argument(help="A .parquet or .csv file to write.")], store: StorePath = None
) -> None:
    """Write the store's runs as Parquet (whole) or CSV (a table)."""
    with open_store(store) as held:
        held.export(path)
    typer.echo(f"wrote {path}")


def _cores() -> int:
    from headwise.sweep.local import usable_cores

    return usable_cores()
