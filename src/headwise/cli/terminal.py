"""What the commands share: options, a result as a table or as JSON, progress, and where results are."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from headwise.shown import Shown
    from headwise.sweep.plan import Watch
    from headwise.training.run import Run

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="File of stored runs.", show_default="$HEADWISE_STORE, else your data folder"),
]
ResultsFolder = Annotated[
    Path | None,
    typer.Option(
        "--from", help="Read runs from exported files (headwise export) in this folder.", show_default="the store"
    ),
]
ShippedResults = Annotated[
    Path | None,
    typer.Option("--from", help="Judge our claims from exported files here.", show_default="the shipped results"),
]
OwnStudies = Annotated[
    list[Path] | None,
    typer.Option(help="Also a study of your own, a .py file; repeat for more.", show_default="none"),
]
WorkersOption = Annotated[int, typer.Option(help="Number of processes.", min=0, show_default="one per core")]
RayAddress = Annotated[str | None, typer.Option(help="A Ray cluster: auto or its address.", show_default="none")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
TrackOption = Annotated[
    str, typer.Option(help="Also log curves to tensorboard or wandb while runs go on.", show_default="none")
]
PrecisionOption = Annotated[str, typer.Option(help="auto, float32 or bfloat16.")]
Result = TypeVar("Result", bound="Shown")


def show_or_json(result: Result, as_json: bool, render: Callable[[Result], Iterable[Any]]) -> None:
    """A result on standard output: one JSON document, or what `render` makes of it."""
    if as_json:
        return typer.echo(result.to_json())
    from headwise.report.tables import show

    show(*render(result))


def print_json(document: Any) -> None:
    """One document on standard output; JSON has no infinities and no NaN, so they become null."""
    from headwise.shown import finite

    typer.echo(json.dumps(finite(document), indent=2, allow_nan=False))


def chart_folder(folder: Path) -> Path | None:
    """A folder for a chart that can be written to; where charts cannot be drawn, None, and a line that says why."""
    from headwise.extras import has, missing
    from headwise.spec import check_writable

    if has("report"):
        check_writable(folder)
        return folder
    typer.echo(f"headwise: without a chart: {missing('report', 'charts')}", err=True)
    return None


def listed(text: str) -> list[str]:
    """The words of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


@contextmanager
def watched(runs: "list[Run]", stage: str) -> "Iterator[Watch]":
    """Progress bars on standard error, under the name of the stage."""
    from headwise.report.live import live_sweep

    if stage:
        typer.echo(stage, err=True)
    with live_sweep(runs) as watch:
        yield watch


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left, on standard error; a line for every tenth where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    console.print(what, highlight=False, markup=False)
    if not console.is_terminal:
        yield _lines(what)
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def later(stack: ExitStack, what: str) -> Callable[[float, float], None]:
    """Such a bar for work that may begin late, if at all, and more than once; it closes when all is done."""
    open_bars: list[Callable[[int, int], None]] = []

    def tell(done: float, total: float) -> None:
        if not open_bars:
            open_bars.append(stack.enter_context(progress(what)))
        open_bars[0](round(done), round(total))
        if done >= total:
            stack.close()
            open_bars.clear()

    return tell


def bar(what: str) -> Any:
    """A function that gives the items of a sequence back, and shows on standard error how many are done."""
    from functools import partial

    from rich.console import Console
    from rich.progress import track

    screen = Console(stderr=True)
    if screen.is_terminal:
        return partial(track, description=what, console=screen, transient=True)
    return partial(_counted, _lines(what))


def _counted(tell: Callable[[int, int], None], items: Sequence[Any]) -> Iterator[Any]:
    for done, item in enumerate(items, 1):
        yield item
        tell(done, len(items))


def _lines(what: str) -> Callable[[int, int], None]:
    """A plain line whenever another tenth is done."""
    tenths = [0]

    def tell(done: int, total: int) -> None:
        if total and (now := 10 * done // total) > tenths[0]:
            tenths[0] = now
            typer.echo(f"{what}: {done} of {total}", err=True)

    return tell
