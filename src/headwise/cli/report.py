"""The commands about the page: write it, open it."""

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.terminal import AsJson, OwnStudies, ResultsFolder, StorePath, bar, print_json

Folder = Annotated[Path | None, typer.Option(help="Folder of the page.", show_default="beside the store")]


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise report --out my-report")(report)
    app.command("open", epilog="Example: headwise open --no-browser")(open_page)


def report(
    out: Folder = None,
    from_: ResultsFolder = None,
    study: OwnStudies = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML page: the ledger, and every study with its chart."""
    import headwise

    written = headwise.write_report(out, store, from_, studies=study or (), watch=bar("studies"))
    print_json(written.as_dict()) if as_json else typer.echo(written.headline)


def open_page(
    out: Folder = None,
    store: StorePath = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print where the page is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Open the page of `headwise report` in a browser; write it first if there is none."""
    import webbrowser

    from headwise.report.page import folder_beside, write_report

    page = (out or folder_beside(store)).expanduser().resolve() / "index.html"
    if not page.exists():
        write_report(page.parent, store, watch=bar("studies"))
    else:
        typer.echo("headwise: the page as it was written last; headwise report writes it anew", err=True)
    opened = not no_browser and webbrowser.open(page.as_uri())
    if not no_browser and not opened:
        typer.echo("headwise: no browser was found here; open the file yourself", err=True)
    if as_json:
        return print_json({"page": str(page), "opened": opened})
    typer.echo(str(page))
