"""Tables and charts of the theory commands. Each says under which hypotheses its numbers hold."""

import math
import textwrap
from decimal import Decimal
from typing import Any

from rich.console import RenderableType

from headwise.report.tables import _table
from headwise.spec import SpecError

Rows = list[dict[str, Any]]

_PROOFS = "The proofs are ours (docs/reference/theory.md), checked by simulation."
_GAUSSIAN = (
    "For independent Gaussian entries only: outputs of attention share the tokens' mean and are conditioned worse."
)


def count_text(number: int) -> str:
    """A whole number in full while it can be read, else three digits and a power of ten."""
    if number < 10**15:
        return f"{number:,}"
    digits, power = f"{Decimal(number):.2e}".split("e+")
    return f"{digits} × 10^{power}"


# ---- tables --------------------------------------------------------------------------------------------------------


def bound_table(rows: Rows) -> list[RenderableType]:
    """The smallest certified error of each rank and number of heads."""
    table = _table("rank", "heads", "scalar values", "free values")
    for row in rows:
        numbers = (f"{row[name]:.4f}" for name in ("scalar_values", "free_values"))
        table.add_row(str(row["rank"]), count_text(row["heads"]), *numbers)
    scale = "The error is a squared distance: answering zero has 1, the mean of the points 0.5."
    return [_heading("Error is at least", rows), table, "", scale, *_notes(rows)]


def heads_table(rows: Rows) -> list[RenderableType]:
    """How many heads are the least that is not excluded."""
    table = _table("rank", "scalar values", "free values")
    for row in rows:
        table.add_row(str(row["rank"]), *(count_text(row[name]) for name in ("scalar_values", "free_values")))
    heading = _heading(f"Heads needed for error {rows[0]['error']:g}", rows)
    meaning = "With fewer heads the error is impossible; whether so many suffice is another question."
    return [heading, table, "", meaning, *_notes(rows)]


def conditioning_table(rows: Rows) -> list[RenderableType]:
    """Condition numbers of random matrices beside the prediction."""
    table = _table("heads", "columns", "predicted", "simulated", "range of seeds")
    for row in rows:
        predicted = "none" if row["predicted"] is None else f"{row['predicted']:.3f}"
        spread = f"{row['low']:.3f}–{row['high']:.3f}"
        table.add_row(str(row["heads"]), str(row["columns"]), predicted, f"{row['simulated']:.3f}", spread)
    first = rows[0]
    sizes = f"{first['tokens']} tokens, heads of {first['head_size']} columns, {first['seeds']} seeds"
    square = ["Where columns equal tokens the predicted edge is 0: there is no finite prediction."]
    return [
        f"Condition number, {sizes}",
        table,
        "",
        *(square if any(row["predicted"] is None for row in rows) else []),
        _GAUSSIAN,
    ]


def _heading(what: str, rows: Rows) -> str:
    return f"{what}, dim {rows[0]['dim']}" + (", with a skip connection" if rows[0]["skip"] else "")


def _notes(rows: Rows) -> list[RenderableType]:
    return [f"[dim]{rows[0]['hypotheses']} {_PROOFS}[/dim]"]


# ---- charts --------------------------------------------------------------------------------------------------------

_KINDS = {"scalar_values": "scalar values", "free_values": "free values"}


def bound_chart(rows: Rows) -> Any:
    """Certified error against heads, or against rank where there is one number of heads."""
    import altair as alt

    from headwise.charts.grammar import COLORS

    if max(row["heads"] for row in rows) > 10**300:
        raise SpecError("a chart cannot show more than 10^300 heads; leave out --chart")
    along, other = ("heads", "rank") if len({row["heads"] for row in rows}) > 1 else ("rank", "heads")
    points = [
        {along: float(row[along]), "kind": text, "error": row[kind], "arm": count_text(row[other])}
        for row in rows
        for kind, text in _KINDS.items()
    ]
    arms = list(dict.fromkeys(point["arm"] for point in points))
    legend = alt.Legend(title=other) if len(arms) > 1 else None
    chart = _base(points).encode(
        x=alt.X(f"{along}:Q", title=_AXES[along]).scale(type="log", base=2),
        y=alt.Y("error:Q", title="error is at least").scale(domain=[0, 0.5]),
        color=alt.Color("arm:N", sort=arms, legend=legend).scale(range=COLORS),
        strokeDash=alt.StrokeDash("kind:N", sort=list(_KINDS.values()), legend=None),
    )
    fixed = "" if len(arms) > 1 else f", {other} {arms[0]}"
    key = "Solid: scalar values; dashed: free values. The mean of the points has 0.5."
    return _titled(chart, _heading("Certified error", rows) + fixed, [key, rows[0]["hypotheses"], _PROOFS])


def heads_chart(rows: Rows) -> Any:
    """The power of ten of the heads needed, against rank."""
    import altair as alt

    from headwise.charts.grammar import COLORS

    points = [
        {"rank": row["rank"], "kind": text, "power": math.log10(row[kind])}
        for row in rows
        for kind, text in _KINDS.items()
    ]
    chart = _base(points).encode(
        x=alt.X("rank:Q", title=_AXES["rank"]).scale(type="log", base=2),
        y=alt.Y("power:Q", title="heads needed, at least (power of ten)").scale(zero=True),
        color=alt.Color("kind:N", sort=list(_KINDS.values()), legend=alt.Legend(title="values")).scale(range=COLORS),
    )
    title = _heading(f"Heads needed for error {rows[0]['error']:g}", rows)
    return _titled(chart, title, [rows[0]["hypotheses"], _PROOFS])


def conditioning_chart(rows: Rows) -> Any:
    """Predicted condition numbers as a line, simulated ones as points with the range of the seeds."""
    import altair as alt

    from headwise.charts.grammar import COLORS

    x = alt.X("heads:Q", title=_AXES["heads"]).scale(type="log", base=2)
    y = alt.Y("condition:Q", title="condition number").scale(type="log")
    predicted = alt.Data(values=[row | {"condition": row["predicted"]} for row in rows])  # none breaks the line
    line = alt.Chart(predicted).mark_line(color=COLORS[0], strokeWidth=2, point={"color": COLORS[0]}).encode(x=x, y=y)
    simulated = alt.Chart(alt.Data(values=[row | {"condition": row["simulated"]} for row in rows]))
    dots = simulated.mark_point(filled=True, size=80, opacity=1, color=COLORS[1]).encode(x=x, y=y)
    bars = simulated.mark_rule(strokeWidth=5, opacity=0.4, color=COLORS[1]).encode(x=x, y="low:Q", y2="high:Q")
    key = "line: (√D + √N) / |√D - √N| for N tokens and D columns; points: simulated, mean and range of the seeds"
    title = f"Condition number of {rows[0]['tokens']} tokens by heads of {rows[0]['head_size']} columns"
    return _titled(alt.layer(line, bars, dots), title, [key, _GAUSSIAN])


_AXES = {"heads": "number of heads", "rank": "rank of each head"}


def _base(points: Rows) -> Any:
    import altair as alt

    return alt.Chart(alt.Data(values=points)).mark_line(point=alt.OverlayMarkDef(size=60), strokeWidth=2)


def _titled(chart: Any, title: str, notes: list[str]) -> Any:
    import altair as alt

    lines = [line for note in notes for line in textwrap.wrap(note, 84)]
    return chart.properties(title=alt.TitleParams(title, subtitle=lines), width=520, height=320)
