"""Suggestions for a terminal of 80 columns: at most a screen, the recommended change first."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from headwise.comparison.evidence.weigh import LEAST_LABS
from headwise.comparison.suggest import SuggestionsOfEach
from headwise.report.ledger import FIXED, wrapped
from headwise.report.tables import _table, short

COUNT = ("", "k", "M", "B", "T")
_EXPECTED = {"better": "better", "tie": "even", "worse": "worse"}


def suggestion_lines(document: dict[str, Any]) -> list[RenderableType]:
    many = f"{document['context']:,} tokens × {document['batch']}, {document['dtype']}"
    about = f"{document['name']} ({_size(document['parameters'])}), {document['task']}, {many}: "
    token = "one decoded token" if document["batch"] == 1 else "one decoded token of each"
    cache = f"KV cache {_bytes(document['kv_bytes'])}, {token} reads {_bytes(document['decode_bytes'])}"
    lines: list[RenderableType] = [*_lines(about + cache, "dim"), *_lines(document["answer"], "bold")]
    for number, one in enumerate(document["suggestions"], 1):
        lines += ["", Text.assemble((f"{number}  {one['shape']}", "bold"), f"  {one['advice']}")]
        lines += _lines(one["change"], "", 3) if number > 1 else []
        lines += [*_lines(_costs(one), "dim", 3), *_quality(one)]
        lines += _behind(one) if number == 1 else _nearest(one) if one["expected"] is None else []
    lines += [""] if document["suggestions"] else []
    for one in document["found_worse"]:
        ids = ", ".join(claim["id"] for claim in one["claims"])
        lines += _lines(f"Not suggested: {one['move']}, which our own runs found worse ({ids}).", "")
    if document["test"]:
        lines += ["To test the first on your data, small, before you pay for it:"]
        lines.append(Text(f"  {document['test']}", no_wrap=True))
    return lines


def suggestions_table(several: SuggestionsOfEach) -> list[RenderableType]:
    """What is first for each model, a column each."""
    documents = [one.document for one in several.each]
    firsts = [next(iter(document["suggestions"]), None) for document in documents]
    table = _table("<", *(f"<{document['name']}" for document in documents))
    rows = {
        "first": lambda one: one["change"],
        "advice": lambda one: one["advice"],
        "KV cache": lambda one: f"{_bytes(one['kv_bytes'])} ({_percent(one, 'kv_bytes')})",
        "decode reads": lambda one: f"{_bytes(one['decode_bytes'])} ({_percent(one, 'decode_bytes')})",
        "parameters": lambda one: _percent(one, "parameters"),
        "FLOPs": lambda one: _percent(one, "train_flops_per_token"),
    }
    for name, show in rows.items():
        table.add_row(name, *(show(one) if one else "–" for one in firsts))
    for effect, word in _EXPECTED.items():
        table.add_row(word, *(_chance(one, effect) if one else "–" for one in firsts))
    settings = [f"{document['context']:,} × {document['batch']}" for document in documents]
    table.add_row("tokens × batch", *settings)
    return [f"For {documents[0]['goal']}, {documents[0]['dtype']}; one model alone is shown in full", table]


def _chance(one: dict[str, Any], effect: str) -> str:
    return f"{one['expected'][effect]:.0%}" if one["expected"] else "no forecast"


def forecast_text(one: dict[str, Any]) -> str:
    """Probabilities of the three directions; none without labs enough."""
    chances = [_chance(one, effect) for effect in _EXPECTED]
    return " / ".join(chances) if one["expected"] else chances[0]


def _quality(one: dict[str, Any]) -> list[RenderableType]:
    """Probabilities and the loss; of too few labs, what they found instead."""
    if one["expected"] is None:
        found = ", ".join(f"{word} in {one['found'][effect]:.1f}" for effect, word in _EXPECTED.items())
        return _lines(f"quality: no forecast from {one['labs']} labs; {found}", "", 3)
    chances = ", ".join(f"{word} {one['expected'][effect]:.0%}" for effect, word in _EXPECTED.items())
    return _lines(f"quality: {chances} (forecast, {one['labs']} labs); {_loss(one)}", "", 3)


def _behind(one: dict[str, Any]) -> list[RenderableType]:
    """The rows nearest in scale, who contradicts whom, and our own claims."""
    lines = _nearest(one)
    cells = [cell for name in ("cell", "other") if (cell := one["evidence"][name])["conflict"]]
    if cells:
        better, worse = (", ".join(_on_side(cell, side) for cell in cells) for side in ("better", "worse"))
        lines += _lines(f"conflict: better in {better}; worse in {worse}", "", 3)
    return [*lines, *(line for claim in one["claims"] for line in _lines(f"ours: {_claim(claim)}", "", 3))]


def _nearest(one: dict[str, Any]) -> list[RenderableType]:
    knob = one["evidence"]["cell"]["knob"]
    return _lines("nearest: " + "; ".join(_row(row, row["knob"] == knob) for row in one["nearest"]), "", 3)


def _on_side(cell: dict[str, Any], side: str) -> str:
    noise = cell["within_noise"][side]
    return ", ".join(f"{lab} (within noise)" if lab in noise else lab for lab in cell["conflict"][side])


def _loss(one: dict[str, Any]) -> str:
    """A change of the loss where five labs measured it for such a change; else how many did."""
    cell, other = one["evidence"]["cell"], one["evidence"]["other"]
    spent = {True: "saving spent", False: "saving kept"}
    if change := cell["loss_change"]:
        return f"loss {_interval(change)} ({cell['loss_labs']} labs, {spent[one['refilled']]})"
    if change := other["loss_change"]:
        return f"loss {_interval(change)} ({other['loss_labs']} labs, {spent[not one['refilled']]})"
    return f"loss: too few labs ({cell['loss_labs']} of {LEAST_LABS})"


def _interval(change: dict[str, float]) -> str:
    return f"{change['value']:+.1%} [{change['low']:+.1%}, {change['high']:+.1%}]"


def _row(row: dict[str, Any], same: bool) -> str:
    """What one lab found of such a change, or of its opposite."""
    size = short(row["scale"], prefixes=COUNT).replace(" ", "") if row["scale"] else "size not said"
    turned = "" if same else " (the other way)"
    if row["relative"] is None:
        effect = {"better": "better", "tie": "even", "worse": "worse"}.get(row["effect"], "–")
    elif row["unit"] in ("points", "fraction"):
        effect = f"{row['relative']:+.1f} points"
    else:
        effect = f"loss {-row['relative']:+.1%}"
    return f"{row['lab']} {size}{turned}: {effect} [{row['id']}]".replace(" ", FIXED)


def _claim(claim: dict[str, Any]) -> str:
    tasks = " and ".join(claim["tasks"])
    return f"{claim['id']} {claim['verdict']} ({tasks}, {_size(claim['parameters'])}): {claim['claim']}"


def _costs(one: dict[str, Any]) -> str:
    parts = [f"KV cache {_bytes(one['kv_bytes'])} ({_percent(one, 'kv_bytes')})"]
    parts += [f"decode reads {_bytes(one['decode_bytes'])} ({_percent(one, 'decode_bytes')})"]
    parts += [f"parameters {_percent(one, 'parameters')}", f"FLOPs {_percent(one, 'train_flops_per_token')}"]
    return ", ".join(part.replace(" ", FIXED) for part in parts)


def _percent(one: dict[str, Any], name: str) -> str:
    part = one.get(f"{name}_difference", 0.0)
    return f"{part:+.0%}" if abs(part) >= 0.005 else "0%"


def _bytes(count: float) -> str:
    return short(count, "B").replace(" ", FIXED)


def _size(count: int) -> str:
    return f"{short(count, prefixes=COUNT)} parameters".replace(" ", FIXED)


def _lines(text: str, style: str, indent: int = 0) -> list[RenderableType]:
    return [Text(line, style=style) for line in wrapped(text, indent=indent)]
