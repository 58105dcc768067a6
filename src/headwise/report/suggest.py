"""Suggestions for a terminal of 80 columns: the answer, then each shape with its exact costs and its evidence."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from headwise.report.ledger import FIXED, hanging, wrapped
from headwise.report.ledger import line as comparison_line
from headwise.report.tables import percent, short

_STYLE = {"supported": "bold green", "disputed": "bold yellow", "untested": "bold", "contradicted": "bold red"}


def suggestion_lines(document: dict[str, Any]) -> list[RenderableType]:
    lines: list[RenderableType] = _lines(document["answer"], "bold")
    for one in document["suggestions"]:
        lines += ["", f"[bold]{one['shape']}[/bold]  [{_STYLE[one['standing']]}]{one['standing']}[/]", one["move"]]
        lines += [*_lines(_costs(one), "dim"), *_predicted(one["law"])]
        lines += [text for line in one["evidence"] for text in _evidence(line)]
    return lines


def _lines(text: str, style: str, indent: int = 0) -> list[RenderableType]:
    return [Text(line, style=style) for line in wrapped(text, indent=indent)]


def _costs(one: dict[str, Any]) -> str:
    changes = {name: percent(one.get(f"{name}_difference", 0.0)) for name in one}
    body = f" (body {changes['parameters_body']})" if one["parameters"] != one["parameters_body"] else ""
    sizes = f"parameters {changes['parameters']}{body}, training FLOPs {changes['train_flops_per_token']}"
    cache = f"{short(one['kv_bytes_per_token'], 'B').replace(' ', FIXED)}/token ({changes['kv_bytes_per_token']})"
    return f"{sizes}, decoding {changes['decode_flops']}, KV cache {cache}"


def _predicted(law: dict[str, Any] | None) -> list[RenderableType]:
    """What the law says of the loss, and whether it may be believed."""
    if law is None:
        return []
    change, low, high = (percent(law[name]) for name in ("loss_difference", "low", "high"))
    text = f"fitted scaling law: loss {change} ({low} to {high}) on text after {law['steps']} steps"
    beyond = f"; an extrapolation: {'; '.join(law['outside'])}" if law["extrapolated"] else ""
    return _lines(text + beyond, "dim")


def _evidence(line: dict[str, Any]) -> list[RenderableType]:
    """A claim of the ledger, with the comparison that decided it."""
    label = f"  {line['says']:<7}  {line['id']:<3}  {line['verdict']:<5}  "
    shown = hanging(label, line["claim"])
    if line["says"] == "open" or line["deciding"] is None:
        return [Text(text, style="dim") for text in shown]
    one = line["comparisons"][line["deciding"]]
    return [*map(Text, shown), *_lines(f"{one['subject']}: {comparison_line(one).sentence}", "dim", len(label))]
