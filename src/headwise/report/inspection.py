"""Tables of `headwise inspect` and `headwise truncate`."""

from statistics import geometric_mean

from rich.console import RenderableType

from headwise.checkpoints.inspection import Inspection, Layer
from headwise.checkpoints.on_text import TextChange
from headwise.checkpoints.truncation import Truncation
from headwise.report.tables import _table, percent

_MEANING = (
    "used: effective rank, the exponential of the entropy of the singular values, mean over heads; 99 %: the rank that "
    "keeps 99 % of the energy, mean; half keeps: the energy that half of the rank would keep, least of the heads; "
    "condition: number within the rank, geometric mean; alike: the largest cosine with another head of the layer."
)
_ROTARY = (
    "Rotary: QK is another matrix at every distance. 'used' is at distance 0, 'far' the mean over distances 0, 1, 2, "
    "4, ... 1024; '99 %' and 'half keeps' are of whole frequency pairs, |Q_pair|²|K_pair|² being a pair's energy."
)
_NORMED = "Queries and keys pass a norm: its weights are in QK, its scaling of each token is not."


def inspection_tables(inspection: Inspection) -> list[RenderableType]:
    """The summary, one line per layer for QK and for VO, and the loss on text."""
    notes = [_MEANING, *([_ROTARY] if inspection.rotary else []), *([_NORMED] if inspection.normed else [])]
    cache = f"{inspection.kv_bytes_per_token:,} KV cache bytes/token ({inspection.dtype})"
    heading = [
        f"[bold]{inspection.shape}[/bold]  {inspection.family}, {cache}",
        "",
        *inspection.summary.split("\n"),
        "",
    ]
    tables = [_table_of(inspection, "qk"), "", _table_of(inspection, "vo"), "", f"[dim]{' '.join(notes)}[/dim]"]
    return [*heading, *tables, *_text_lines(inspection.on_text, inspection.keep)]


def _table_of(inspection: Inspection, pair: str) -> RenderableType:
    far = pair == "qk" and inspection.rotary
    seen = pair == "qk" and inspection.layers[0].heads[0].entropy is not None
    columns = ["used", "range", *(["far"] if far else []), "of", "99 %", "half keeps", "condition", "alike"]
    table = _table("layer", *columns, *(["entropy"] if seen else []), title="QK" if pair == "qk" else "VO")
    for number, layer in enumerate(inspection.layers):
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


def truncation_lines(truncation: Truncation) -> list[RenderableType]:
    """What became smaller, what can read it, and the loss on text."""
    table = _table("<", "before", "after", "change")
    for row in truncation.records():
        before, after = row["before"], row["after"]
        table.add_row(row["what"], f"{before:,}", f"{after:,}", percent(after / before - 1))
    kept = f"Heads keep {truncation.keep:.4g} of their energy or more, in the mean of each layer."
    shapes = [f"[bold]{shape}[/bold]" for shape in (truncation.before, truncation.after)]
    lines: list[RenderableType] = [*shapes, "", table, "", kept]
    if truncation.normed:
        lines.append("Queries and keys pass a norm, which no change of basis leaves alone: only VO was cut.")
    elif truncation.lost_pairs:
        lines.append("Rotary: queries and keys lost whole frequency pairs, each key/value head its own.")
    if not truncation.aware:
        lines.append(
            "Energy of weights does not predict the loss: give --data TEXT to cut by what tokens use, and to measure."
        )
    lines.append(f"{truncation.out}: {_READABLE[truncation.form]}")
    return [*lines, *_text_lines(truncation.on_text, truncation.keep)]


def _text_lines(change: TextChange | None, keep: float) -> list[RenderableType]:
    """How truncation changes the model's output on text."""
    if change is None:
        return []
    heading = f"On {change.tokens:,} tokens, with heads cut to keep {keep:.4g} of their energy: "
    if change.relative_change is not None:
        return ["", f"{heading}hidden states change by {change.relative_change:.2%} (squared, relative)."]
    losses = f"loss {change.loss_before:.4f} before, {change.loss_after:.4f} after"
    return ["", f"{heading}{losses} ({change.scored}, nats/token)."]


_READABLE = {
    "native": "the family's own configuration says the new shape, so its own code loads it.",
    "padded": "zeros stand where something was cut, so the family's own code runs it; nothing became smaller.",
    "headwise": "the family's configuration cannot say this shape, so its own code cannot load it; the new shape is "
    "under 'headwise' in config.json, and headwise reads it. --pad writes the same function in the old sizes.",
}
