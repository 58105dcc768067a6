"""The commands about runs: studies, claims, what the store holds, one run by itself."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwise.store import Store
    from headwise.studies import Study

study_app = typer.Typer(no_args_is_help=True, help="Studies: runs, a chart and verdicts.")
runs_app = typer.Typer(no_args_is_help=False, invoke_without_command=True, help="What the store holds.")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
StorePath = Annotated[
    Path | None, typer.Option("--store", help="Results file.", show_default="HEADWISE_STORE, else your data folder")
]
Preset = Annotated[str, typer.Option(help="smoke, laptop or paper.")]


def print_json(document: Any) -> None:
    """One document on standard output; JSON has no infinities and no NaN, so they become null."""
    typer.echo(json.dumps(_finite(document), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.add_typer(study_app, name="study")
    app.add_typer(runs_app, name="runs")
    app.command(epilog="Example: headwise claims --source Q")(claims)
    app.command(epilog="Example: headwise export runs.parquet")(export)
    app.command(epilog="Example: headwise train run.json --json")(train)


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
    from headwise.conduct import conduct, fitted, judge_all, price, resolve, study_rows
    from headwise.report.live import live_sweep
    from headwise.studies import load
    from headwise.sweep import make_plan, read_shard

    study = load(name)
    part = read_shard(shard)
    with _open(store) as held:
        runs = fitted([cell.run for cell in study.of(preset)], resolve(device, precision), held)
        plan = make_plan(runs, held, part)
        if dry_run:
            return _show_price(price(plan, workers or _cores()), as_json)
        from headwise.track import tracker

        with live_sweep(list(plan.todo)) as watch, tracker(track, name, watch) as watching:
            summary = conduct(
                runs,
                held,
                folder=_folder(held),
                workers=workers,
                watch=watching,
                shard=part,
                ray_address=ray,
                keep_weights=keep_weights or study.keep_weights,
            )
        judgements, rows = judge_all(study, held), study_rows(study, preset, held)
    chart = _draw(study, rows, preset, out) if rows else None
    _tell(study, preset, summary.as_dict(), judgements, chart, as_json)
    if summary.failed or summary.stopped:
        raise typer.Exit(130 if summary.stopped else 1)


def _draw(study: "Study", rows: Any, preset: str, out: Path | None) -> str:
    from headwise.report.charts import save

    folder = out or Path(f"headwise-{study.name}")
    return str(save(study.chart(rows, preset), folder, f"{study.name}-{preset}")[0])


def _tell(study: Any, preset: str, counts: dict[str, int], judgements: Any, chart: str | None, as_json: bool) -> None:
    if as_json:
        claims = [judgement.as_dict() for judgement in judgements]
        document = {"study": study.name, "preset": preset, "runs": counts, "claims": claims, "chart": chart}
        return print_json(document)
    from headwise.report.ledger import ledger
    from headwise.report.tables import show

    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    show(f"{study.name} ({preset}): {told}", "", *ledger(judgements))
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
    from headwise.conduct import judge_all
    from headwise.report.ledger import ledger
    from headwise.report.tables import show
    from headwise.spec import SpecError
    from headwise.studies import load_all

    if source and source.upper() not in ("Q", "L", "N"):
        raise SpecError(f"no source '{source}'; there are Q (rank), L (heads and depth) and N (nanochat)")
    with _open(store, from_) as held:
        found = [judgement for study in load_all() for judgement in judge_all(study, held)]
    found = [judgement for judgement in found if judgement.claim.id.startswith(source.upper())]
    if as_json:
        return print_json([judgement.as_dict() for judgement in found])
    show(*ledger(found))


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

    with _open(store) as held:
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

    with _open(store) as held:
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
    with _open(store) as held:
        merged = held.merge(files)
    if as_json:
        return print_json(vars(merged))
    typer.echo(", ".join(f"{count} {what}" for what, count in vars(merged).items()))


def export(
    path: Annotated[Path, typer.Argument(help="A .parquet or .csv file to write.")], store: StorePath = None
) -> None:
    """Write the store's runs as Parquet (whole) or CSV (a table)."""
    with _open(store) as held:
        held.export(path)
    typer.echo(f"wrote {path}")


# ---- one run -------------------------------------------------------------------------------------------------------


def train(
    spec: Annotated[str, typer.Argument(help="A run as JSON, or a file that holds it.", show_default=False)],
    store: StorePath = None,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder for its checkpoint.")] = None,
    as_json: AsJson = False,
) -> None:
    """One run by itself, also under torchrun where its execution wants several devices."""
    from headwise.run import Run
    from headwise.spec import SpecError

    try:
        given = json.loads(spec if spec.lstrip().startswith("{") else Path(spec).read_text())
        run = Run(**given)
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise SpecError(f"cannot read a run from '{spec}': {error}") from None
    from headwise.machine import use_one_core
    from headwise.train import train as train_run

    use_one_core()
    result = train_run(run, checkpoints=checkpoints)
    if _first_process():
        if store is not None:
            with _open(store) as held:
                held.add(run, result)
        if as_json:
            print_json(result.as_dict())
        else:
            typer.echo(f"{run.key} {result.status} {result.metrics}")
    if result.status == "failed":
        typer.echo(result.message, err=True)
        raise typer.Exit(1)


def _first_process() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def _open(path: Path | None, parquet: Path | None = None) -> "Store":
    from headwise.store import Store, default_path

    return Store.from_parquet(parquet) if parquet else Store(path or default_path())


def _folder(store: "Store") -> Path:
    """Checkpoints and weights lie beside the store."""
    return Path(store.path).with_suffix(".files")


def _cores() -> int:
    from headwise.sweep.local import usable_cores

    return usable_cores()
