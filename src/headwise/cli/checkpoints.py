"""The commands about checkpoints: what rank the heads of a trained model use, and smaller copies of it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.terminal import AsJson, bar, later, listed, print_json, show_or_json

CheckpointArgument = Annotated[
    str, typer.Argument(help="A folder, a file, or OWNER/NAME on the Hugging Face hub.", show_default=False)
]
HeadCount = Annotated[
    int | None, typer.Option("--heads", help="Number of heads, where the files do not say it.", show_default=False)
]
TextOption = Annotated[
    Path | None, typer.Option("--data", help="Text file to measure the loss on.", show_default="none")
]
OwnReader = Annotated[
    Path | None,
    typer.Option("--reader", help="A checkpoint reader of your own, a .py file.", show_default="the family's"),
]


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise inspect path/to/model --report heads.html")(inspect)
    app.command(epilog="Example: headwise truncate path/to/model --keep 0.95 --out smaller")(truncate)
    app.command(epilog="Example: headwise convert path/to/model --kv 50% --data my.txt --heal 30m --out smaller")(
        convert
    )


def inspect(
    checkpoint: CheckpointArgument,
    report: Annotated[
        Path | None,
        typer.Option(help="Write a page: heat maps of the heads, their spectra, advice.", show_default="none"),
    ] = None,
    data: TextOption = None,
    keep: Annotated[float, typer.Option(help="With --data: share of the energy that truncated heads keep.")] = 0.99,
    heads: HeadCount = None,
    reader: OwnReader = None,
    as_json: AsJson = False,
) -> None:
    """Measure which rank the heads of a trained model really use."""
    import headwise

    inspection = headwise.inspect(checkpoint, heads=heads, data=data, keep=keep, reader=reader, watch=bar("layers"))
    files: list[Path] = []
    if report is not None:
        from headwise.report.inspection_page import write_inspection

        files = [write_inspection(inspection, checkpoint, report)]
    if as_json:
        return print_json(inspection.as_dict() | ({"report": [str(file) for file in files]} if files else {}))
    from headwise.report.inspection import inspection_tables
    from headwise.report.tables import show

    show(*inspection_tables(inspection))
    if files:
        show(f"Page: {files[0]}")


def truncate(
    checkpoint: CheckpointArgument,
    out: Annotated[Path, typer.Option(help="Folder for the new checkpoint.", show_default=False)],
    keep: Annotated[float, typer.Option(help="Share of the energy of QK and of VO that heads keep.")] = 0.99,
    data: TextOption = None,
    pad: Annotated[
        bool, typer.Option("--pad", help="Keep the old sizes and fill with zeros, so that any library runs it.")
    ] = False,
    heads: HeadCount = None,
    reader: OwnReader = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint whose heads have a smaller rank; with --data, measure its loss."""
    import headwise

    truncation = headwise.truncate(
        checkpoint, out, keep, data=data, pad=pad, heads=heads, reader=reader, watch=bar("layers")
    )
    if as_json:
        return print_json(truncation.as_dict())
    from headwise.report.inspection import truncation_lines
    from headwise.report.tables import show

    show(*truncation_lines(truncation))


def convert(
    checkpoint: CheckpointArgument,
    out: Annotated[Path, typer.Option(help="Folder for the new model.", show_default=False)],
    to: Annotated[
        str | None,
        typer.Option(
            help="The new shape: g2 (key/value heads), c256-p32 (a latent), r16 (rank), h4 (heads), L6 (layers).",
            show_default=False,
        ),
    ] = None,
    kv: Annotated[
        str | None, typer.Option(help="Or a share of the KV cache: 50%, or several: 75%,50%,25%.", show_default=False)
    ] = None,
    params: Annotated[
        str | None, typer.Option(help="Or a share of the parameters, as 70%.", show_default=False)
    ] = None,
    per_layer: Annotated[
        bool,
        typer.Option("--per-layer", help="With --kv: more key/value heads where layers need them; a folder with code."),
    ] = False,
    loss: Annotated[str | None, typer.Option(help="Or how much the loss may grow, as +1%.", show_default=False)] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Text file to fit, heal and measure on; its end is held out.", show_default="none"),
    ] = None,
    heal: Annotated[
        str | None,
        typer.Option(help="Then train it to agree with the original: 90s, 30m, 300steps.", show_default="not"),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer of a llama2.c model.", show_default="none")] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="A page: heat maps of layers; with several --kv a slider of budget against loss.", show_default="none"
        ),
    ] = None,
    track: Annotated[
        str, typer.Option(help="With --heal: also log its curve to tensorboard or wandb.", show_default="none")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a smaller model that transformers loads, with what it cost."""
    from contextlib import ExitStack

    import headwise
    from headwise.checkpoints.conversion import read_share
    from headwise.extras import require
    from headwise.report.conversion import conversion_lines, frontier_lines
    from headwise.spec import SpecError

    if report is not None:
        require("report", "charts")
        if data is None:
            raise SpecError("--report draws what was measured on text: give --data TEXT")
    shares = [read_share(one, "--kv") for one in listed(kv or "")]
    with ExitStack() as stack:
        healing = later(stack, "healing, percent")
        options = {"data": data, "heal": heal, "per_layer": per_layer, "track": track, "progress": healing}
        options |= {"watch": bar("layers"), "to": to, "tokenizer": tokenizer}
        options |= {"params": None if params is None else read_share(params, "--params")}
        options |= {"loss": None if loss is None else read_share(loss, "--loss")}
        if len(shares) > 1:
            several = headwise.frontier(checkpoint, shares, out=out, **options)
        else:
            done = headwise.convert(checkpoint, out=out, kv=shares[0] if shares else None, **options)
    _draw(several if len(shares) > 1 else done, report)
    if len(shares) > 1:
        return show_or_json(several, as_json, frontier_lines)
    return show_or_json(done, as_json, conversion_lines)


def _draw(done: Any, report: Path | None) -> None:
    if report is not None:
        from headwise.charts.grammar import save

        save(done.chart(), report.parent, report.stem)
