"""Tables and heat maps of `headwise inspect` and `headwise truncate`."""

from statistics import geometric_mean
from typing import Any

from rich.console import RenderableType

from headwise.checkpoints.inspection import Inspection, Layer
from headwise.checkpoints.truncation import Truncation
from headwise.report.tables import _table, percent

_MEANING = (
    "used: effective rank, the exponential of the entropy of the singular values, mean over heads; 99 %: the rank that "
    "keeps 99 % of the energy, mean; half keeps: the energy that half of the rank would keep, least of the heads; "
    "condition: number within the rank, geometric mean; alike: the largest cosine with another head of the layer."
)
_ROTARY = (
    "Rotary: QK is another matrix at every distance. 'used' is at distance 0, 'far' the mean over distances 0, 1, 2, "
    "4, ... 1024; energies count whole frequency pairs."
)
_NORMED = "Queries and keys pass a norm: its weights are in QK, its scaling of each token is not."


def inspection_tables(found: Inspection) -> list[RenderableType]:
    """The summary, and a line a layer for QK and for VO."""
    notes = [_MEANING, *([_ROTARY] if found.rotary else []), *([_NORMED] if found.normed else [])]
    cache = f"{found.kv_bytes_per_token:,} bytes of keys and values a token ({found.dtype})"
    heading = [f"[bold]{found.shape}[/bold]  {found.family}, {cache}", "", *found.summary.split("\n"), ""]
    return [*heading, _table_of(found, "qk"), "", _table_of(found, "vo"), "", f"[dim]{' '.join(notes)}[/dim]"]


def _table_of(found: Inspection, pair: str) -> RenderableType:
    far = pair == "qk" and found.rotary
    seen = pair == "qk" and found.layers[0].heads[0].entropy is not None
    columns = ["used", "range", *(["far"] if far else []), "of", "99 %", "half keeps", "condition", "alike"]
    table = _table("layer", *columns, *(["entropy"] if seen else []), title="QK" if pair == "qk" else "VO")
    for number, layer in enumerate(found.layers):
        used = [getattr(head, f"{pair}_effective_rank") for head in layer.heads]
        cells = [f"{layer.mean_of(f'{pair}_effective_rank'):.1f}", f"{min(used):.0f}–{max(used):.0f}"]
        cells += [f"{layer.mean_of('qk_effective_rank_all_distances'):.1f}"] if far else []
        cells += [str(layer.qk_rank if pair == "qk" else layer.v_rank), f"{layer.mean_of(f'{pair}_rank_99'):.1f}"]
        cells += [f"{min(getattr(head, f'{pair}_energy_half') for head in layer.heads):.1%}"]
        cells += [_condition(layer, pair), f"{max(getattr(head, f'{pair}_overlap') for head in layer.heads):.2f}"]
        table.add_row(str(number), *cells, *([f"{layer.mean_of('entropy'):.2f}"] if seen else []))
    return table


def _condition(layer: Layer, pair: str) -> str:
    numbers = [getattr(head, f"{pair}_condition") for head in layer.heads]
    return f"{geometric_mean(numbers):.3g}" if all(0 < number < float("inf") for number in numbers) else "singular"


def truncation_lines(found: Truncation, keep: float, out: str) -> list[RenderableType]:
    """What became smaller, and what can read it."""
    sizes = {"bytes of weights": (found.bytes_before, found.bytes_after)}
    sizes |= {"numbers in the cache, a token": (found.kv_before, found.kv_after)}
    table = _table("<", "before", "after", "change")
    for what, (before, after) in sizes.items():
        table.add_row(what, f"{before:,}", f"{after:,}", percent(after / before - 1))
    kept = f"Heads keep {keep:.4g} of their energy or more, in the mean of each layer."
    lines: list[RenderableType] = [f"[bold]{found.before}[/bold]", f"[bold]{found.after}[/bold]", "", table, "", kept]
    if found.normed:
        lines.append("Queries and keys pass a norm, which no change of basis leaves alone: only VO was cut.")
    elif found.rotary:
        lines.append("Rotary: queries and keys lost whole frequency pairs, each key/value head its own.")
    return [*lines, f"{out}: {_READABLE[found.form]}"]


def text_lines(document: dict[str, Any], keep: float) -> list[RenderableType]:
    """What a run on text said of truncation."""
    told = f"On {document['tokens']:,} tokens, with heads cut to keep {keep:.4g} of their energy: "
    if document["scored"] == "hidden states":
        return ["", f"{told}hidden states change by {document['relative_change']:.2%} (squared, relative)."]
    before, after = document["loss_before"], document["loss_after"]
    return ["", f"{told}loss {before:.4f} before, {after:.4f} after ({document['scored']}, nats a token)."]


_READABLE = {
    "native": "the family's own configuration says the new shape, so its own code loads it.",
    "padded": "zeros stand where something was cut, so the family's own code runs it; nothing became smaller.",
    "headwise": "the family's configuration cannot say this shape, so its own code cannot load it; the new shape is "
    "under 'headwise' in config.json, and headwise reads it. --pad writes the same function in the old sizes.",
}


# ---- heat maps -----------------------------------------------------------------------------------------------------

_PANELS = {
    "qk_effective_rank": "QK: part of the rank in use",
    "vo_effective_rank": "VO: part of the rank in use",
    "qk_overlap": "QK: likeness to another head",
    "vo_overlap": "VO: likeness to another head",
}


def heat_maps(found: Inspection) -> Any:
    """A square a head: how much of its rank is in use, and how like another head it is."""
    import altair as alt

    import headwise.charts.grammar  # noqa: F401, the theme

    side = max(12, min(28, 560 // len(found.layers)))
    panels = []
    for field, title in _PANELS.items():
        points = [
            {"layer": number, "head": index, "value": _value(layer, head, field)}
            for number, layer in enumerate(found.layers)
            for index, head in enumerate(layer.heads)
        ]
        most = max(len(layer.heads) for layer in found.layers)
        chart = alt.Chart(alt.Data(values=points)).mark_rect()
        panels.append(
            chart.encode(
                x=alt.X("head:O", title="head").axis(labelAngle=0, labelOverlap=True),
                y=alt.Y("layer:O", title="layer"),
                color=alt.Color("value:Q", legend=alt.Legend(title=None)).scale(scheme="viridis", domain=[0, 1]),
                tooltip=["layer:O", "head:O", alt.Tooltip("value:Q", format=".3f")],
            ).properties(title=alt.TitleParams(title, fontSize=14), width=side * most, height=side * len(found.layers))
        )
    heading = alt.TitleParams(str(found.shape), subtitle=found.summary.split("\n"))
    return alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:])).properties(title=heading)


def _value(layer: Layer, head: Any, field: str) -> float | None:
    value = getattr(head, field)
    if field.endswith("overlap"):
        return None if value != value else value  # one head has no other
    return value / (layer.qk_rank if field.startswith("qk") else layer.v_rank)
