"""The chart of a comparison: the metric against the size that varies, and against each cost that differs.

Variants are rows as an answer lists them: a name (`shape`), sizes, costs, `metric` with its intervals, and a `note`
where one was not judged. A variant has one colour and symbol in all panels; the base is the black diamond.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from headwise.charts.grammar import COLORS, INK, MUTED, inline
from headwise.shape import LETTERS, ModelShape
from headwise.spec import SpecError

SIZES = {
    "width": "width",
    "heads": "heads",
    "qk_rank": "head dim",
    "v_rank": "value head dim",
    "kv_heads": "KV heads",
    "kv_latent": "KV latent dim",
    "q_latent": "query latent dim",
    "rope_rank": "rotary dims per head",
    "depth": "layers",
    "mlp": "MLP hidden width",
}
LATENTS = ("kv_latent", "q_latent")  # none is wider than any
COSTS = {
    "parameters": "parameters",
    "flops": "training FLOPs/token",
    "kv_bytes_per_token": "KV cache bytes/token",
    "tokens_per_second": "tokens/s, measured",
}
SPEED = re.compile(r"(/|per)s(ec(ond)?)?\b|throughput|tps|speed")  # costs of which more is better
NO_COST = re.compile(r"(seeds?|run|steps?|epochs?|lr|learningrate|(validation)?error)")  # columns that cost nothing
NEAR = 0.01  # costs closer than this are called equal
MOST_COSTS = 5  # panels
TOTAL = "parameters (total)"
LOG_FROM = 4  # costs that differ by this factor get a logarithmic axis
WIDE, HIGH = 320, 290  # of a panel
TEXT = 72, 52  # characters of a line over one panel, and for each panel more
SYMBOLS = ("circle", "square", "triangle-up", "cross", "triangle-down", "triangle-right")
ASIDE = 0.06  # of a doubling: how far groups stand from each other
LINE, BLACK = "#b0b0b0", "#000000"
UNJUDGED = HIGH - 8  # where variants without a finite metric stand, from the top

Variant = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """What varies: its name and title, each variant's place on it, and what else varies."""

    name: str
    title: str
    places: dict[str, Any]  # numbers, or names where no number tells the variants apart
    also: dict[str, dict[str, Any]]  # the same for other sizes, by their titles

    @property
    def numeric(self) -> bool:
        return all(isinstance(place, int | float) for place in self.places.values())

    @property
    def scaled(self) -> bool:
        """Whether places lie on a scale; where one is 0 (no latent), they only stand in order."""
        return self.numeric and min(self.places.values()) > 0


def varied(variants: Sequence[Variant], asked: Sequence[str] = (), columns: Sequence[str] = ()) -> Axis:
    """The axis of a comparison: of the sizes that differ, one that was asked about, else the one with most values.

    Of shapes, sizes that follow from others (a head dim from the number of heads) do not count. Variants of a table are
    told apart by its `columns`: named as in 'heads=8 kv_heads=2', or by the value of the only one.
    """
    names = [row["shape"] for row in variants]
    differing = {
        name: dict(zip(names, places, strict=True))
        for name, places in (_of_shapes(names) or _of_columns(variants, columns)).items()
        if len(set(places)) > 1 and all(isinstance(place, int | float) for place in places)
    }
    if not differing:
        return Axis("", ", ".join(columns) or "variant", {name: name for name in names}, {})
    chosen = max(differing, key=lambda name: (name in asked, len(set(differing[name].values()))))
    also = {_title(name): places for name, places in differing.items() if name != chosen}
    return Axis(chosen, _title(chosen), differing[chosen], also)


def _of_shapes(names: Sequence[str]) -> dict[str, list[Any]]:
    """The sizes that the shortest names of shapes mention; nothing where a variant is not named by its shape."""
    try:
        shapes = [ModelShape.parse(name) for name in names]
    except SpecError:
        return {}
    written = {LETTERS[token[0]] for shape in shapes for token in str(shape).split("-")}
    return {name: [getattr(shape, name) for shape in shapes] for name in SIZES if name in written}


def _of_columns(variants: Sequence[Variant], columns: Sequence[str]) -> dict[str, list[Any]]:
    """The columns that name a variant, and those that are called as a size is."""
    told = [dict(re.findall(r"(\S+?)=(\S+)", row["shape"])) for row in variants]
    if len(columns) == 1:
        told = [{columns[0]: row["shape"]} for row in variants]
    sizes = {_plain(word) for item in SIZES.items() for word in item}
    found = {name: [row.get(name) for row in variants] for name in variants[0] if _plain(name) in sizes}
    return found | {name: [_number(one.get(name, "")) for one in told] for name in told[0]}


def _number(text: str) -> Any:
    try:
        return int(text) if text.isdecimal() and len(text) < 19 else float(text)
    except ValueError:
        return text


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9/]+", "", name.lower())


def _title(name: str) -> str:
    return SIZES.get(name, name)  # a table's columns keep the names that their owner gave them


def comparison_chart(
    variants: Sequence[Variant],
    base: str,
    metric: str,
    axis: Axis,
    *,
    higher_is_better: bool = False,
    extra: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Any:
    """A panel along the axis, then one for each cost that differs; None where no variant has a finite metric.

    `extra` are further columns of the variants, which are taken to be costs.
    """
    judged = [row for row in variants if _finite(row["metric"])]
    if not judged:
        return None
    points, names = _points(judged, base, axis), [row["shape"] for row in judged]
    look = _look(points, f"{metric} ({'higher' if higher_is_better else 'lower'} is better)")
    differing, equal = _costs(judged, [name for name in extra if name not in (axis.name, metric)])
    panels = [_along(points, names, [row for row in variants if row not in judged], axis, look)]
    for cost in differing:
        panels.append(_frontier(points, [row[cost.name] for row in judged], cost, axis, look, higher_is_better))
    lines = [*notes, *_key(judged, bool(differing)), *_also(axis)]
    lines += [f"Equal for all: {', '.join(equal)}."] if equal else []
    missing = [f"{row['shape']} ({row['note'] or 'not finite'})" for row in variants if row not in judged]
    lines += [f"Not judged (×): {'; '.join(missing)}."] if missing else []
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    across = TEXT[0] + TEXT[1] * (columns - 1)
    heading = alt.TitleParams(
        f"{metric} by {axis.title}, base {base}",
        subtitle=[part for line in lines for part in textwrap.wrap(line, across)],
    )
    return alt.concat(*panels, columns=columns).resolve_scale(y="shared").properties(title=heading)


def chart_name(about: str, base: str, axis: Axis) -> str:
    """A readable name for its files: what it is about, the base, the axis."""
    parts = [re.sub(r"[^\w.-]+", "-", part).strip("-.")[:60] for part in (about, base, axis.name)]
    return "-".join(part for part in parts if part) or "comparison"


# ---- words ---------------------------------------------------------------------------------------------------------


def _key(judged: Sequence[Variant], frontier: bool) -> list[str]:
    bars = ["Thin bars: 95 % interval of the mean"] if any(_finite(row.get("low")) for row in judged) else []
    if any(_finite(row.get("delta_low")) and row["delta_high"] > row["delta_low"] for row in judged):
        bars.append("thick bars: of the difference to the base")
    lines = [f"{'; '.join(bars)}. Dashed: the base."] if bars else ["One run of each: no intervals. Dashed: the base."]
    return [*lines, "Grey line over costs: no other variant is both cheaper and better."] if frontier else lines


def _also(axis: Axis) -> list[str]:
    """Other sizes that are not the same in all variants."""
    sizes = [f"{title} ({_span(places.values())})" for title, places in axis.also.items()]
    return [f"Also different: {', '.join(sizes)}."] if sizes else []


def _span(values: Iterable[float]) -> str:
    low, *_, high = sorted(values)
    return f"{low:,g} to {high:,g}"


# ---- costs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cost:
    name: str
    title: str
    more_is_better: bool


def _costs(judged: Sequence[Variant], extra: Iterable[str]) -> tuple[list[_Cost], list[str]]:
    """The costs that differ, and in words those that do not; a cost that is not known of all variants is left out."""
    differing, equal = [], []
    columns = [name for name in extra if name not in (*COSTS, *SIZES) and not NO_COST.fullmatch(_plain(name))]
    for name in (*COSTS, *columns):
        values = [float(row[name]) for row in judged if _finite(row.get(name))]
        if len(values) < len(judged) or max(values) <= 0:
            continue
        title, speed = _cost_title(name, judged[0]), bool(SPEED.search(_plain(name)))
        if max(values) > min(values) * (1 + NEAR):
            differing.append(_Cost(name, f"{title} (higher is better)" if speed else title, speed))
        else:
            number = f"{values[0]:,.0f}" if values[0] >= 1000 else f"{values[0]:,.4g}"
            both = f"parameters {number} (body {judged[0]['parameters_body']:,})" if title == TOTAL else ""
            equal.append(both or f"{title} {number}")
    return differing[:MOST_COSTS], equal


def _cost_title(name: str, row: Variant) -> str:
    """Of a bare shape's parameters nothing but the body is known; of those in a table, not even which they are."""
    if name != "parameters" or "parameters_body" not in row:
        return COSTS.get(name, name)
    return "parameters of the body" if row[name] == row["parameters_body"] else TOTAL


def pareto(
    points: Iterable[tuple[float, float]], more_is_better: bool, higher_is_better: bool
) -> list[tuple[float, float]]:
    """Of points (cost, metric), those that no other beats in both, from the cheapest."""
    cheap, good = -1 if more_is_better else 1, -1 if higher_is_better else 1
    line: list[tuple[float, float]] = []
    for cost, metric in sorted(points, key=lambda point: (cheap * point[0], good * point[1])):
        if not line or good * metric < good * line[-1][1]:
            line.append((cost, metric))
    return line


# ---- panels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Look:
    """What all panels share: the metric's axis, and a colour and symbol for each variant."""

    up: alt.Y
    color: alt.Color
    symbol: alt.Shape


def _look(points: Sequence[dict[str, Any]], title: str) -> _Look:
    colors = [color for color in COLORS if color != BLACK]
    looks = {point["variant"]: (INK, "diamond") for point in points if point["base"]}
    for number, point in enumerate(point for point in points if not point["base"]):
        looks[point["variant"]] = (colors[number % len(colors)], SYMBOLS[number // len(colors) % len(SYMBOLS)])
    names, inks, symbols = [*looks], [ink for ink, _ in looks.values()], [symbol for _, symbol in looks.values()]
    legend = alt.Legend(title=None, labelLimit=280, labelFontSize=13, symbolSize=90, symbolOpacity=1, rowPadding=4)
    return _Look(
        alt.Y("metric:Q", title=title).scale(zero=False, nice=False, padding=14),
        alt.Color("variant:N", legend=legend).scale(domain=names, range=inks),
        alt.Shape("variant:N", legend=legend).scale(domain=names, range=symbols),
    )


def _points(judged: Sequence[Variant], base: str, axis: Axis) -> list[dict[str, Any]]:
    """What is drawn of each variant, and what its tooltip says."""
    points = []
    for row in judged:
        name, metric = row["shape"], row["metric"]
        point = {"variant": name, "base": False, "metric": metric, "at": _text(axis.places[name])}
        if name == base:
            point |= {"variant": f"{name} (base)", "base": True}
        point |= {title: _text(places[name]) for title, places in axis.also.items()}
        if _finite(row.get("low")) and _finite(row.get("high")):
            point |= {"low": row["low"], "high": row["high"], "mean": f"{row['low']:.5g} to {row['high']:.5g}"}
        if row.get("delta_low") != row.get("delta_high") and _finite(row.get("delta_low")):
            low, high = row["delta_low"], row["delta_high"]
            point |= {"paired_low": metric + low - row["delta"], "paired_high": metric + high - row["delta"]}
            point |= {"difference": f"{row['delta']:+.4g} ({low:+.4g} to {high:+.4g})"}
        points.append(point)
    return points


def _along(
    points: Sequence[dict[str, Any]], names: Sequence[str], unjudged: Sequence[Variant], axis: Axis, look: _Look
) -> Any:
    """The metric along the axis; variants without a finite one are crosses at the bottom."""
    groups = _groups(axis)
    placed = [
        point | {"x": _place(axis, name, groups), "group": groups[name]}
        for point, name in zip(points, names, strict=True)
    ]
    x = _across(axis)
    level = [point for point in placed if point["base"]]
    layers = [_chart(level).mark_rule(color=MUTED, strokeDash=[5, 4]).encode(y=look.up)]
    if axis.numeric:
        line = _chart(placed).mark_line(color=LINE, strokeWidth=1.5)
        layers.append(line.encode(x=x, y=look.up, detail="group:N"))
    layers += _marks(placed, x, look, axis)
    if unjudged:
        crosses = [{"x": _place(axis, row["shape"]), "variant": row["shape"], "note": row["note"]} for row in unjudged]
        marks = _chart(crosses).mark_point(shape="cross", angle=45, size=80, color=MUTED, filled=True, opacity=1)
        layers.append(marks.encode(x=x, y=alt.value(UNJUDGED), tooltip=["variant:N", "note:N"]))
    return alt.layer(*layers).properties(width=WIDE, height=HIGH)


def _frontier(
    points: Sequence[dict[str, Any]], costs: Sequence[float], cost: _Cost, axis: Axis, look: _Look, higher: bool
) -> Any:
    """The metric against a cost, and a line through the variants that no other beats in both."""
    placed = [point | {"x": value} for point, value in zip(points, costs, strict=True)]
    best = pareto([(point["x"], point["metric"]) for point in placed], cost.more_is_better, higher)
    logarithmic = min(costs) > 0 and max(costs) >= LOG_FROM * min(costs)
    ticks = alt.Axis(format=_format(costs), tickCount=4, labelOverlap=True)
    scale = (
        alt.Scale(type="log", base=2, nice=False, padding=22)
        if logarithmic
        else alt.Scale(zero=False, nice=False, padding=22)
    )
    x = alt.X("x:Q", title=cost.title, axis=ticks, scale=scale)
    line = _chart([{"x": at, "metric": metric} for at, metric in best]).mark_line(color=LINE, strokeWidth=1.5)
    layers = [line.encode(x=x, y=look.up), *_marks(placed, x, look, axis, cost.title)]
    return alt.layer(*layers).properties(width=WIDE, height=HIGH)


def _marks(points: Sequence[dict[str, Any]], x: alt.X, look: _Look, axis: Axis, cost: str = "") -> list[Any]:
    """Points over their bars; over a cost, where points may stand close, only over the thick ones."""
    thin, thick = ([point for point in points if end in point] for end in ("low", "paired_low"))
    tips = [alt.Tooltip("variant:N"), alt.Tooltip("at:N", title=axis.title)]
    tips += [alt.Tooltip(f"{title}:N") for title in axis.also]
    tips += [alt.Tooltip("x:Q", title=cost, format=",.6~g")] if cost else []
    tips += [alt.Tooltip("metric:Q", format=".5~g"), alt.Tooltip("mean:N", title="95 % interval")]
    tips += [alt.Tooltip("difference:N", title="difference to the base")]
    size = alt.condition("datum.base", alt.value(170), alt.value(110))
    dots = _chart(points).mark_point(filled=True, opacity=1).encode(x=x, y=look.up, size=size, tooltip=tips)
    bars = _chart(thick).mark_rule(strokeWidth=7, opacity=0.35).encode(x=x, y="paired_low:Q", y2="paired_high:Q")
    thin_bars = _chart(thin).mark_rule(strokeWidth=1.5).encode(x=x, y="low:Q", y2="high:Q")
    layers = [bars, dots.encode(shape=look.symbol)] if cost else [thin_bars, bars, dots.encode(shape=look.symbol)]
    return [layer.encode(color=look.color) for layer in layers]


def _chart(values: Sequence[Mapping[str, Any]]) -> Any:
    return alt.Chart(inline([dict(value) for value in values]))


def _across(axis: Axis) -> alt.X:
    """A logarithmic axis with a tick at every place; places in their order where there is no scale."""
    if axis.scaled:
        places = sorted(set(axis.places.values()))
        ticks = alt.Axis(values=places, format=_format(places), labelOverlap=True)
        return alt.X("x:Q", title=axis.title, axis=ticks).scale(type="log", base=2, nice=False, padding=22)
    order = list(dict.fromkeys(axis.places.values()))
    if axis.numeric:
        order.sort(key=lambda place: math.inf if place == 0 and axis.name in LATENTS else place)
    labels = alt.Axis(labelAngle=0 if axis.numeric else -30, labelLimit=160, grid=True)
    return alt.X("x:N", title=axis.title, sort=[_text(place) for place in order], axis=labels).scale(
        type="point", padding=0.6
    )


def _format(values: Iterable[float]) -> str:
    return ".3~s" if max(values) >= 10_000 else ",~f"


def _place(axis: Axis, name: str, groups: Mapping[str, int] | None = None) -> Any:
    """On the axis; groups stand a little beside each other."""
    place = axis.places[name]
    if not axis.scaled:
        return _text(place)
    aside = groups[name] - max(groups.values()) / 2 if groups else 0
    return place * 2 ** (ASIDE * aside)


def _groups(axis: Axis) -> dict[str, int]:
    """Variants that one line joins: those alike in every other size that does not follow from the place on the axis."""
    free = [
        places
        for places in axis.also.values()
        if len({(axis.places[name], places[name]) for name in places}) > len(set(axis.places.values()))
    ]
    kinds = {name: tuple(places[name] for places in free) for name in axis.places}
    order = {kind: number for number, kind in enumerate(sorted(set(kinds.values())))}
    return {name: order[kind] for name, kind in kinds.items()}


def _text(place: Any) -> str:
    return "none" if place == 0 else f"{place:,g}" if isinstance(place, int | float) else str(place)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
