"""Sharing: what do fewer key/value heads cost, and does look-up pay more than text?

Source: the note on what the rank paper means for nanochat, point 4.
Claims: N4.
Tasks: the next byte of text, and multi-query associative recall, both by a nanochat-style decoder.
Grid: key/value heads from all down to one; the MLP stays, so sharing saves parameters and cache. Each variant has its
own learning rate, chosen on validation with a seed that is not judged.
A cost is the error with one key/value head for all query heads over the error with one for each. Recall errors under
0.01 count as 0.01, so that a ratio of two nearly perfect models says nothing.
Power: on text as in head-size, a ratio of 1.03. In two pilots of recall the error was 0.003 and 0.004 without sharing,
and 0.27 with one head for all: so large an effect is seen with any seeds; one below a factor of 2 would not be.
Command: headwise study run sharing --preset laptop (about 8 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, against
from headwise.ledger.study import Study
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.statistics import keys_of, worse
from headwise.studies._recipes.text import LOOK_UP, LookUpPreset, recall_run, text_run


class SharingPreset(LookUpPreset):
    """Numbers of key/value heads."""

    shared: tuple[int, ...]


PRESETS = {
    "smoke": SharingPreset.like(LOOK_UP["smoke"], shared=(2, 1)),
    "laptop": SharingPreset.like(LOOK_UP["laptop"], shared=(4, 2, 1)),
    "paper": SharingPreset.like(LOOK_UP["paper"], shared=(14, 7, 2, 1)),
}


def cells(preset: SharingPreset) -> list[Cell]:
    cells = []
    for kv_heads in preset.shared:
        for seed in range(preset.seeds):
            on_text, on_recall = (
                ModelShape(width=size.width, heads=size.heads, kv_heads=kv_heads, depth=size.depth)
                for size in (preset, preset.recall)
            )
            for task, run in (
                ("text", text_run(preset, on_text, seed)),
                ("recall", recall_run(preset.recall, on_recall, seed)),
            ):
                cells.append(Cell({"task": task, "group": run.model_shape.layers[0].group}, run))
    return cells


def most_on_look_up(rows: list[Row]) -> list[Comparison]:
    """N4: one shared head costs recall something, and more than it costs text."""
    shared = max(row.cell["group"] for row in rows)
    one, all_ = {"group": 1}, {"group": shared}
    text, recall = (worse(rows, task, one, all_) for task in ("text", "recall"))
    seeds = sorted(text.keys() & recall.keys())
    variant, baseline = "one key/value head for all", "a key/value head per query head"
    lost, more = [recall[seed] for seed in seeds], [recall[seed] / text[seed] for seed in seeds]
    recalled = keys_of(cell(rows, task="recall"))
    return [
        against("recall error", variant, baseline, lost, at_least=1.0, keys=recalled),
        against("error factor of sharing", "recall", "text", more, at_least=1.0, keys=keys_of(rows)),
    ]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import curves, measured

    points = measured(rows, "group", "task", "task")
    note = f"nanochat-style decoders; {PRESETS[preset].tuning}"
    return curves(points, "What sharing keys and values costs", [note], "query heads per key/value head",
                  "error (text: bits per byte)")  # fmt: skip


CLAIMS = (
    Claim(
        "N4", "Sharing key/value heads costs most on retrieval-like tasks", "N, 4", "sharing", most_on_look_up,
        untestable="a ratio of errors near 0 is compared with one of bits that have a floor "
        "(shared-cache has one scale for both)",
    ),
)  # fmt: skip
STUDY = Study("sharing", __doc__, PRESETS, cells, chart, CLAIMS)
