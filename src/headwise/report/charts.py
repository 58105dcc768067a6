"""Charts: one description, saved as a picture and as a page that needs no network.

The theme is colour-blind safe (Okabe and Ito's colours), legible in print, and draws its own white ground, so that it
reads the same on a dark screen.
"""

from pathlib import Path
from typing import Any

import altair as alt

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
    """Write `name`.png and `name`.html and say where they are."""
    directory.mkdir(parents=True, exist_ok=True)
    picture, page = directory / f"{name}.png", directory / f"{name}.html"
    chart.save(str(picture), scale_factor=2)
    chart.save(str(page), inline=True)
    return [picture, page]


def rank_cliff(rows: list[dict[str, Any]], trivial: float, subtitle: str) -> Any:
    """Error of each split of the width: a point a shape, the seeds' range as a bar, the trivial error as a line."""
    data = [row | {"split": f"{row['heads']} × {row['qk_rank']}"} for row in sorted(rows, key=lambda r: r["qk_rank"])]
    x = alt.X("split:N", title="heads × rank of each, at equal parameters", sort=None).axis(labelAngle=0)
    top = max(trivial, *(row["high"] for row in rows))
    y = alt.Y("error:Q", title="test error (squared distance)").scale(domain=[0, 1.1 * top])
    base = alt.Chart(alt.Data(values=data)).encode(x=x)
    tips = ["shape:N", "heads:Q", "qk_rank:Q", "parameters:Q", "error:Q", "low:Q", "high:Q"]
    line = base.mark_line(color=COLORS[0], strokeWidth=2).encode(y=y)
    bars = base.mark_rule(color=COLORS[0], strokeWidth=4, opacity=0.35).encode(y="low:Q", y2="high:Q")
    points = base.mark_point(color=COLORS[0], filled=True, size=90, opacity=1).encode(y=y, tooltip=tips)
    values = base.mark_text(dy=20, dx=-14, fontSize=13, color=INK).encode(y=y, text=alt.Text("error:Q", format=".2f"))
    level = alt.Chart(alt.Data(values=[{"trivial": trivial, "name": f"trivial error {trivial:.2f}: no search at all"}]))
    rule = level.mark_rule(color=COLORS[1], strokeDash=[6, 4], strokeWidth=2).encode(y="trivial:Q")
    name = level.mark_text(align="left", dy=-9, fontSize=13, color=COLORS[1]).encode(
        y="trivial:Q", x=alt.value(6), text="name:N"
    )
    title = alt.TitleParams("Equal parameters, unequal sight: the rank cliff", subtitle=subtitle)
    return (rule + name + line + bars + points + values).properties(width=560, height=340, title=title)
