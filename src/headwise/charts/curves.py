"""One chart for most studies: measured points with their spread, what theory says as lines, published values hollow."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import mean
from typing import Any, Literal, TypedDict

import altair as alt

from headwise.charts.grammar import COLORS, INK, MORE_COLORS, inline
from headwise.store.rows import Row

Kind = Literal["measured", "scattered", "theory", "published"]

KEY: dict[Kind, str] = {
    "measured": "points: measured, bars the range of the seeds",
    "scattered": "points without a line: one per shape",
    "theory": "dashed: theory",
    "published": "hollow: published",
}
MOST_TICKS, FEW_TICKS = 8, 5


class Mark(TypedDict, total=False):
    """A mark: `series` chooses its colour, `panel` its picture; `low` and `high` are the range of the seeds."""

    x: float
    y: float
    low: float
    high: float
    series: str
    panel: str
    kind: Kind


def measured(
    rows: Iterable[Row], x: str, series: str, panel: str = "", metric: str = "error", label: str = "{}"
) -> list[Mark]:
    """A point per cell: the mean of its seeds and their range; `label` writes the series' name."""
    cells: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if metric in row.metrics:
            where = (row.cell[x], row.cell.get(series), row.cell.get(panel, ""))
            cells.setdefault(where, []).append(row.metrics[metric])
    points: list[Mark] = []
    for (at, name, picture), values in sorted(cells.items(), key=str):
        points.append(across_seeds(values, at, label.format(name), str(picture)))
    return points


def by_parameters(rows: Iterable[Row]) -> list[Mark]:
    """Error against parameters, a colour per variant and a panel per task."""
    placed = [replace(row, cell={**row.cell, "parameters": row.metrics["parameters"]}) for row in rows]
    return measured(placed, "parameters", "arm", "task")


def across_seeds(values: list[float], x: float, series: str, panel: str) -> Mark:
    """A measured point: the mean of the seeds' values and their range."""
    spread: Mark = {"y": mean(values), "low": min(values), "high": max(values)}
    return {"x": x, **spread, "series": series, "panel": panel, "kind": "measured"}


def curves(
    points: list[Mark],
    title: str,
    notes: list[str],
    x: str | Mapping[str, str],
    y: str,
    *,
    log_x: bool = True,
    log_y: bool = True,
    x_format: str = "",
    labels: bool = False,
) -> Any:
    """A panel for each `panel`; a legend for the series, in numeric order. Lines without points are theory.

    `x` is the title of the axis, or of each panel's. With `labels` every point says its series.
    """
    places = sorted({point["x"] for point in points if point["kind"] == "measured"})
    ticks = alt.Axis(values=places, format="~g") if log_x and 0 < len(places) <= MOST_TICKS else alt.Axis()
    ticks = alt.Axis(format=x_format, tickCount=FEW_TICKS) if x_format else ticks
    scale = alt.Scale(type="log" if log_x else "linear", nice=False, padding=64 if labels else 12)
    up = alt.Y("y:Q", title=y).scale(nice=False, padding=8, **({"type": "log"} if log_y else {"zero": False}))
    names = in_order(point["series"] for point in points)
    color = alt.Color("series:N", sort=names, legend=alt.Legend(title=None, labelLimit=320)).scale(
        domain=names, range=[*COLORS, *MORE_COLORS]
    )
    short = short_names(names)
    values: list[Mapping[str, Any]] = [{**point, "label": short[point["series"]]} for point in points]

    def layers_of(across: alt.X, along: str) -> list[alt.Chart]:
        base = alt.Chart().encode(x=across, color=color)
        kinds = {kind: base.transform_filter(alt.datum.kind == kind) for kind in KEY}
        return _layers(kinds, up, _tips(along, y)) + ([_labels(kinds["measured"], up)] if labels else [])

    panels = []
    for name in dict.fromkeys(point["panel"] for point in points):
        along = x if isinstance(x, str) else x[name]
        heading = alt.TitleParams(name if name != along else "", fontSize=14, fontWeight="normal", color=INK, offset=4)
        across = alt.X("x:Q", title=along, axis=ticks, scale=scale)
        panel = alt.layer(*layers_of(across, along)).transform_filter(alt.datum.panel == name)
        panels.append(panel.properties(width=340, height=300, title=heading))
    drawn = {point["kind"] for point in points}
    heading = alt.TitleParams(
        title, subtitle=[*notes, "; ".join(meaning for kind, meaning in KEY.items() if kind in drawn)]
    )
    shared = alt.concat(*panels, data=inline(values), columns=3)  # once: altair copies and hashes a layer's own
    return shared.resolve_scale(y="shared").properties(title=heading)


def _tips(across: str, up: str) -> list[alt.Tooltip]:
    """What a mark says of itself under a pointer."""
    names = {"series": "of", "x": across, "y": up, "low": "lowest seed", "high": "highest seed"}
    return [
        alt.Tooltip(name, type="nominal" if name == "series" else "quantitative", title=title)
        for name, title in names.items()
    ]


def _layers(kinds: Mapping[Kind, alt.Chart], up: alt.Y, tips: list[alt.Tooltip]) -> list[alt.Chart]:
    return [
        kinds["theory"].mark_line(strokeDash=[6, 4], strokeWidth=2).encode(y=up),
        kinds["measured"].mark_line(strokeWidth=1.5, opacity=0.7).encode(y=up),
        kinds["measured"].mark_rule(strokeWidth=4, opacity=0.4).encode(y="low:Q", y2="high:Q"),
        kinds["measured"].mark_point(filled=True, size=60, opacity=1).encode(y=up, tooltip=tips),
        kinds["scattered"].mark_point(filled=True, size=40, opacity=0.8).encode(y=up, tooltip=tips),
        kinds["published"].mark_point(filled=False, size=90, strokeWidth=2).encode(y=up, tooltip=tips[:3]),
    ]


def _labels(points: alt.Chart, up: alt.Y) -> alt.Chart:
    return points.mark_text(align="left", dx=8, fontSize=12).encode(y=up, text="label:N")


def short_names(names: Iterable[str]) -> dict[str, str]:
    """What stands before a bracket; where several share that, the first thing in it: "thin", "2 layers"."""
    parts = {name: name.partition(" (") for name in names}
    before = [start for start, _, _ in parts.values()]
    return {
        name: start if before.count(start) == 1 else inside.partition(",")[0].rstrip(")") or start
        for name, (start, _, inside) in parts.items()
    }


def in_order(series: Iterable[str]) -> list[str]:
    """Names as they first appear; where each has a number in it, by the numbers."""
    names = list(dict.fromkeys(series))
    numbers = [[float(part) for part in re.findall(r"\d+(?:\.\d+)?", name)] for name in names]
    if not all(numbers):
        return names
    return [name for _, name in sorted(zip(numbers, names, strict=True), key=lambda pair: pair[0])]


COSTS = {
    "parameters": "parameters",
    "flops": "training FLOPs",
    "seconds": "training seconds",
    "latency": "milliseconds per batch without gradients",
    "kv_bytes_per_token": "KV cache bytes/token",
}
MEASURED = ("seconds", "latency")  # never exactly equal


def frontier(rows: Iterable[Row], series: str, title: str, notes: list[str], error: str = "error") -> Any:
    """Error against each cost in which variants differ, a panel each; a variant is a colour. Equal costs are words."""
    variants: dict[Any, list[Row]] = {}
    for row in rows:
        variants.setdefault(row.cell[series], []).append(row)
    points: list[Mark] = []
    equal = []
    for cost, name in COSTS.items():
        if not all(cost in row.metrics for its_rows in variants.values() for row in its_rows):
            continue
        unit = 1000 if cost == "latency" else 1
        at = {variant: unit * mean(row.metrics[cost] for row in its_rows) for variant, its_rows in variants.items()}
        if len(set(at.values())) == 1 and cost not in MEASURED:
            equal.append(f"{name} {next(iter(at.values())):,.0f}")
            continue
        for variant, its_rows in variants.items():
            errors = [row.metrics["error"] for row in its_rows]
            label = str(variant) if isinstance(variant, str) else f"{series}: {variant}"
            points.append(across_seeds(errors, at[variant], label, name))
    same = [f"equal for all: {', '.join(equal)}"] if equal else []
    axes = {point["panel"]: point["panel"] for point in points}
    return curves(points, title, [*notes, *same], axes, error, log_x=False, log_y=False, x_format="~s", labels=True)
