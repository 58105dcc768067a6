"""Theory as people ask for it: calls, tables and charts. Each says under which hypotheses its numbers hold."""

import math
import sys
import textwrap
from abc import abstractmethod
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, Self

from rich.console import RenderableType

from headwise.report.tables import _table
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.theory import bounds
from headwise.theory.sphere import whole

Counts = int | str | Sequence[int]
_Rows = list[dict[str, Any]]

_PROOFS = "The proofs are ours (docs/reference/theory.md), checked by simulation."
_GAUSSIAN = (
    "For independent Gaussian entries only: outputs of attention share the tokens' mean and are conditioned worse."
)


def count_text(number: int) -> str:
    """A whole number in full while it can be read, else three digits, rounded down, and a power of ten."""
    if number < 10**15:
        return f"{number:,}"
    power = Decimal(number).adjusted()
    return f"{number // 10 ** (power - 2) / 100:.2f} × 10^{power}"


def bound_text(value: float) -> str:
    """Four digits after the point, rounded down: what is printed is certified too."""
    return str(Decimal(value).quantize(Decimal("0.0001"), ROUND_FLOOR))


# ---- calls ---------------------------------------------------------------------------------------------------------


class TheoryResult(Shown):
    """Numbers that are computed, one row per rank and number of heads."""

    name: ClassVar[str]  # of its chart's files

    def __init__(self, rows: _Rows) -> None:
        self.rows = rows

    def as_dict(self) -> dict[str, Any] | list[Any]:
        """One row is an object, several are a list."""
        return self.rows[0] if len(self.rows) == 1 else self.rows

    def records(self) -> _Rows:
        """Numbers of heads that no table column can hold are text, as a terminal shows them."""
        return [
            {
                name: count_text(value) if isinstance(value, int) and value >= 2**63 else value
                for name, value in row.items()
            }
            for row in self.rows
        ]

    def to_json(self, indent: int | None = 2) -> str:
        """Numbers of heads may have thousands of digits, and are whole here."""
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            return super().to_json(indent)
        finally:
            sys.set_int_max_str_digits(limit)

    def with_chart(self, file: Path) -> Self:
        """The same rows, each saying where its chart is."""
        return type(self)([{**row, "chart": str(file)} for row in self.rows])

    @abstractmethod
    def lines(self) -> list[RenderableType]:
        """As a terminal shows it, with what is assumed."""

    @abstractmethod
    def chart(self) -> Any:
        """The same as a picture."""


class Bounds(TheoryResult):
    """Errors that no heads of a rank and number can go below."""

    name = "theory-bound"

    def lines(self) -> list[RenderableType]:
        return bound_table(self.rows)

    def chart(self) -> Any:
        return bound_chart(self.rows)


class HeadsNeeded(TheoryResult):
    """The fewest heads of a rank for which an error is not excluded."""

    name = "theory-heads-needed"

    def lines(self) -> list[RenderableType]:
        return heads_table(self.rows)

    def chart(self) -> Any:
        return heads_chart(self.rows)


class Conditioning(TheoryResult):
    """Condition numbers of random head outputs, predicted and simulated."""

    name = "theory-conditioning"

    def lines(self) -> list[RenderableType]:
        return conditioning_table(self.rows)

    def chart(self) -> Any:
        return conditioning_chart(self.rows)


def bound(dim: int, rank: Counts, heads: Counts, *, skip: bool = False) -> Bounds:
    """No heads of this rank and number have a smaller error at finding the nearer of two points.

    `rank` and `heads` are a number, several, or text: "1..64" doubles from 1 to 64. With `skip` any function of the
    query may be added, as a skip connection does.
    """
    cells = [(r, h) for r in read_counts("rank", rank) for h in read_counts("heads", heads)]
    return Bounds(
        [
            {
                "dim": dim,
                "rank": r,
                "heads": h,
                "skip": skip,
                "scalar_values": bounds.scalar_bound(dim, r, h, skip=skip),
                "free_values": bounds.free_bound(dim, r, h, skip=skip),
                "hypotheses": bounds.HYPOTHESES,
            }
            for r, h in cells
        ]
    )


def heads_needed(dim: int, rank: Counts, error: float | str, *, skip: bool = False) -> HeadsNeeded:
    """With fewer heads of this rank no training and no attention function reaches the error.

    `error` as text is exact: "0.1" is a tenth. The rest is as in `bound`.
    """
    allowed = bounds.read_error(error)
    return HeadsNeeded(
        [
            {
                "dim": dim,
                "rank": r,
                "error": float(allowed),
                "skip": skip,
                "scalar_values": bounds.certified_heads(dim, r, allowed, values="scalar", skip=skip),
                "free_values": bounds.certified_heads(dim, r, allowed, values="free", skip=skip),
                "hypotheses": bounds.HYPOTHESES,
            }
            for r in read_counts("rank", rank)
        ]
    )


def conditioning(tokens: int = 64, heads: Counts = "1..64", head_size: int = 16, seeds: int = 5) -> Conditioning:
    """Condition number of independent Gaussian head outputs, side by side: predicted and simulated."""
    for name, number in {"tokens": tokens, "head size": head_size, "seeds": seeds}.items():
        whole(name, number, 2 if name == "tokens" else 1, 4096)
    sizes = {count: whole("heads × head size", count * head_size, 1, 2**17) for count in read_counts("heads", heads)}
    return Conditioning([_condition_row(tokens, count, head_size, seeds) for count in sizes])


def _condition_row(tokens: int, heads: int, head_size: int, seeds: int) -> dict[str, Any]:
    from headwise.theory.conditioning import gaussian_condition
    from headwise.theory.gaussian import marchenko_pastur

    columns = heads * head_size
    simulated = [gaussian_condition(tokens, columns, seed) for seed in range(seeds)]
    return {
        "tokens": tokens,
        "heads": heads,
        "head_size": head_size,
        "columns": columns,
        "predicted": None if columns == tokens else marchenko_pastur(tokens, columns),
        "simulated": mean(simulated),
        "low": min(simulated),
        "high": max(simulated),
        "seeds": seeds,
    }


def read_counts(name: str, counts: Counts) -> list[int]:
    """8 or '8' is one number, '1,4,16' are three, '1..64' doubles from 1 up to 64, and ends with it."""
    text = counts if isinstance(counts, str) else ",".join(map(str, [counts] if isinstance(counts, int) else counts))
    try:
        numbers: list[int] = []
        for part in text.split(","):
            low, dots, high = part.partition("..")
            number, last = int(low), int(high if dots else low)
            if number < 1 or last < number:
                raise ValueError
            while number < last:
                numbers.append(number)
                number *= 2
            numbers.append(last)
    except ValueError:
        sentence = f"cannot read --{name} '{text}'; write a number from 1 on, a list 1,4,16 or a range 1..64"
        raise SpecError(sentence) from None
    return sorted(set(numbers))


# ---- tables --------------------------------------------------------------------------------------------------------


def bound_table(rows: _Rows) -> list[RenderableType]:
    """The smallest certified error of each rank and number of heads."""
    table = _table("rank", "heads", "scalar values", "free values")
    for row in rows:
        numbers = (bound_text(row[name]) for name in ("scalar_values", "free_values"))
        table.add_row(str(row["rank"]), count_text(row["heads"]), *numbers)
    scale = "The error is a squared distance: answering zero has 1, the mean of the points 0.5."
    return [_heading("Error is at least", rows), table, "", scale, *_notes(rows)]


def heads_table(rows: _Rows) -> list[RenderableType]:
    """How many heads are the least that is not excluded."""
    table = _table("rank", "scalar values", "free values")
    for row in rows:
        table.add_row(str(row["rank"]), *(count_text(row[name]) for name in ("scalar_values", "free_values")))
    heading = _heading(f"Heads needed for error {rows[0]['error']:g}", rows)
    meaning = "With fewer heads the error is impossible; whether so many suffice is another question."
    return [heading, table, "", meaning, *_notes(rows)]


def conditioning_table(rows: _Rows) -> list[RenderableType]:
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


def _heading(what: str, rows: _Rows) -> str:
    return f"{what}, dim {rows[0]['dim']}" + (", with a skip connection" if rows[0]["skip"] else "")


def _notes(rows: _Rows) -> list[RenderableType]:
    return [f"[dim]{rows[0]['hypotheses']} {_PROOFS}[/dim]"]


# ---- charts --------------------------------------------------------------------------------------------------------

_KINDS = {"scalar_values": "scalar values", "free_values": "free values"}


def bound_chart(rows: _Rows) -> Any:
    """Certified error against heads, or against rank where there is one number of heads."""
    from headwise.charts.grammar import COLORS, alt

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


def heads_chart(rows: _Rows) -> Any:
    """The power of ten of the heads needed, against rank."""
    from headwise.charts.grammar import COLORS, alt

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


def conditioning_chart(rows: _Rows) -> Any:
    """Predicted condition numbers as a line, simulated ones as points with the range of the seeds."""
    from headwise.charts.grammar import COLORS, alt

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


def _base(points: _Rows) -> Any:
    from headwise.charts.grammar import alt

    return alt.Chart(alt.Data(values=points)).mark_line(point=alt.OverlayMarkDef(size=60), strokeWidth=2)


def _titled(chart: Any, title: str, notes: list[str]) -> Any:
    from headwise.charts.grammar import alt

    lines = [line for note in notes for line in textwrap.wrap(note, 84)]
    return chart.properties(title=alt.TitleParams(title, subtitle=lines), width=520, height=320)
