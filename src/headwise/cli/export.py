"""The command that hands a model to transformers."""

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.terminal import AsJson, StorePath, print_json

RunOrWeights = Annotated[
    str, typer.Argument(help="Key of a run (its beginning will do), or a file of weights.", metavar="RUN|CHECKPOINT")
]


def add_to(app: typer.Typer) -> None:
    """Hang this command on the main one."""
    app.command("export-hf", epilog="Example: headwise export-hf 82cd05 --out my-model")(export_hf)


def export_hf(
    source: RunOrWeights,
    out: Annotated[Path, typer.Option(help="New folder for the model.", show_default=False)],
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model as a folder that Hugging Face transformers loads."""
    import headwise

    exported = headwise.export_hf(source, out, store)
    if as_json:
        return print_json(exported.as_dict())
    from headwise.report.tables import show

    show(exported.headline)
