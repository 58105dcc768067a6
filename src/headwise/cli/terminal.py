"""What the commands share: options, JSON on standard output, and where results are."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwise.store.store import Store

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
StorePath = Annotated[
    Path | None, typer.Option("--store", help="Results file.", show_default="HEADWISE_STORE, else your data folder")
]


def print_json(document: Any) -> None:
    """One document on standard output; JSON has no infinities and no NaN, so they become null."""
    from headwise.shown import finite

    typer.echo(json.dumps(finite(document), indent=2, allow_nan=False))


def bar(what: str) -> Any:
    """A function that gives the items of a sequence back, and shows on standard error how many are done."""
    from functools import partial

    from rich.console import Console
    from rich.progress import track

    screen = Console(stderr=True)
    return partial(track, description=what, console=screen, transient=True, disable=not screen.is_terminal)


def open_store(path: Path | None, parquet: Path | None = None) -> "Store":
    from headwise.store.store import Store, default_path

    return Store.from_parquet(parquet) if parquet else Store(path or default_path())
