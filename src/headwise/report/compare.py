"""A comparison for a terminal of 80 columns: what will be done, then the answer."""

import math
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from headwise.comparison.answer import Answer, PlannedComparison
from headwise.comparison.pace import in_words
from headwise.report.tables import short

_EQUAL = {"params": "parameters", "flops": "training FLOPs", "kv": "KV cache", "time": "step time"}


def plan_lines(planned: PlannedComparison) -> list[str]:
    """What will be done, before it begins."""
    plan = planned.plan
    others = ", ".join(arm.shape for arm in plan.arms[1:])
    lines = [f"{len(plan.arms)} variants of equal {_EQUAL.get(plan.hold, plan.hold)}: base {plan.base}; {others}"]
    if plan.rungs:
        steps = plan.arms[0].steps
        lengths = " then ".join(f"{max(1, steps // divisor):,}" for divisor in plan.rungs)
        grid = ", ".join(f"{rate:g}" for rate in plan.rates)
        lines.append(f"learning rates {grid}: whole schedules of {lengths} steps, the better half goes on")
        lines.append("the better half of the variants stays each time, and the base; at least two others")
    lines.append(f"finalists: {plan.arms[0].steps:,} steps, {plan.seeds} paired seeds that no trial used")
    time, workers = in_words(planned.seconds), planned.workers
    lines.append(f"at most about {time} on {workers} processes of this machine, from steps measured here")
    return [*lines, f"this does not fit: {planned.problem}"] if planned.problem else lines


def answer_tables(answer: Answer) -> list[RenderableType]:
    """Costs, results, and what they rest on."""
    document = answer.as_dict()
    variants = answer.variants
    parts: list[RenderableType] = [_costs(variants), "", _results(variants, document), ""]
    parts += [f"[dim]{variant['shape']}: {variant['note']}[/dim]" for variant in variants if variant["note"]]
    parts.append(f"[bold]{answer.verdict}[/bold]")
    parts += [f"To resolve it: {answer.settle}"] if answer.settle else []
    for heading, lines in (("Held equal", answer.held), ("Not equal, or to be kept in mind", answer.confounds)):
        if lines:
            parts += ["", f"{heading}:", *(f"  – {line}" for line in lines)]
    parts += ["", f"[dim]{document['how']}[/dim]"]
    parts += [f"Chart: {answer.chart_file}, and .svg, .pdf, .html beside it"] if answer.chart_file else []
    parts += [f"Again, from the store: {answer.rerun}"] if answer.rerun else []
    return parts


def _costs(variants: list[dict[str, Any]]) -> Table:
    table = _table("<variant", "heads", "qk", "v", "KV cache\nB/token", "parameters", "learning\nrate", "tokens/s")
    for variant in variants:
        sizes = [_text(variant.get(name), "{}") for name in ("heads", "qk_rank", "v_rank")]
        costs = [_text(variant.get("kv_bytes_per_token"), "{:,.0f}"), _count(variant.get("parameters"))]
        speeds = [_text(variant.get("learning_rate"), "{:g}"), _count(variant.get("tokens_per_second"))]
        table.add_row(variant["shape"], *sizes, *costs, *speeds)
    return table


def _results(variants: list[dict[str, Any]], document: dict[str, Any]) -> Table:
    table = _table("<variant", "loss", "Δ to base", "steps*", "seconds*", "speedup", "P(best)")
    for row in (row for row in variants if math.isfinite(row["metric"])):
        base = row["shape"] == document["base"]
        cells = [_interval(row["metric"], row["low"], row["high"], "")]
        cells.append("base" if base else _interval(row["delta"], row["delta_low"], row["delta_high"], "+"))
        cells += [_text(row["steps_to_base"], "{:,.0f}"), _text(row["seconds_to_base"], "{:,.0f}")]
        cells += [_text(row["speed_up"], "{:.2f} ×"), _text(row["probability_best"], "{:.0%}")]
        best = document["decided"] and row["shape"] == document["winner"]
        table.add_row(row["shape"], *cells, style="bold" if best else "")
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
