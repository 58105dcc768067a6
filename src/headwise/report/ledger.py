"""The ledger for a terminal of 80 columns: verdict, number with interval, published value, and what would settle it."""

import math
from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table

from headwise.claims import Judgement

_STYLE = {"holds": "bold green", "fails": "bold red", "open": "bold yellow"}


def ledger(judgements: Iterable[Judgement]) -> list[RenderableType]:
    """One block a claim."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for judgement in judgements:
        verdict = f"[{_STYLE[judgement.verdict]}]{judgement.verdict}[/]"
        table.add_row(judgement.claim.id, verdict, judgement.claim.claim)
        table.add_row("", "", f"[dim]{_numbers(judgement)}[/dim]")
        if judgement.settle:
            table.add_row("", "", f"[dim]would settle it: {judgement.settle}[/dim]")
    return [table]


def _numbers(judgement: Judgement) -> str:
    if math.isnan(judgement.estimate):
        return "no runs yet"
    compared = judgement.comparison
    high = f"{judgement.high:.3g}" if math.isfinite(judgement.high) else "any"
    found = f"{compared.what}: {judgement.estimate:.3g} ({judgement.low:.3g} to {high})"
    wanted = f", claimed above {compared.above:g}"
    published = f", published {compared.published:.3g}" if compared.published else ""
    return f"{found}{wanted}{published}; {judgement.seeds} seeds, {len(judgement.runs)} runs ({judgement.preset})"
