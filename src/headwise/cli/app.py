"""The command line: thin. Each command imports what it needs when it runs, so that `headwise --help` is instant."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli import checkpoints as cli_checkpoints
from headwise.cli import compare as cli_compare
from headwise.cli import export as cli_export
from headwise.cli import predict as cli_predict
from headwise.cli import report as cli_report
from headwise.cli import studies as cli_runs
from headwise.cli import tasks as cli_tasks
from headwise.cli import theory as cli_theory
from headwise.cli.terminal import AsJson, print_json

if TYPE_CHECKING:
    from headwise.known import Known

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="What shape should attention have? Heads, ranks, sharing, depth: at equal cost, on your task.",
    epilog="Start with: [bold]headwise demo[/bold]   then: [bold]headwise shapes nanochat-d28[/bold]",
)

for commands in (cli_runs, cli_report, cli_tasks, cli_theory, cli_checkpoints, cli_compare, cli_predict, cli_export):
    commands.add_to(app)

Shape = Annotated[str, typer.Argument(help="A shape (w512-h8-L6) or a known model (gpt2).", show_default=False)]
Family = Annotated[str, typer.Option(help="Make a bare shape a model: encoder, nanochat, gpt2, llama, bert, vit.")]
Context = Annotated[int, typer.Option(help="Tokens in a sequence.", show_default="the model's, else 1024")]


def main() -> None:
    """Run a command; what the user got wrong is one sentence and exit code 2."""
    from headwise.spec import SpecError

    try:
        app()
    except SpecError as error:
        typer.echo(f"headwise: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("headwise: stopped", err=True)
        sys.exit(130)


@app.command(epilog="Example: headwise demo --out my-demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the chart.")] = Path("headwise-demo"),
    seeds: Annotated[int, typer.Option(help="Runs of each shape.")] = 2,
    steps: Annotated[int, typer.Option(help="Training steps of each run.")] = 2000,
    store: Annotated[
        Path | None, typer.Option(help="Keep the runs in this store.", show_default="a temporary one")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """The rank cliff in about a minute, with a chart."""
    from tempfile import TemporaryDirectory

    from headwise.spec import SpecError
    from headwise.store.rows import rows as rows_of
    from headwise.studies import load
    from headwise.studies._demo import summarise

    if seeds < 1 or steps < 1:
        raise SpecError(f"the demo needs at least one seed and one step, not {seeds} and {steps}")
    study = load("rank-cliff")
    cells = study.cells(study.presets["demo"] | {"seeds": seeds, "steps": steps})
    if dry_run:
        shapes = list(dict.fromkeys(cell.run.shape for cell in cells))
        return print_document({"shapes": shapes, "seeds": seeds, "steps": steps}, as_json)

    from headwise.charts import grammar as charts
    from headwise.report.live import live_sweep
    from headwise.store.rows import results_of
    from headwise.store.store import Store
    from headwise.sweep.drive import conduct
    from headwise.sweep.plan import Stopped
    from headwise.sweep.resolve import fitted
    from headwise.training.run import Execution

    told = f"16 points in 16 dimensions, {steps:,} steps, {seeds} seeds"
    typer.echo(f"nearest-neighbour search: {told}", err=True)
    with TemporaryDirectory() as temporary, Store(store or Path(temporary) / "demo.db") as held:
        runs = fitted([cell.run for cell in cells], Execution(), held)
        try:
            with live_sweep(runs) as watch:
                summary = conduct(runs, held, folder=Path(temporary), watch=watch)
        except Stopped as stopped:
            summary = stopped.summary
        found = rows_of(cells, results_of(held, cells))
    if summary.stopped or summary.failed:
        typer.echo(f"headwise: {summary.stopped} runs stopped, {summary.failed} failed; no verdict", err=True)
        raise typer.Exit(130 if summary.stopped else 1)
    demo = summarise(found, steps)
    files = charts.save(charts.rank_curves(found, "Equal parameters, unequal sight", told), out, "rank-cliff")
    if as_json:
        document = {"trivial_error": demo.trivial_error, "arms": demo.rows, "verdict": demo.verdict}
        return print_document(document | {"charts": [str(file) for file in files]}, as_json)
    from headwise.report.tables import demo_table, show

    show("", demo_table(demo.rows, demo.trivial_error), "", demo.verdict)
    show(f"Chart: {files[0]}, and .svg, .pdf, .html beside it. Next: headwise shapes nanochat-d28")


@app.command(epilog="Example: headwise cost gpt2   or: headwise cost w512-h8-L6 --family llama --vocab 32000")
def cost(
    shape: Shape,
    family: Family = "",
    vocab: Annotated[int, typer.Option(help="Tokens in the vocabulary.", show_default=False)] = 0,
    context: Context = 0,
    image: Annotated[int, typer.Option(help="Side of an image (vit).")] = 224,
    patch: Annotated[int, typer.Option(help="Side of a patch (vit).")] = 16,
    classes: Annotated[int, typer.Option(help="Classes (vit).")] = 1000,
    dtype: Annotated[str, typer.Option(help="Of weights and cache: float32, bfloat16, float16.")] = "bfloat16",
    as_json: AsJson = False,
) -> None:
    """Parameters, FLOPs, cache and memory of one shape."""
    from headwise.cost import price

    details = {"image": image, "patch": patch, "classes": classes} if family == "vit" else {}
    known = _find(shape, family, vocab, context, **details)
    found = price(known.shape, known.options, context=context, dtype=dtype)
    if as_json:
        note = {"note": known.note} if known.note else {}
        return print_document(found.as_dict() | {"known_as": known.name or None} | note, as_json)
    from headwise.report.tables import cost_table, show

    show(*cost_table(found, known))


@app.command(epilog="Example: headwise shapes nanochat-d28 --hold params --vary heads,qk_rank")
def shapes(
    shape: Annotated[str, typer.Argument(help="The base: a shape or a known model.", show_default=False)] = "",
    known: Annotated[bool, typer.Option("--known", help="List the known models.")] = False,
    hold: Annotated[str, typer.Option(help="What stays equal: params, flops, kv or time.")] = "params",
    tolerance: Annotated[str, typer.Option(help="How far the held cost may be off.")] = "1%",
    vary: Annotated[str, typer.Option(help="Any of heads,qk_rank,v_rank,kv_heads,depth,mlp.")] = "heads",
    context: Context = 0,
    limit: Annotated[int, typer.Option(help="Rows of the table.")] = 40,
    as_json: AsJson = False,
) -> None:
    """Shapes of equal cost, or the known models."""
    from headwise.report.tables import known_table, shapes_table, show, times_table
    from headwise.spec import SpecError

    if known:
        return print_document(_known_rows(), as_json) if as_json else show(known_table())
    if not shape:
        raise SpecError("give a shape or a known model, as in 'headwise shapes gpt2', or --known for a list")
    base = _find(shape)
    axes = tuple(axis.strip() for axis in vary.split(",") if axis.strip())
    if hold == "time":
        from headwise.measure.step_time import equal_time

        with _progress("measuring a training step of each shape") as on_progress:
            times = equal_time(base.shape, base.options, vary=axes, context=context, on_progress=on_progress)
        return print_document(times.as_dict(), as_json) if as_json else show(*times_table(times))
    from headwise.search import equal_cost

    part = _fraction(tolerance)
    rows = equal_cost(base.shape, base.options, hold=hold, tolerance=part, vary=axes, context=context)
    if as_json:
        return print_document([row.as_dict() for row in rows], as_json)
    show(*shapes_table(rows, str(base.shape), hold, limit))


@app.command(epilog="Example: headwise doctor w512-h8-v128")
def doctor(
    shapes: Annotated[list[str] | None, typer.Argument(help="Shapes whose kernel to name.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Devices, safe precisions, and which kernel a shape gets here."""
    names = shapes or ["w512-h8", "w512-h8-g2", "w512-h8-r64-v128", "w512-h512"]
    layers = [_find(name).shape.layers[0] for name in names]

    from headwise.training.doctor import examine

    found = examine(layers)
    if as_json:
        return print_document(found, as_json)
    from headwise.report.tables import doctor_tables, show

    show(*doctor_tables(found))


# ---- helpers -------------------------------------------------------------------------------------------------------


def _find(shape: str, family: str = "", vocab: int = 0, context: int = 0, **details: Any) -> "Known":
    """The known model or bare shape, made a model where a family is given."""
    from dataclasses import replace

    from headwise.known import find
    from headwise.options import preset
    from headwise.spec import SpecError

    known = find(shape)
    if not family:
        if vocab:
            raise SpecError("--vocab needs a --family, as in --family llama --vocab 32000")
        return known
    if known.name:
        raise SpecError(f"{known.name} has a family of its own; give its shape instead: {known.shape}")
    return replace(known, options=preset(family, vocab=vocab, context=context, **details))


def _known_rows() -> list[dict[str, Any]]:
    from headwise.cost import parameters
    from headwise.known import KNOWN

    return [
        {
            "name": known.name,
            "shape": str(known.shape),
            "family": known.options.family,
            "parameters": parameters(known.shape, known.options)["total"],
            "published": known.published,
            "note": known.note,
        }
        for known in KNOWN.values()
    ]


def _fraction(text: str) -> float:
    """'1%' and '0.01' are the same."""
    from headwise.spec import SpecError

    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise SpecError(f"cannot read the tolerance '{text}'; write 1% or 0.01") from None


def print_document(document: Any, as_json: bool) -> None:
    """A document on standard output: JSON, or a line a field."""
    if as_json:
        return print_json(document)
    for name, value in document.items():
        typer.echo(f"{name}: {', '.join(value) if isinstance(value, list) else value}")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    console.print(what, highlight=False)
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
