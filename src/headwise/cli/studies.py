"""The commands about runs: studies, claims, what the store holds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.terminal import (
    AsJson,
    DeviceOption,
    OwnStudies,
    PrecisionOption,
    RayAddress,
    ResultsFolder,
    StorePath,
    TrackOption,
    WorkersOption,
    chart_folder,
    print_json,
    show_or_json,
    watched,
)

MOST_RUNS = 40  # lines of a table
StudyName = Annotated[
    str, typer.Argument(help="A study (headwise study list), or a .py file of your own.", show_default=False)
]
study_app = typer.Typer(
    no_args_is_help=True,
    help="List, describe and run studies: their runs, chart and verdicts.",
    epilog="Example: headwise study run rank-cliff --preset smoke",
)
runs_app = typer.Typer(
    no_args_is_help=False, invoke_without_command=True, help="List stored runs; show or remove one; merge stores."
)


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.add_typer(study_app, name="study")
    app.add_typer(runs_app, name="runs")
    app.command(epilog="Example: headwise claims --source Q")(claims)
    app.command(epilog="Example: headwise export runs.jsonl.xz")(export)


# ---- studies -------------------------------------------------------------------------------------------------------


@study_app.command("list", epilog="Example: headwise study list")
def study_list(as_json: AsJson = False) -> None:
    """List the studies."""
    import headwise
    from headwise.report.studies import study_lines

    show_or_json(headwise.list_studies(), as_json, study_lines)


@study_app.command("show", epilog="Example: headwise study show rank-cliff")
def study_show(name: StudyName, as_json: AsJson = False) -> None:
    """Describe a study: its question, and what each preset runs."""
    import headwise
    from headwise.report.studies import study_card

    show_or_json(headwise.describe_study(name), as_json, study_card)


@study_app.command("run", epilog="Example: headwise study run rank-cliff --preset laptop")
def study_run(
    name: StudyName,
    preset: Annotated[
        str, typer.Option(help="Size of the runs: smoke, laptop, desktop (registered) or paper.")
    ] = "laptop",
    store: StorePath = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the chart.", show_default="headwise-NAME")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Where a task reads its data: TASK=PLACE.", show_default="the tasks' own")
    ] = None,
    workers: WorkersOption = 0,
    shard: Annotated[
        str | None, typer.Option(help="Only part i of n of the runs: 0/8 to 7/8.", show_default="from a Slurm array")
    ] = None,
    ray: RayAddress = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    keep_weights: Annotated[bool, typer.Option("--keep-weights", help="Keep final weights beside the store.")] = False,
    track: TrackOption = "",
    pilot: Annotated[
        bool, typer.Option("--pilot", help="Of a registered study: run a pilot, and print what its gates say.")
    ] = False,
    pilot_seeds: Annotated[int, typer.Option(min=2, max=100, help="Seeds of a pilot, from 100 on.")] = 3,
    only: Annotated[str, typer.Option(help="Of a pilot: variants with these words.", show_default="all")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what the runs cost, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a study's missing runs, draw its chart, judge its claims."""
    import headwise
    from headwise.report.studies import price_lines, study_result_lines

    settings: dict[str, Any] = {"store": store, "data": _sources(data), "workers": workers, "shard": shard}
    settings |= {"device": device, "precision": precision}
    if dry_run:
        return show_or_json(headwise.price_study(name, preset, **settings), as_json, price_lines)
    folder = chart_folder(out or Path(f"headwise-{Path(name).stem}"))
    settings |= {"keep_weights": keep_weights, "ray": ray, "track": track, "watching": watched}
    settings |= {"pilot": pilot_seeds if pilot else 0, "only": only}
    result = headwise.run_study(name, preset, out=folder, **settings)
    show_or_json(result, as_json, study_result_lines)
    if result.summary.failed:
        raise typer.Exit(1)


def _sources(data: list[str] | None) -> dict[str, str]:
    """Where tasks find their data, from TASK=PLACE."""
    from headwise.spec import SpecError

    sources = dict(pair.partition("=")[::2] for pair in data or [])
    for task, place in sources.items():
        if not place:
            raise SpecError(f"--data {task} names no place; write it as in --data text=stories.txt")
    return sources


# ---- claims --------------------------------------------------------------------------------------------------------


def claims(
    source: Annotated[
        str, typer.Option(help="Only claims whose id begins with these letters, such as Q, N or L.", show_default="all")
    ] = "",
    study: OwnStudies = None,
    from_: ResultsFolder = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Print the ledger: what the papers claim, and what the runs say."""
    import headwise
    from headwise.report.ledger import certificate, ledger

    judged = headwise.claims(source, store=store, results=from_, studies=study or ())
    show_or_json(judged, as_json, lambda whole: (*ledger(whole), "", *certificate(whole.certified)))
    if judged.violations:
        keys = ", ".join(run.key for run in judged.violations)
        typer.echo(f"headwise: below what is certified: {keys}", err=True)
        raise typer.Exit(1)


# ---- the store -----------------------------------------------------------------------------------------------------


@runs_app.callback(epilog="Example: headwise runs --status failed")
def runs_list(
    context: typer.Context,
    status: Annotated[str, typer.Option(help="Only done, diverged or failed.", show_default="all")] = "",
    task: Annotated[str, typer.Option(help="Only runs of this task.", show_default="all")] = "",
    limit: Annotated[
        int | None, typer.Option(help="Only so many, the newest.", min=1, show_default="40; all with --json")
    ] = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """List stored runs; show or remove one; merge stores."""
    if context.invoked_subcommand:
        return
    import headwise
    from headwise.report.runs import runs_lines

    most = limit or (0 if as_json else MOST_RUNS)
    show_or_json(headwise.runs(store, status=status, task=task, limit=most), as_json, runs_lines)


@runs_app.command("show", epilog="Example: headwise runs show 82cd05")
def runs_show(
    key: Annotated[str, typer.Argument(help="Key of a run; its beginning will do.")],
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Show one run: its spec, environment, metrics, and the command that repeats it."""
    import headwise
    from headwise.report.runs import run_card

    show_or_json(headwise.find_run(key, store), as_json, run_card)


@runs_app.command("merge", epilog="Example: headwise runs merge shard-0.db shard-1.db results/")
def runs_merge(
    files: Annotated[
        list[Path], typer.Argument(help="Stores, exported files, or folders of them.", show_default=False)
    ],
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Merge other stores, or exported files, into this one."""
    import headwise

    merged = vars(headwise.merge_runs(files, store))
    print_json(merged) if as_json else typer.echo(", ".join(f"{count} {what}" for what, count in merged.items()))


@runs_app.command("remove", epilog="Example: headwise runs remove 82cd05")
def runs_remove(
    keys: Annotated[
        list[str] | None, typer.Argument(help="Keys of runs; their beginnings will do.", show_default="none")
    ] = None,
    unreadable: Annotated[bool, typer.Option("--unreadable", help="Remove all rows that cannot be read.")] = False,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Remove runs from the store, so that they are trained again when they are asked for."""
    import headwise

    show_or_json(headwise.remove_runs(keys or (), store, unreadable=unreadable), as_json, lambda gone: [gone.headline])


def export(
    path: Annotated[
        Path | None, typer.Argument(help="A .jsonl.xz, .parquet or .csv file to write.", show_default="none")
    ] = None,
    optuna: Annotated[
        Path | None, typer.Option(help="A new file for optuna-dashboard: a study per task.", show_default="none")
    ] = None,
    wandb: Annotated[
        str, typer.Option(help="Log a table of the runs to this project of Weights & Biases.", show_default="none")
    ] = "",
    store: StorePath = None,
) -> None:
    """Write the store's runs: .jsonl.xz or .parquet (everything), .csv (a table); or to a dashboard."""
    import headwise
    from headwise.spec import SpecError

    if not (path or optuna or wandb):
        raise SpecError("say where to: a file (runs.jsonl.xz), --optuna FILE or --wandb PROJECT")
    if path:
        headwise.export_runs(path, store)
        typer.echo(f"wrote {path}")
    if optuna:
        count = headwise.export_optuna(optuna, store)
        typer.echo(f"wrote {count} runs to {optuna}; see them with: optuna-dashboard sqlite:///{optuna}")
    if wandb:
        typer.echo(f"logged a table of {headwise.export_wandb(wandb, store)} runs to {wandb}")
