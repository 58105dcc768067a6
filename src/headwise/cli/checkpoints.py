"""The commands about checkpoints: what rank the heads of a trained model use, and a copy with less of it."""

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.terminal import AsJson, bar, print_json

Source = Annotated[
    str, typer.Argument(help="A folder, a file, or OWNER/NAME on the Hugging Face hub.", show_default=False)
]
HeadCount = Annotated[int | None, typer.Option("--heads", help="Where the files do not say it.", show_default=False)]
Text = Annotated[Path | None, typer.Option("--data", help="Text to run the model on.", show_default="no run")]
OwnReader = Annotated[
    Path | None, typer.Option("--reader", help="Your own reader, a .py file.", show_default="the family's")
]


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
    reader: OwnReader = None,
    as_json: AsJson = False,
) -> None:
    """What rank the heads of a trained model really use."""
    import headwise

    inspection = headwise.inspect(checkpoint, heads=heads, data=data, keep=keep, reader=reader, watch=bar("layers"))
    files: list[Path] = []
    if report is not None:
        from headwise.charts.grammar import save

        files = save(inspection.chart(), report.parent, report.stem)
    if as_json:
        return print_json(inspection.as_dict() | ({"report": [str(file) for file in files]} if files else {}))
    from headwise.report.inspection import inspection_tables
    from headwise.report.tables import show

    show(*inspection_tables(inspection))
    if files:
        show(f"Heat maps: {report}, and .png, .svg, .pdf beside it")


def truncate(
    checkpoint: Source,
    out: Annotated[Path, typer.Option(help="Folder for the new checkpoint.", show_default=False)],
    keep: Annotated[float, typer.Option(help="Share of the energy of QK and of VO that heads keep.")] = 0.99,
    data: Text = None,
    pad: Annotated[bool, typer.Option("--pad", help="Zeros in the old sizes: any library runs it.")] = False,
    heads: HeadCount = None,
    reader: OwnReader = None,
    as_json: AsJson = False,
) -> None:
    """A checkpoint of smaller rank, and what it cost."""
    import headwise

    truncation = headwise.truncate(
        checkpoint, out, keep, data=data, pad=pad, heads=heads, reader=reader, watch=bar("layers")
    )
    if as_json:
        return print_json(truncation.as_dict())
    from headwise.report.inspection import truncation_lines
    from headwise.report.tables import show

    show(*truncation_lines(truncation))
