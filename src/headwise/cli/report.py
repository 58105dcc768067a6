"""The commands about the page: write it, open it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.terminal import AsJson, StorePath, open_store, print_json

if TYPE_CHECKING:
    from headwise.ledger.study import Study
    from headwise.report.page import Part, Section
    from headwise.store.store import Store

Folder = Annotated[Path | None, typer.Option(help="Folder of the page.", show_default="beside the store")]


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise report --out my-report")(report)
    app.command("open", epilog="Example: headwise open --no-browser")(open_page)


def report(
    out: Folder = None,
    from_: Annotated[Path | None, typer.Option("--from", help="Read runs from Parquet files here instead.")] = None,
    study: Annotated[list[Path] | None, typer.Option(help="Also a study of your own: a .py file.")] = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """A self-contained page: the ledger, and every study with its chart."""
    page, sections = _write(out or _beside(store), store, from_, study or ())
    if as_json:
        return print_json({"page": str(page), **_told(sections)})
    typer.echo(f"wrote {page}")


def open_page(
    out: Folder = None,
    store: StorePath = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only say where the page is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the page in a browser; it is written first where there is none."""
    import webbrowser

    page = (out or _beside(store)).expanduser().resolve() / "index.html"
    if not page.exists():
        _write(page.parent, store)
    else:
        typer.echo("headwise: the page as it was written last; headwise report writes it anew", err=True)
    opened = not no_browser and webbrowser.open(page.as_uri())
    if not no_browser and not opened:
        typer.echo("headwise: no browser was found here; open the file yourself", err=True)
    if as_json:
        return print_json({"page": str(page), "opened": opened})
    typer.echo(str(page))


def _beside(store: Path | None) -> Path:
    from headwise.store.store import default_path

    return (store or default_path()).with_suffix(".report")


def _write(
    folder: Path, store: Path | None, from_: Path | None = None, own: Iterable[Path] = ()
) -> "tuple[Path, list[Section]]":
    from headwise.ledger.certify import check
    from headwise.report.page import write
    from headwise.studies import load_all

    with open_store(store, from_) as held:
        sections = list(sections_of(load_all(own), held))
        checked = check(held.runs(status="done", task="nearest-neighbor"))
        origin = str(from_ or held.path.name)
    return write(sections, checked, origin, folder.expanduser()), sections


def sections_of(studies: "list[Study]", store: "Store") -> "Iterator[Section]":
    """Every study: the preset that decides, then others with finished runs; smoke only where there is nothing else."""
    from rich.console import Console
    from rich.progress import track

    from headwise.ledger.judge import judge_all
    from headwise.report.page import Section

    console = Console(stderr=True)
    for study in track(studies, "studies", console=console, transient=True, disable=not console.is_terminal):
        judgements = judge_all(study, store)
        decides = judgements[0].preset
        others = [_part(study, preset, store) for preset in study.presets if preset not in (decides, "smoke")]
        parts = [_part(study, decides, store), *(part for part in others if part.rows)]
        yield Section(study.name, study.about, judgements, parts)


def _part(study: "Study", preset: str, store: "Store") -> "Part":
    from headwise.report.page import Part
    from headwise.store.rows import results_of, rows

    trials, grid = study.trials(preset), study.of(preset)
    results = results_of(store, trials)
    cells = study.judged(preset, rows(trials, results))
    results |= results_of(store, cells)
    asked = {cell.run.cell_key: cell.run for cell in [*trials, *cells]}
    found = rows(cells, results)
    return Part(
        preset=preset,
        planned=len({cell.run.cell_key for cell in [*trials, *grid]}),  # two places of a grid may be one run
        ended=[(asked[key], result) for key, result in results.items()],
        rows=found,
        chart=study.chart(found, preset) if found or not grid else None,
    )


def _told(sections: "list[Section]") -> dict[str, Any]:
    """What `--json` says of a page."""
    studies = [
        {
            "name": section.name,
            "presets": {part.preset: {"planned": part.planned, "done": part.done} for part in section.parts},
            "charts": sum(part.chart is not None for part in section.parts),
        }
        for section in sections
    ]
    return {"studies": studies, "claims": [j.as_dict() for section in sections for j in section.judgements]}
