"""Charts of published results: their effect against scale, and whether forecasts of directions came true."""

from typing import Any

import altair as alt

from headwise.charts.grammar import COLORS, INK, MUTED, inline

PANELS = {"loss": "change of the loss, % (above 0: worse)", "points": "benchmarks, points lost (above 0: worse)"}
SPENT = {True: "saving spent again (equal parameters or FLOPs)", False: "saving not spent"}


def against_scale(points: list[dict[str, Any]], title: str, notes: list[str]) -> Any:
    """A point per row: `scale` in parameters, `change`, its `panel` (loss or points), `refilled`, `dose`, `lab`."""
    across = alt.X("scale:Q", title="parameters").scale(type="log", nice=False, padding=14)
    across = across.axis(format="~s", tickCount=5, labelExpr="replace(datum.label, 'G', 'B')")
    color = alt.Color("spent:N", sort=list(SPENT.values()), legend=alt.Legend(title=None, labelLimit=340))
    form = alt.Shape("dose:N", sort=["up to 4×", "more than 4×", "not said"], legend=alt.Legend(title="change of"))
    values = [{**point, "spent": SPENT[point["refilled"]], "dose": _dose(point["dose"])} for point in points]
    panels = []
    for name, heading in PANELS.items():
        mine = [value for value in values if value["panel"] == name]
        if not mine:
            continue
        up = alt.Y("change:Q", title=None).scale(nice=True)
        base = alt.Chart(inline(mine)).encode(x=across)
        zero = alt.Chart(inline([{"y": 0}])).mark_rule(color=MUTED, strokeDash=[5, 4]).encode(y="y:Q")
        dots = base.mark_point(filled=True, size=80, opacity=0.85).encode(
            y=up,
            color=color.scale(domain=list(SPENT.values()), range=[COLORS[0], COLORS[1]]),
            shape=form.scale(domain=["up to 4×", "more than 4×", "not said"], range=["circle", "triangle-up", "cross"]),
            tooltip=["lab:N", "id:N", "metric:N", "change:Q", "scale:Q"],
        )
        small = alt.TitleParams(heading, fontSize=14, fontWeight="normal", color=INK, offset=4)
        panels.append(alt.layer(zero, dots).properties(width=300, height=260, title=small))
    return alt.hconcat(*panels).properties(title=alt.TitleParams(title, subtitle=notes))


def calibration(points: list[dict[str, Any]], title: str, notes: list[str]) -> Any:
    """What was forecast against how often it came so; on the line both agree."""
    ends = inline([{"at": 0.0}, {"at": 1.0}])
    line = alt.Chart(ends).mark_line(color=MUTED, strokeDash=[6, 4]).encode(x="at:Q", y="at:Q")
    base = alt.Chart(inline(points)).encode(
        x=alt.X("forecast:Q", title="probability forecast").scale(domain=[0, 1]).axis(format="%"),
        y=alt.Y("found:Q", title="share that came so").scale(domain=[0, 1]).axis(format="%"),
    )
    dots = base.mark_point(filled=True, opacity=1, color=COLORS[0]).encode(
        size=alt.Size("labs:Q", legend=None).scale(range=[40, 500])
    )
    words = base.mark_text(dx=34, dy=12, fontSize=12, color=INK).encode(text=alt.Text("label:N"))
    return alt.layer(line, dots, words).properties(width=340, height=300, title=alt.TitleParams(title, subtitle=notes))


def _dose(dose: str | None) -> str:
    return dose.replace("x", "×") if dose else "not said"
