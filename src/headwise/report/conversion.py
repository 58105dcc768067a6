"""Tables of `headwise convert`."""

from rich.console import RenderableType

from headwise.checkpoints.conversion.result import Conversion, Frontier
from headwise.checkpoints.conversion.text import Change
from headwise.report.tables import _table, percent

LISTED = 8  # heads of a layer


def conversion_lines(done: Conversion) -> list[RenderableType]:
    """The two shapes, what became smaller, the loss of the folder loaded back, and how well each layer was fitted."""
    sizes = _table("<", "before", "after", "change")
    for row in done.records():
        before, after = row["before"], row["after"]
        shown = (f"{before:,}", f"{after:,}") if isinstance(before, int) else (f"{before:.2f}", f"{after:.2f}")
        sizes.add_row(row["what"], *shown, percent(after / before - 1))
    lines: list[RenderableType] = [f"[bold]{done.before}[/bold]", f"[bold]{done.after}[/bold]", "", sizes, ""]
    lines += [*_tried(done), *_sensitivity(done), *_importance(done), *_losses(done), *_layers(done)]
    if done.dropped:
        lines.append(f"Dropped layers: {', '.join(map(str, done.dropped))}.")
    lines.append(f"{done.loading} loads it; vLLM and SGLang are not tested.")
    return lines


def _tried(done: Conversion) -> list[RenderableType]:
    if len(done.tried) < 2:
        return []
    table = _table("<ways to meet the budget", "KV cache", "loss")
    for way in done.tried:
        table.add_row(way.shape, f"{way.kv:.0%}", f"{way.loss:.4f}")
    return [table, "[dim]loss on text that none was fitted to, nor the result is measured on[/dim]", ""]


def _sensitivity(done: Conversion) -> list[RenderableType]:
    if not done.sensitivity:
        return []
    counts = sorted({one.kv_heads for one in done.sensitivity}, reverse=True)
    errors = {(one.layer, one.kv_heads): one.error for one in done.sensitivity}
    table = _table("layer", *(f"{count} key/value heads" for count in counts))
    for layer in sorted({one.layer for one in done.sensitivity}):
        table.add_row(str(layer), *(f"{errors[layer, count]:.2%}" for count in counts))
    return [
        table,
        "[dim]|new - old|² / |old|² of the last hidden states where one layer alone has so many, before any fit[/dim]",
        "",
    ]


def _importance(done: Conversion) -> list[RenderableType]:
    lines: list[RenderableType] = []
    layers = [one for one in done.importance if one.head is None]
    if layers:
        table = _table("layer", "loss without it")
        for one in layers:
            table.add_row(str(one.layer), f"{one.score:+.1%}")
        lines += [table, ""]
    heads = [one for one in done.importance if one.head is not None]
    if heads:
        table = _table("layer", "<heads, those worth least first")
        for layer in sorted({one.layer for one in heads}):
            own = sorted((one for one in heads if one.layer == layer), key=lambda one: one.score)
            more = ", ..." if len(own) > LISTED else ""
            table.add_row(str(layer), ", ".join(f"{one.head} ({one.score:.0%})" for one in own[:LISTED]) + more)
        lines += [table, "[dim]share of the layer: squared derivative of the loss by a gate on each head[/dim]", ""]
    return lines


def _losses(done: Conversion) -> list[RenderableType]:
    if done.loss_before is None or done.converted is None:
        return [
            "Converted from the weights alone, which does not predict the loss: give --data TEXT to fit and measure.",
            "",
        ]
    table = _table("<loss, nats/token", "", "change", "95 % interval")
    table.add_row("original", f"{done.loss_before:.4f}", "", "")
    for name, change in (("converted", done.converted), ("healed", done.healed)):
        if change is not None:
            table.add_row(name, f"{change.loss:.4f}", *_change(change))
    lines: list[RenderableType] = [table]
    lines.append(f"[dim]of the folder loaded back, on {done.tokens:,} held-out tokens, paired by blocks[/dim]")
    if done.healing is not None:
        healing = done.healing
        lines.append(
            f"[dim]healed in {healing.seconds:,.0f} s: {healing.steps:,} steps, {healing.tokens:,} tokens[/dim]"
        )
    return [*lines, ""]


def _change(change: Change) -> tuple[str, str]:
    return f"{change.change:+.2%}", f"{change.low:+.2%} to {change.high:+.2%}"


def _layers(done: Conversion) -> list[RenderableType]:
    if not done.layers:
        return []
    table = _table("layer", "worked out", "fitted")
    for layer in done.layers:
        table.add_row(str(layer.layer), f"{layer.worked_out:.2%}", f"{layer.fitted:.2%}")
    return [table, "[dim]|new - old|² / |old|² of attention's outputs, on calibration text kept aside[/dim]", ""]


def frontier_lines(several: Frontier) -> list[RenderableType]:
    """One line per budget."""
    table = _table("<shape", "KV cache", "parameters", "converted", "healed", "<folder")
    for one in several.conversions:
        changes = ["" if change is None else f"{change.change:+.2%}" for change in (one.converted, one.healed)]
        table.add_row(one.after, f"{one.kv:.0%}", f"{one.parameters_after:,}", *changes, str(one.out))
    first = several.conversions[0]
    base = "" if first.loss_before is None else f", loss {first.loss_before:.4f} on {first.tokens:,} held-out tokens"
    return [f"[bold]{first.before}[/bold]{base}", "", table]
