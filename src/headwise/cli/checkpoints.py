"""The commands about checkpoints: what rank the heads of a trained model use, and a copy with less of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.terminal import AsJson, print_json

if TYPE_CHECKING:
    from headwise.checkpoints.on_text import OnText
    from headwise.checkpoints.reader import Reader
    from headwise.checkpoints.truncation import Plan

Source = Annotated[
    str, typer.Argument(help="A folder, a file, or OWNER/NAME on the Hugging Face hub.", show_default=False)
]
HeadCount = Annotated[int | None, typer.Option("--heads", help="Where the files do not say it.", show_default=False)]
Text = Annotated[Path | None, typer.Option("--data", help="Text to run the model on.", show_default="no run")]


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise inspect path/to/model --report heads.html")(inspect)
    app.command(epilog="Example: headwise truncate path/to/model --keep 0.95 --out smaller")(truncate)


def inspect(
    checkpoint: Source,
    report: Annotated[
        Path | None, typer.Option(help="Heat maps: this page, and pictures beside it.", show_default="none")
    ] = None,
    data: Text = None,
    keep: Annotated[float, typer.Option(help="With --data: the energy that truncated heads keep.")] = 0.99,
    heads: HeadCount = None,
    as_json: AsJson = False,
) -> None:
    """What rank the heads of a trained model really use."""
    from headwise.checkpoints.inspection import inspect as measure
    from headwise.checkpoints.truncation import plan

    reader = _open(checkpoint, heads)
    run = _on_text(reader, data)
    found = measure(reader, run.entropies if run else None)
    document = found.as_dict()
    if run:
        document |= _loss(reader, run, plan(reader, keep))
    if report is not None:
        from headwise.charts.grammar import save
        from headwise.report.inspection import heat_maps

        files = save(heat_maps(found), report.parent, report.stem)
        document |= {"report": [str(file) for file in files]}
    if as_json:
        return print_json(document)
    from headwise.report.inspection import inspection_tables, text_lines
    from headwise.report.tables import show

    show(*inspection_tables(found), *(text_lines(document, keep) if run else []))
    if report is not None:
        show(f"Heat maps: {report}, and .png, .svg, .pdf beside it")


def truncate(
    checkpoint: Source,
    out: Annotated[Path, typer.Option(help="Folder for the new checkpoint.", show_default=False)],
    keep: Annotated[float, typer.Option(help="Share of the energy of QK and of VO that heads keep.")] = 0.99,
    data: Text = None,
    pad: Annotated[bool, typer.Option("--pad", help="Zeros in the old sizes: any library runs it.")] = False,
    heads: HeadCount = None,
    as_json: AsJson = False,
) -> None:
    """A checkpoint of smaller rank, and what it cost."""
    from headwise.checkpoints.files import check_new
    from headwise.checkpoints.truncation import plan
    from headwise.checkpoints.truncation import truncate as write

    check_new(out)  # before any work
    reader = _open(checkpoint, heads)
    run = _on_text(reader, data)
    planned = plan(reader, keep)
    found = write(reader, planned, out, pad=pad)
    document: dict[str, Any] = found.as_dict() | {"out": str(out), "keep": keep}
    document |= _loss(reader, run, planned) if run else {}
    if as_json:
        return print_json(document)
    from headwise.report.inspection import text_lines, truncation_lines
    from headwise.report.tables import show

    show(*truncation_lines(found, keep, str(out)), *(text_lines(document, keep) if run else []))


def _open(checkpoint: str, heads: int | None) -> "Reader":
    """A reader that shows its progress on standard error."""
    from functools import partial

    from rich.console import Console
    from rich.progress import track

    from headwise.checkpoints import open_checkpoint

    reader, screen = open_checkpoint(checkpoint, heads), Console(stderr=True)
    reader.watch = partial(track, description="layers", console=screen, transient=True, disable=not screen.is_terminal)
    return reader


def _on_text(reader: "Reader", data: Path | None) -> "OnText | None":
    if data is None:
        return None
    from headwise.checkpoints.on_text import OnText

    return OnText(reader, data)


def _loss(reader: "Reader", run: "OnText", planned: "Plan") -> dict[str, Any]:
    """Before and after heads are cut."""
    from headwise.checkpoints.truncation import padded_tensors

    return run.compare(padded_tensors(reader, planned.ranks))
