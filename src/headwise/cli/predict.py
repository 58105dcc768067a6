"""The command that asks the law: what a shape would come to, before it is trained."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.terminal import AsJson, StorePath, open_store, print_json


def add_to(app: typer.Typer) -> None:
    """Hang this command on the main one."""
    app.command(epilog="Example: headwise predict w48-h3-L2 --task text --steps 150 --from results/")(predict)


def predict(
    shape: Annotated[str, typer.Argument(help="A shape (w48-h3-L2) or a known model (gpt2).", show_default=False)],
    steps: Annotated[int, typer.Option(help="Of training.", show_default=False, min=1)],
    task: Annotated[str, typer.Option(help="The law is fitted to text.")] = "text",
    from_: Annotated[Path | None, typer.Option("--from", help="Read runs from Parquet files here instead.")] = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """The loss a shape would come to, with its interval, and where the law must not be trusted."""
    from headwise.known import find
    from headwise.ledger.law import families_left_out
    from headwise.ledger.statistics import LEVEL
    from headwise.ledger.study import study_rows
    from headwise.report.tables import show
    from headwise.spec import SpecError
    from headwise.studies.predict_the_trade import STUDY, law_of

    if task != "text":
        told = "headwise compare measures shapes on any task"
        raise SpecError(f"the law is fitted to runs of text, on the data that they had, and not of '{task}'; {told}")
    asked = find(shape).shape
    with open_store(store, from_) as held:
        law = law_of(lambda preset: study_rows(STUDY, preset, held))
    if law is None:
        told = "headwise study run predict-the-trade --preset laptop makes them"
        raise SpecError(f"there are no runs here that a law could be fitted to; {told}")
    found, families = law.predict(asked, steps), families_left_out(law.points)
    if as_json:
        about: dict[str, Any] = {"shape": str(asked), "task": task, "steps": steps, "loss": found.value}
        about |= {**found.as_dict(), "level": LEVEL, "points": len(law.points), "families_left_out": families}
        return print_json(about)
    show(f"[bold]{found.value:.3f} bits a byte[/bold] ({found.low:.3f} to {found.high:.3f}, {LEVEL:.0%} of new shapes)")
    for told in found.outside:
        show(f"[bold red]not to be trusted:[/] {told}")
    if not found.outside:
        show("within the runs that the law was fitted to")
    if families:
        worst = max(families, key=lambda name: families[name])
        told = f"{len(law.points)} shapes; of a family it never saw it errs by up to {families[worst]:.1%} ({worst})"
        show(f"[dim]law of {told}[/dim]")
