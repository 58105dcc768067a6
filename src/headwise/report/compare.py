"""A comparison for a terminal of 80 columns: what will be done, then the answer."""

import math
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from headwise.comparison.answer import Answer, PlannedComparison
from headwise.comparison.pace import in_words
from headwise.comparison.verdict import alike
from headwise.report.tables import parameters_cell, parameters_heading, short

MOST_DIGITS = 9  # after the point
_SIZES = {"heads": "heads", "qk": "qk_rank", "v": "v_rank"}
MOST_EXTRA = 6  # columns of a table that a terminal has room for
_EQUAL = {"params": "parameters of the body", "flops": "training FLOPs", "kv": "KV cache", "time": "step time"}


def plan_lines(planned: PlannedComparison) -> list[str]:
    """What will be done, before it begins."""
    plan = planned.plan
    others = ", ".join(arm.shape for arm in plan.arms[1:])
    equal = f" of equal {_EQUAL.get(plan.hold, plan.hold)}" if alike(plan) else ""
    lines = [f"{len(plan.arms)} variants{equal}: base {plan.base}; {others}"]
    lines += _model_lines(planned)
    if plan.rungs:
        steps = plan.arms[0].steps
        lengths = " then ".join(f"{max(1, steps // divisor):,}" for divisor in plan.rungs)
        grid = ", ".join(f"{rate:g}" for rate in plan.rates)
        lines.append(f"learning rates {grid}: whole schedules of {lengths} steps, the better half goes on")
        lines.append("where a variant's best is the lowest or highest of them, further ones are tried beyond it")
        lines.append("the better half of the variants stays each time, and the base; at least two others")
    lines.append(f"finalists: {plan.arms[0].steps:,} steps, {plan.seeds} paired seeds that no trial used")
    if plan.baseline[0]:
        name, simple = plan.baseline
        lines.append(f"for a ranking, the base must beat a simple baseline: {name}, {plan.metric.name} {simple:.4g}")
    elif plan.metric.assumed or plan.metric.higher_is_better:
        lines.append(plan.metric.direction)
    lines += planned.notices
    time, workers = in_words(planned.seconds), planned.workers
    lines.append(f"at most about {time} on {workers} processes of this machine, from steps measured here")
    if planned.found and planned.seconds_left:
        left = in_words(planned.seconds_left)
        lines.append(f"{planned.found} of its runs are in the store: going on, at most about {left} left")
    elif planned.found:
        lines.append(f"all of its {planned.found} runs are in the store")
    if planned.problem:
        return [*lines, f"this does not fit: {planned.problem}"]
    if not planned.fits:
        given = "give fewer --steps or --seeds, or a larger --budget"
        lines.append(f"this may take longer than the budget of {in_words(planned.budget)}: {given}")
    return lines


def _model_lines(planned: PlannedComparison) -> list[str]:
    """The model and the recipe; nothing of somebody's own trainer, which knows them itself."""
    if not planned.model:
        return []
    return [f"model: {escape(planned.model)}", f"recipe: {escape(planned.recipe)}"]


def answer_tables(answer: Answer) -> list[RenderableType]:
    """Costs, results, and what they rest on."""
    document = answer.as_dict()
    variants = answer.variants
    said: list[RenderableType] = [f"[bold]{escape(answer.verdict)}[/bold]"]
    said += [f"To resolve it: {escape(answer.settle)}"] if answer.settle else []
    parts: list[RenderableType] = [f"[bold]Note[/bold] {escape(notice)}" for notice in answer.notices]
    parts += [""] if parts else []
    costs = _costs(variants, answer.extra_columns)
    parts += [costs, ""] if len(costs.columns) > 1 else []
    parts += [_results(variants, document), ""]
    parts += [
        f"[dim]{escape(variant['shape'])}: {escape(variant['note'])}[/dim]" for variant in variants if variant["note"]
    ]
    parts = [*parts, *said] if answer.learned is not False else [*said, "", *parts]  # "Cannot tell" comes first
    parts += ["", *_model_lines(answer.planned)] if answer.planned else []
    for heading, lines in (("Held equal", answer.held), ("Not equal, or to be kept in mind", answer.confounds)):
        if lines:
            parts += ["", f"{heading}:", *(f"  – {escape(line)}" for line in lines)]
    parts += ["", f"Speed: {escape(answer.speed)}"] if answer.speed else []
    parts += ["", f"[dim]{escape(document['how'])}[/dim]"]
    parts += [f"Chart: {escape(answer.chart_file)}, and .svg, .pdf, .html beside it"] if answer.chart_file else []
    parts += [f"Again, from the store: {escape(answer.rerun)}"] if answer.rerun else []
    return parts


def _costs(variants: list[dict[str, Any]], extra: list[str]) -> Table:
    """Sizes, costs and a table's own columns; where no variant has a number, there is no column."""
    columns: dict[str, list[str]] = {}
    for variant in variants:
        sizes = {title: _text(variant.get(name), "{}") for title, name in _SIZES.items() if name not in extra}
        costs = {"KV cache\nB/token": _text(variant.get("kv_bytes_per_token"), "{:,.0f}")}
        costs |= {parameters_heading(variants): parameters_cell(variant)}
        costs |= {"learning\nrate": _text(variant.get("learning_rate"), "{:g}")}
        costs |= {"tokens/s": _count(variant.get("tokens_per_second"))}
        own = {name: _number(variant.get(name)) for name in extra[:MOST_EXTRA]}
        for title, text in {**sizes, **costs, **own}.items():
            columns.setdefault(title, []).append(text)
    shown = {title: texts for title, texts in columns.items() if {*texts} != {"–"}}
    table = _table("<variant", *shown)
    for variant, *texts in zip((variant["shape"] for variant in variants), *shown.values(), strict=True):
        table.add_row(escape(variant), *texts)
    return table


def _results(variants: list[dict[str, Any]], document: dict[str, Any]) -> Table:
    name, timed = document["metric_name"], ["seconds*", "speedup"] if _known(variants, "speed_up") else []
    reached = ["steps*"] if _known(variants, "steps_to_base") else []
    table = _table("<variant", name, "Δ to base", *reached, *timed, "P(best)")
    shown = [row for row in variants if math.isfinite(row["metric"])]
    digits = _digits(shown)
    for row in shown:
        base = row["shape"] == document["base"]
        cells = [_interval(row["metric"], row["low"], row["high"], digits, "")]
        cells.append("base" if base else _interval(row["delta"], row["delta_low"], row["delta_high"], digits, "+"))
        cells += [_text(row["steps_to_base"], "{:,.0f}")] if reached else []
        cells += [_text(row["seconds_to_base"], "{:,.0f}"), _text(row["speed_up"], "{:.2f} ×")] if timed else []
        cells.append(_chance(row["probability_best"]))
        best = document["decided"] and row["shape"] == document["winner"]
        table.add_row(escape(row["shape"]), *cells, style="bold" if best else "")
    if reached or timed:
        table.caption = f"* until validation {escape(name)} is where the base's ends; – never"
        table.caption_justify = "left"
    return table


def _known(variants: list[dict[str, Any]], name: str) -> bool:
    """Whether any variant has this number."""
    return any(math.isfinite(variant.get(name, math.nan)) for variant in variants)


def _digits(rows: list[dict[str, Any]]) -> int:
    """After the point, for all of them: two of the least difference to the base, three of the least interval."""
    widths = [row[f"{name}high"] - row[f"{name}low"] for row in rows for name in ("", "delta_")]
    scales = [(2, width) for width in widths] + [(1, abs(row["delta"])) for row in rows]
    known = [more - math.floor(math.log10(scale)) for more, scale in scales if 0 < scale < math.inf]
    least = max((2 - math.floor(math.log10(abs(row["metric"]))) for row in rows if row["metric"]), default=3)
    return min(max(0, least, *known), MOST_DIGITS)


def _interval(value: float, low: float, high: float, digits: int, sign: str) -> str:
    form = f"{{:{sign}.{digits}f}}"
    return f"{_text(value, form)}\n[dim]{_text(low, form)}…{_text(high, form)}[/dim]"


def _text(value: Any, form: str) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return form.format(value) if value is not None and math.isfinite(value) else "–"


def _chance(value: float) -> str:
    """A probability; runs never make it 0 or 1."""
    if 0.005 <= value < 0.995 or not math.isfinite(value):
        return _text(value, "{:.0%}")
    return "<1%" if value < 0.5 else ">99%"


def _number(value: float | None) -> str:
    """Of a column that is not known here."""
    large = value is not None and abs(value) >= 1e5
    return _count(value) if large else _text(value, "{:,.4g}" if value is None or abs(value) < 1e4 else "{:,.0f}")


def _count(value: float | None) -> str:
    return short(value) if value is not None and math.isfinite(value) else "–"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        left = column.startswith("<")
        table.add_column(escape(column.removeprefix("<")), justify="left" if left else "right", overflow="fold")
    return table
