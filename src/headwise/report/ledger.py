"""The ledger for a terminal of 80 columns: verdict, number with interval, published value, and what would settle it."""

import math
from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table

from headwise.certify import Checked
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


def certificate(checked: list[Checked]) -> list[RenderableType]:
    """What became of the check against certified bounds."""
    if not checked:
        return ["[dim]certified bounds: no run here meets their hypotheses[/dim]"]
    least = checked[0]
    told = f"certified bounds: {len(checked)} runs meet their hypotheses (one layer, two orthonormal points, no MLP)"
    closest = f"the closest, {least.key}: error {least.error:.4f}, at least {least.bound:.4f}"
    verdict = "[bold red]BELOW[/]" if least.violates else "none lies below"
    return [f"[dim]{told}; {verdict}; {closest}[/dim]"]


def _numbers(judgement: Judgement) -> str:
    if math.isnan(judgement.estimate):
        return "no runs yet"
    compared = judgement.comparison
    high = f"{judgement.high:.3g}" if math.isfinite(judgement.high) else "any"
    found = f"{compared.what}: {judgement.estimate:.3g} ({judgement.low:.3g} to {high})"
    wanted = f", claimed above {compared.above:.3g}"
    published = f", published {compared.published:.3g}" if compared.published else ""
    return f"{found}{wanted}{published}; {judgement.seeds} seeds, {len(judgement.runs)} runs ({judgement.preset})"
