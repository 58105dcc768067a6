"""The theme of every chart, and how one is saved: as a picture, and as a page that needs no network.

The theme is colour-blind safe (Okabe and Ito's colours), legible in print, and draws its own white ground; pages
turn its lightness round on a dark screen.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt

__all__ = [
    "COLORS",
    "GRID",
    "INK",
    "MORE_COLORS",
    "MUTED",
    "alt",
    "bundle",
    "inline",
    "save",
    "to_svg",
    "vega_lite_version",
]  # alt: with this theme

INK, MUTED, GRID = "#1a1a1a", "#666666", "#e6e6e6"
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MORE_COLORS = ["#882255", "#999933", "#7F7F7F", "#332288", "#8C564B"]  # so that no two of a dozen share one


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
            "mark": {"tooltip": True},
            "tooltipFormat": {"numberFormat": ",.5~r"},
        },
    )


def inline(values: Iterable[Mapping[str, Any]]) -> alt.Data:
    """Points that a chart brings along. A tuple is handed on; a list would be copied, point by point, at every step."""
    return alt.Data(values=tuple(values))


def vega_lite_version() -> str:
    """The version that altair writes, as vl-convert calls it."""
    from altair.utils._importers import vl_version_for_vl_convert

    version: str = vl_version_for_vl_convert()
    return version


@cache
def bundle() -> str:
    """What draws charts in a page, as one script."""
    import vl_convert

    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite_version())
    return text


def to_svg(chart: Any) -> str:
    """The chart as SVG. Altair checks each part as it is made; the whole is not checked again, which takes as long."""
    import vl_convert

    with alt.data_transformers.enable("default", max_rows=None):
        spec = chart.to_dict(validate=False)
    svg: str = vl_convert.vegalite_to_svg(spec, vl_version=vega_lite_version())
    return svg


def save(chart: Any, directory: Path, name: str, question: str = "") -> list[Path]:
    """Write `name` as a picture (PNG, SVG, PDF) and as a page that needs no network, and say where they are.

    The page holds the hash of the `question` that the chart answers; a chart of another question is not replaced, and
    this one's name then ends with a part of the hash.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if question:
        page = directory / f"{name}.html"
        name = name if not page.exists() or question in page.read_text() else f"{name}-{question[:6]}"
        chart = chart.properties(usermeta={"question": question})
    files = [directory / f"{name}.{kind}" for kind in ("png", "svg", "pdf", "html")]
    for file in files:
        settings: dict[str, Any] = {".html": {"inline": True}, ".png": {"scale_factor": 2}}
        chart.save(str(file), **settings.get(file.suffix, {}))
    return files
