"""A comparison for a terminal of 80 columns: what will be done, then the answer; and its chart."""

import math
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from headwise.comparison.pace import told
from headwise.comparison.plan import Plan
from headwise.report.tables import short
from headwise.store.rows import Row


def plan_lines(plan: Plan, seconds: float, workers: int) -> list[str]:
    """What will be done, before it begins."""
    others = ", ".join(arm.shape for arm in plan.arms[1:])
    lines = [f"{len(plan.arms)} arms that hold {plan.hold}: base {plan.base}; {others}"]
    if plan.rungs:
        steps = plan.arms[0].steps
        lengths = " then ".join(f"{max(1, steps // divisor):,}" for divisor in plan.rungs)
        grid = ", ".join(f"{rate:g}" for rate in plan.rates)
        lines.append(f"learning rates {grid}: whole schedules of {lengths} steps, the better half goes on")
        lines.append("the better half of the arms stays each time, and the base; at least two others")
    lines.append(f"finalists: {plan.arms[0].steps:,} steps, {plan.seeds} paired seeds that no trial used")
    lines.append(f"at most about {told(seconds)} on {workers} processes of this machine, from steps measured here")
    return lines


def answer_tables(document: dict[str, Any]) -> list[RenderableType]:
    """Costs, results, and what they rest on."""
    arms = document["arms"]
    parts: list[RenderableType] = [_costs(arms), "", _results(arms, document), ""]
    parts += [f"[dim]{arm['shape']}: {arm['note']}[/dim]" for arm in arms if arm["note"]]
    parts.append(f"[bold]{document['verdict']}[/bold]")
    parts += [f"What would decide: {document['settle']}"] if document["settle"] else []
    for heading, name in (("Held equal", "held"), ("Not equal, or to be kept in mind", "confounds")):
        if document[name]:
            parts += ["", f"{heading}:", *(f"  – {line}" for line in document[name])]
    parts += ["", f"[dim]{document['how']}[/dim]"]
    parts += [f"Chart: {document['chart']}, and .svg, .pdf, .html beside it"] if document["chart"] else []
    parts += [f"Again, from the store: {document['rerun']}"] if document["rerun"] else []
    return parts


def _costs(arms: list[dict[str, Any]]) -> Table:
    table = _table("<arm", "heads", "qk", "v", "KV B/token", "parameters", "rate", "tokens/s")
    for arm in arms:
        sizes = [_text(arm.get(name), "{}") for name in ("heads", "qk_rank", "v_rank")]
        costs = [_text(arm.get("kv_bytes_per_token"), "{:,.0f}"), _count(arm.get("parameters"))]
        speeds = [_text(arm.get("learning_rate"), "{:g}"), _count(arm.get("tokens_per_second"))]
        table.add_row(arm["shape"], *sizes, *costs, *speeds)
    return table


def _results(arms: list[dict[str, Any]], document: dict[str, Any]) -> Table:
    table = _table("<arm", "loss", "Δ to base", "steps*", "seconds*", "speed-up", "P(best)")
    for arm in (arm for arm in arms if math.isfinite(arm["metric"])):
        base = arm["shape"] == document["base"]
        cells = [_interval(arm["metric"], arm["low"], arm["high"], "")]
        cells.append("base" if base else _interval(arm["delta"], arm["delta_low"], arm["delta_high"], "+"))
        cells += [_text(arm["steps_to_base"], "{:,.0f}"), _text(arm["seconds_to_base"], "{:,.0f}")]
        cells += [_text(arm["speed_up"], "{:.2f} ×"), _text(arm["probability_best"], "{:.0%}")]
        table.add_row(
            arm["shape"], *cells, style="bold" if document["decided"] and arm["shape"] == document["winner"] else ""
        )
    table.caption, table.caption_justify = "* until the validation loss is where the base's ends; – never", "left"
    return table


def _interval(value: float, low: float, high: float, sign: str) -> str:
    """All with as many digits as show three of the interval's width, or of the value where there is none."""
    scale = high - low if 0 < high - low < math.inf else abs(value)
    digits = max(0, 2 - math.floor(math.log10(scale))) if math.isfinite(scale) and scale else 3
    form = f"{{:{sign}.{min(digits, 8)}f}}"
    return f"{_text(value, form)}\n[dim]{_text(low, form)}…{_text(high, form)}[/dim]"


def _text(value: Any, form: str) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return form.format(value) if value is not None and math.isfinite(value) else "–"


def _count(value: float | None) -> str:
    return short(value) if value is not None and math.isfinite(value) else "–"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        left = column.startswith("<")
        table.add_column(column.removeprefix("<"), justify="left" if left else "right", overflow="fold")
    return table


def chart(rows: list[Row], document: dict[str, Any], loss: str) -> Any:
    """Loss against each cost; None where the rows do not know them all."""
    from headwise.charts.curves import COSTS, frontier

    shown = [row for row in rows if math.isfinite(row.metrics["error"])]
    if not shown or not all(row.metrics.get(cost) for row in shown for cost in COSTS):
        return None
    return frontier(shown, "arm", f"Shapes against {document['base']}", [document["verdict"]], loss)
