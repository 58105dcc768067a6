"""Suggestions for a terminal of 80 columns: the answer, then each shape with its exact costs and its evidence."""

from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from headwise.report.ledger import line as comparison_line
from headwise.report.tables import percent, short

_STYLE = {"supported": "bold green", "disputed": "bold yellow", "untested": "bold", "contradicted": "bold red"}


def suggestion_lines(found: dict[str, Any]) -> list[RenderableType]:
    lines: list[RenderableType] = [f"[bold]{found['answer']}[/bold]"]
    for one in found["suggestions"]:
        lines += ["", f"[bold]{one['shape']}[/bold]  [{_STYLE[one['standing']]}]{one['standing']}[/]", one["move"]]
        lines += [f"[dim]{_costs(one)}[/dim]", *_predicted(one["law"]), _evidence(one["evidence"])]
    return lines


def _costs(one: dict[str, Any]) -> str:
    changes = {name: percent(one.get(f"{name}_difference", 0.0)) for name in one}
    sizes = f"parameters {changes['parameters']}, training FLOPs {changes['train_flops_per_token']}"
    cache = f"{short(one['kv_bytes_per_token'], 'B')}/token ({changes['kv_bytes_per_token']})"
    return f"{sizes}, decoding {changes['decode_flops']}, KV cache {cache}"


def _predicted(law: dict[str, Any] | None) -> list[RenderableType]:
    """What the law says of the loss, and whether it may be believed."""
    if law is None:
        return []
    change, low, high = (percent(law[name]) for name in ("loss_difference", "low", "high"))
    text = f"fitted scaling law: loss {change} ({low} to {high}) on text after {law['steps']} steps"
    beyond = f"; an extrapolation: {'; '.join(law['outside'])}" if law["extrapolated"] else ""
    return [f"[dim]{text}{beyond}[/dim]"]


def _evidence(lines: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in ("says", "claim", "verdict"):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        told = line["claim"]
        if line["says"] != "open" and line["deciding"] is not None:
            one = line["comparisons"][line["deciding"]]
            told += f" [dim]({escape(one['subject'])}: {escape(comparison_line(one).sentence)})[/dim]"
        table.add_row(
            f"  {line['says']}", line["id"], line["verdict"], told, style="dim" if line["says"] == "open" else ""
        )
    return table
