"""The command that hands a model to transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli.terminal import AsJson, StorePath, open_store, print_json

if TYPE_CHECKING:
    from headwise.checkpoints.reader import Reader

Source = Annotated[
    str, typer.Argument(help="A run's key, or its beginning; or a file of weights.", metavar="RUN|CHECKPOINT")
]


def add_to(app: typer.Typer) -> None:
    """Hang this command on the main one."""
    app.command("export-hf", epilog="Example: headwise export-hf 82cd05 --out my-model")(export_hf)


def export_hf(
    source: Source,
    out: Annotated[Path, typer.Option(help="Folder for the model.", show_default=False)],
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """A trained model as a folder that transformers loads."""
    from headwise.checkpoints.export import export
    from headwise.checkpoints.files import check_new

    check_new(out)
    found = export(_open(source, store), out)
    if as_json:
        return print_json(vars(found) | {"out": str(out)})
    from headwise.report.tables import show

    loaded = f"{found.architecture}.from_pretrained('{out}')"
    if found.form == "native":
        return show(f"{found.shape} in '{out}': {found.why}, so {loaded} needs no headwise")
    show(
        f"{found.shape} in '{out}' with code that imports headwise: load it with trust_remote_code=True",
        f"it would be transformers' own but for this: {found.why}",
    )


def _open(source: str, store: Path | None) -> "Reader":
    """A file or folder of that name, else a run that kept its weights."""
    from headwise.checkpoints import open_checkpoint
    from headwise.spec import SpecError

    if Path(source).exists():
        return open_checkpoint(source)
    with open_store(store) as held:
        found, folder = held.get(source), held.files
    if found is None:
        raise SpecError(f"no file '{source}' here, and no run {source} in this store; headwise runs lists them")
    weights = folder / "weights" / f"{found[0].key}.safetensors"
    if not weights.exists():
        raise SpecError(f"run {found[0].key} kept no weights in '{weights.parent}'; train it again with --keep-weights")
    return open_checkpoint(weights)
