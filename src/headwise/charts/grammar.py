"""Charts: one description, saved as a picture and as a page that needs no network.

The theme is colour-blind safe (Okabe and Ito's colours), legible in print, and draws its own white ground, so that it
reads the same on a dark screen.
"""

import csv
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from headwise.store.rows import Row

INK, MUTED, GRID = "#1a1a1a", "#666666", "#e6e6e6"
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]


@alt.theme.register("headwise", enable=True)
def _theme() -> alt.theme.ThemeConfig:
    axis: Any = {
        "labelColor": INK,
        "titleColor": INK,
        "gridColor": GRID,
        "domainColor": MUTED,
        "tickColor": MUTED,
        "labelFontSize": 13,
        "titleFontSize": 14,
        "titleFontWeight": "normal",
    }
    return alt.theme.ThemeConfig(
        background="white",
        config={
            "font": "sans-serif",
            "axis": axis,
            "title": {"fontSize": 17, "anchor": "start", "subtitleFontSize": 13, "subtitleColor": MUTED, "offset": 12},
            "range": {"category": COLORS},
            "view": {"stroke": None},
        },
    )


def save(chart: Any, directory: Path, name: str) -> list[Path]:
    """Write `name` as a picture (PNG, SVG, PDF) and as a page that needs no network, and say where they are."""
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"{name}.{kind}" for kind in ("png", "svg", "pdf", "html")]
    for file in files:
        settings: dict[str, Any] = {".html": {"inline": True}, ".png": {"scale_factor": 2}}
        chart.save(str(file), **settings.get(file.suffix, {}))
    return files


def published_values(name: str) -> list[dict[str, float]]:
    """A published figure's points, as they stand in the package."""
    text = files("headwise.ledger.published").joinpath(f"{name}.csv").read_text()
    return [{column: float(value) for column, value in row.items()} for row in csv.DictReader(text.splitlines())]


def rank_curves(rows: list[Row], title: str, subtitle: str, published: str | None = None) -> Any:
    """Error against rank, a curve a multiplier, a panel a depth; the trivial error dashed, published points hollow."""
    points = _summaries(rows)
    ranks = sorted({point["rank"] for point in points})
    x = alt.X("rank:O", title="rank of each head", sort=ranks).axis(labelAngle=0)
    y = alt.Y("error:Q", title="test error (squared distance)").scale(type="log")
    several = len({point["size"] for point in points}) > 1
    legend = alt.Legend(title="attention parameters", symbolOpacity=1) if several else None
    color = alt.Color("size:N", sort=None, legend=legend).scale(range=COLORS)
    data = alt.Data(values=points)
    base = alt.Chart(data).encode(x=x)
    tips = ["rank:O", "multiplier:O", "depth:O", "heads:Q", "parameters:Q", "error:Q", "low:Q", "high:Q", "seeds:Q"]
    line = base.mark_line(strokeWidth=2).encode(y=y, color=color)
    bars = base.mark_rule(strokeWidth=5, opacity=0.4).encode(y="low:Q", y2="high:Q", color=color)
    dots = base.mark_point(filled=True, size=80, opacity=1).encode(y=y, color=color, tooltip=tips)
    trivial = alt.Chart(data).mark_rule(color=INK, strokeDash=[6, 4]).encode(y="mean(trivial):Q")
    layers = [trivial, line, bars, dots]
    if published:
        hollow = [_labelled(value) | {"trivial": points[0]["trivial"]} for value in published_values(published)]
        marks = alt.Chart(alt.Data(values=hollow)).mark_point(filled=False, size=120, strokeWidth=2)
        layers.append(marks.encode(x=x, y=y, color=color))
    panel = alt.layer(*layers).properties(width=max(180, 70 * len(ranks)), height=300)
    panels = []
    for depth in sorted({point["depth"] for point in points}):
        name = alt.TitleParams(f"{depth} layer{'s' if depth > 1 else ''}", fontSize=14, fontWeight="normal", offset=4)
        panels.append(panel.transform_filter(alt.datum.depth == depth).properties(title=name))
    key = "dashed: the trivial error, no search at all; bars: the range of the seeds"
    heading = alt.TitleParams(title, subtitle=[subtitle, key])
    return alt.hconcat(*panels).resolve_scale(y="shared").properties(title=heading)


def _summaries(rows: list[Row]) -> list[dict[str, Any]]:
    """One point a cell: the mean of its seeds and their range."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row.cell["depth"], row.cell["multiplier"], row.cell["rank"]), []).append(row)
    summaries = []
    for (depth, multiplier, rank), seeds in sorted(found.items()):
        errors = [row.metrics["error"] for row in seeds]
        cell = _labelled({"depth": depth, "multiplier": multiplier, "rank": rank, "error": mean(errors)})
        spread = {"low": min(errors), "high": max(errors), "seeds": len(errors)}
        size = {name: seeds[0].metrics[name] for name in ("heads", "parameters")}
        summaries.append(cell | spread | size | {"trivial": seeds[0].metrics["trivial_error"]})
    return summaries


def _labelled(point: dict[str, Any]) -> dict[str, Any]:
    return point | {"size": f"× {point['multiplier']:g}"}
