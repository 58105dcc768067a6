"""The commands about pages: the explorer, the report, and opening one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.terminal import AsJson, OwnStudies, ResultsFolder, StorePath, bar, print_json

PageOption = Annotated[
    Path | None, typer.Option(help="The page: a file (x.html), or a folder for it.", show_default="beside the store")
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print where the page is.")]


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise explore gpt2 w768-h6-L12")(explore)
    app.command(epilog="Example: headwise report --out my-report")(report)
    app.command("open", epilog="Example: headwise open --no-browser")(open_page)


def explore(
    shapes: Annotated[
        list[str] | None, typer.Argument(help="One or two shapes or known models: A and B.", show_default="w512-h8-L6")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page: a file, or a folder for it.")] = Path("headwise-explorer.html"),
    inspection: Annotated[
        Path | None, typer.Option(help="Also show the heads in a file of inspect --json.", show_default="none")
    ] = None,
    no_ledger: Annotated[bool, typer.Option("--no-ledger", help="Leave the claims out: written at once.")] = False,
    no_charts: Annotated[bool, typer.Option("--no-charts", help="Leave the studies' charts out: under 2 MB.")] = False,
    from_: ResultsFolder = None,
    store: StorePath = None,
    no_browser: NoBrowser = False,
    as_json: AsJson = False,
) -> None:
    """Write and open an interactive page: exact costs as you change a shape, equal-cost curves, the ledger."""
    import headwise

    content: dict[str, Any] = {"inspection": inspection, "ledger": not no_ledger, "charts": not no_charts}
    written = headwise.explore(
        *(shapes or ()), out=out, store=store, results=from_, **content, watch=bar("judging the claims of each study")
    )
    opened = _open(written.page, no_browser or as_json)
    print_json({**written.as_dict(), "opened": opened}) if as_json else typer.echo(written.headline)


def _open(page: Path, only_written: bool) -> bool:
    """Whether a browser shows the page now."""
    import webbrowser

    opened = not only_written and webbrowser.open(page.as_uri())
    if not only_written and not opened:
        typer.echo("headwise: no browser was found here; open the file yourself", err=True)
    return opened


def report(
    out: PageOption = None,
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
    out: PageOption = None,
    store: StorePath = None,
    no_browser: NoBrowser = False,
    as_json: AsJson = False,
) -> None:
    """Open the page of `headwise report` in a browser; write it first if there is none."""
    from headwise.report.page import folder_beside, page_path, write_report

    page = page_path(out or folder_beside(store)).resolve()
    if not page.exists():
        write_report(page, store, watch=bar("studies"))
    else:
        typer.echo("headwise: the page as it was written last; headwise report writes it anew", err=True)
    opened = _open(page, no_browser)
    if as_json:
        return print_json({"page": str(page), "opened": opened})
    typer.echo(str(page))
