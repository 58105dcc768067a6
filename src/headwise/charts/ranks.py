"""The chart of the rank paper's first figure: error against rank, by depth and by attention parameters."""

from statistics import mean
from typing import Any

import altair as alt

from headwise.charts.grammar import COLORS, INK, inline
from headwise.ledger.published import published_values
from headwise.store.rows import Row


def rank_curves(rows: list[Row], title: str, subtitle: str, published: str | None = None) -> Any:
    """Error against rank, a curve per multiplier, a panel per depth; no-skill baseline dashed, published hollow."""
    points = _summaries(rows)
    ranks = sorted({point["rank"] for point in points})
    x = alt.X("rank:O", title="rank of each head", sort=ranks).axis(labelAngle=0)
    y = alt.Y("error:Q", title="test error (squared distance)").scale(type="log")
    several = len({point["size"] for point in points}) > 1
    legend = alt.Legend(title="attention parameters", symbolOpacity=1) if several else None
    color = alt.Color("size:N", sort=None, legend=legend).scale(range=COLORS)
    data = inline(points)
    base = alt.Chart(data).encode(x=x)
    tips = ["rank:O", "multiplier:O", "depth:O", "heads:Q", "parameters:Q", "error:Q", "low:Q", "high:Q", "seeds:Q"]
    line = base.mark_line(strokeWidth=2).encode(y=y, color=color)
    bars = base.mark_rule(strokeWidth=5, opacity=0.4).encode(y="low:Q", y2="high:Q", color=color)
    dots = base.mark_point(filled=True, size=80, opacity=1).encode(y=y, color=color, tooltip=tips)
    trivial = alt.Chart(data).mark_rule(color=INK, strokeDash=[6, 4]).encode(y="mean(trivial):Q")
    layers = [trivial, line, bars, dots]
    if published:
        hollow = [_labelled(value) | {"trivial": points[0]["trivial"]} for value in published_values(published)]
        marks = alt.Chart(inline(hollow)).mark_point(filled=False, size=120, strokeWidth=2)
        layers.append(marks.encode(x=x, y=y, color=color))
    panel = alt.layer(*layers).properties(width=max(180, 70 * len(ranks)), height=300)
    panels = []
    for depth in sorted({point["depth"] for point in points}):
        name = alt.TitleParams(f"{depth} layer{'s' if depth > 1 else ''}", fontSize=14, fontWeight="normal", offset=4)
        panels.append(panel.transform_filter(alt.datum.depth == depth).properties(title=name))
    key = "dashed: error of a constant predictor (no-skill baseline); bars: the range of the seeds"
    heading = alt.TitleParams(title, subtitle=[subtitle, key])
    return alt.hconcat(*panels).resolve_scale(y="shared").properties(title=heading)


def _summaries(rows: list[Row]) -> list[dict[str, Any]]:
    """One point per cell: the mean of its seeds and their range."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.cell["depth"], row.cell["multiplier"], row.cell["rank"]), []).append(row)
    summaries = []
    for (depth, multiplier, rank), seeds in sorted(cells.items()):
        errors = [row.metrics["error"] for row in seeds]
        point = _labelled({"depth": depth, "multiplier": multiplier, "rank": rank, "error": mean(errors)})
        spread = {"low": min(errors), "high": max(errors), "seeds": len(errors)}
        size = {name: seeds[0].metrics[name] for name in ("heads", "parameters")}
        summaries.append(point | spread | size | {"trivial": seeds[0].metrics["trivial_error"]})
    return summaries


def _labelled(point: dict[str, Any]) -> dict[str, Any]:
    return point | {"size": f"× {point['multiplier']:g}"}
