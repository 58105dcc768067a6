"""One chart for most studies: measured points with their spread, what theory says as lines, published values hollow."""

from collections.abc import Iterable
from statistics import mean
from typing import Any, Literal, TypedDict

import altair as alt

from headwise.charts.grammar import COLORS, INK
from headwise.store.rows import Row

Kind = Literal["measured", "scattered", "theory", "published"]


KEY: dict[Kind, str] = {
    "measured": "points: measured, bars the range of the seeds",
    "scattered": "points without a line: a cell each",
    "theory": "dashed: theory",
    "published": "hollow: published",
}
MOST_TICKS, FEW_TICKS = 8, 5


class Point(TypedDict, total=False):
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
) -> list[Point]:
    """A point a cell: the mean of its seeds and their range; `label` writes the series' name."""
    cells: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if metric in row.metrics:
            where = (row.cell[x], row.cell.get(series), row.cell.get(panel, ""))
            cells.setdefault(where, []).append(row.metrics[metric])
    points: list[Point] = []
    for (at, name, picture), values in sorted(cells.items(), key=str):
        spread: Point = {"y": mean(values), "low": min(values), "high": max(values), "kind": "measured"}
        points.append({"x": at, "series": label.format(name), "panel": str(picture), **spread})
    return points


def curves(
    points: list[Point],
    title: str,
    notes: list[str],
    x: str,
    y: str,
    *,
    log_x: bool = True,
    log_y: bool = True,
    x_format: str = "",
) -> Any:
    """A panel for each `panel`; a legend for the series. Lines without points are theory."""
    places = sorted({point["x"] for point in points if point["kind"] == "measured"})
    ticks = alt.Axis(values=places, format="~g") if log_x and 0 < len(places) <= MOST_TICKS else alt.Axis()
    ticks = alt.Axis(format=x_format, tickCount=FEW_TICKS) if x_format else ticks
    across = alt.X("x:Q", title=x, axis=ticks).scale(type="log" if log_x else "linear", nice=False, padding=12)
    up = alt.Y("y:Q", title=y).scale(type="log" if log_y else "linear", zero=False, nice=False, padding=8)
    names = list(dict.fromkeys(point["series"] for point in points))
    color = alt.Color("series:N", sort=names, legend=alt.Legend(title=None, labelLimit=320)).scale(range=COLORS)
    base = alt.Chart(alt.Data(values=[dict(point) for point in points])).encode(x=across, color=color)
    kinds = {kind: base.transform_filter(alt.datum.kind == kind) for kind in KEY}
    layers = [
        kinds["theory"].mark_line(strokeDash=[6, 4], strokeWidth=2).encode(y=up),
        kinds["measured"].mark_line(strokeWidth=1.5, opacity=0.7).encode(y=up),
        kinds["measured"].mark_rule(strokeWidth=4, opacity=0.4).encode(y="low:Q", y2="high:Q"),
        kinds["measured"].mark_point(filled=True, size=60, opacity=1).encode(y=up, tooltip=["series:N", "x:Q", "y:Q"]),
        kinds["scattered"].mark_point(filled=True, size=40, opacity=0.8).encode(y=up),
        kinds["published"].mark_point(filled=False, size=90, strokeWidth=2).encode(y=up),
    ]
    panels = []
    for name in dict.fromkeys(point["panel"] for point in points):
        heading = alt.TitleParams(name, fontSize=14, fontWeight="normal", color=INK, offset=4)
        panel = alt.layer(*layers).transform_filter(alt.datum.panel == name)
        panels.append(panel.properties(width=340, height=300, title=heading))
    drawn = {point["kind"] for point in points}
    heading = alt.TitleParams(title, subtitle=[*notes, "; ".join(told for kind, told in KEY.items() if kind in drawn)])
    return alt.concat(*panels, columns=3).resolve_scale(y="shared").properties(title=heading)


COSTS = {
    "parameters": "parameters",
    "flops": "training FLOPs",
    "seconds": "training seconds",
    "latency": "milliseconds of a batch without gradients",
    "kv_bytes_per_token": "cache bytes a token",
}
MEASURED = ("seconds", "latency")  # never exactly equal


def frontier(rows: Iterable[Row], series: str, title: str, notes: list[str], error: str = "error") -> Any:
    """Error against each cost in which arms differ, a panel each; an arm is a colour. Equal costs are said in words."""
    arms: dict[Any, list[Row]] = {}
    for row in rows:
        arms.setdefault(row.cell[series], []).append(row)
    points: list[Point] = []
    equal = []
    for cost, name in COSTS.items():
        if not all(cost in row.metrics for found in arms.values() for row in found):
            continue
        unit = 1000 if cost == "latency" else 1
        at = {arm: unit * mean(row.metrics[cost] for row in found) for arm, found in arms.items()}
        if len(set(at.values())) == 1 and cost not in MEASURED:
            equal.append(f"{name} {next(iter(at.values())):,.0f}")
            continue
        for arm, found in arms.items():
            errors = [row.metrics["error"] for row in found]
            spread: Point = {"y": mean(errors), "low": min(errors), "high": max(errors), "kind": "measured"}
            label = str(arm) if isinstance(arm, str) else f"{series}: {arm}"
            points.append({"x": at[arm], "series": label, "panel": f"against {name}", **spread})
    told = [f"equal for all: {', '.join(equal)}"] if equal else []
    return curves(points, title, [*notes, *told], "cost", error, log_x=False, log_y=False, x_format="~s")
