"""Heat maps of an inspection: one square per head."""

from typing import Any

_PANELS = {
    "qk_effective_rank": "QK: part of the rank in use",
    "vo_effective_rank": "VO: part of the rank in use",
    "qk_overlap": "QK: likeness to another head",
    "vo_overlap": "VO: likeness to another head",
}


def heat_maps(heads: list[dict[str, Any]], title: str, summary: list[str]) -> Any:
    """How much of its rank each head uses, and how like another it is; `heads` are the records of an `Inspection`."""
    from headwise.charts.grammar import alt

    layers, most = (1 + max(head[axis] for head in heads) for axis in ("layer", "head"))
    side = max(12, min(28, 560 // layers))
    panels = []
    for field, name in _PANELS.items():
        points = [{"layer": head["layer"], "head": head["head"], "value": _value(head, field)} for head in heads]
        chart = alt.Chart(alt.Data(values=points)).mark_rect()
        panels.append(
            chart.encode(
                x=alt.X("head:O", title="head").axis(labelAngle=0, labelOverlap=True),
                y=alt.Y("layer:O", title="layer"),
                color=alt.Color("value:Q", legend=alt.Legend(title=None)).scale(scheme="viridis", domain=[0, 1]),
                tooltip=["layer:O", "head:O", alt.Tooltip("value:Q", format=".3f")],
            ).properties(title=alt.TitleParams(name, fontSize=14), width=side * most, height=side * layers)
        )
    heading = alt.TitleParams(title, subtitle=summary)
    return alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:])).properties(title=heading)


def _value(head: dict[str, Any], field: str) -> float | None:
    value: float = head[field]
    if field.endswith("overlap"):
        return None if value != value else value  # one head has no other
    return value / (head["qk_rank"] if field.startswith("qk") else head["v_rank"])
