"""The ledger for a terminal of 80 columns: verdict, number with interval, published value, what would resolve it."""

import math
from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table

from headwise.ledger.certify import Checked
from headwise.ledger.judge import Judgement, Remedy
from headwise.report.tables import short

GPU_HOUR = 3600 * 10**14  # FLOPs, at a third of what a data centre's card could do: small models get less
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
        if judgement.remedy:
            table.add_row("", "", f"[dim]to resolve it: {to_resolve(judgement.remedy)}[/dim]")
    return [table]


def to_resolve(remedy: Remedy) -> str:
    """The command that would decide an open claim, and what it costs."""
    if not remedy.runs:
        return f"more seeds than the {remedy.preset} preset of {remedy.study} has"
    cost = f"{remedy.runs} runs to do" + (f", {short(remedy.flops, 'FLOP')}" if remedy.flops else "")
    if remedy.flops > GPU_HOUR:
        cost += f", {remedy.flops / GPU_HOUR:,.0f} GPU hours at 100 TFLOP/s"
    return f"{remedy.command} ({cost})"


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
