"""Sharing: what do fewer key/value heads cost, and does look-up pay more than text?

Source: the note on what the rank paper means for nanochat, point 4.
Claims: N4.
Tasks: the next byte of text, and multi-query associative recall, both by a nanochat-style decoder.
Grid: key/value heads from all down to one; the MLP stays, so sharing saves parameters and cache. Each arm has its own
learning rate, chosen on validation with a seed that is not judged.
A cost is the error shared by all heads over the error with none shared. Recall errors under 0.01 count as 0.01, so that
a ratio of two nearly perfect models says nothing.
Power: on text as in head-size, a ratio of 1.03. In two pilots of recall no sharing gave 0.003 and 0.004, and one head
for all 0.27: so large an effect is seen with any seeds; one below a factor of 2 would not be.
Command: headwise study run sharing --preset laptop (about 8 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, against
from headwise.ledger.study import Study
from headwise.options import preset as options_preset
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies.head_size import PRESETS as HEAD_SIZES
from headwise.studies.head_size import text_run
from headwise.training.run import Recipe, Run

SEEN = 0.01  # recall errors below this are alike
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": HEAD_SIZES["smoke"] | {
        "heads": 2, "shared": (2, 1),
        "recall": {
            "width": 16, "heads": 2, "depth": 1, "vocab": 128, "pairs": 4, "length": 32, "batch": 256, "steps": 5,
        },
    },
    "laptop": HEAD_SIZES["laptop"] | {
        "heads": 4, "shared": (4, 2, 1),
        "recall": {
            "width": 32, "heads": 4, "depth": 2, "vocab": 32, "pairs": 12, "length": 64, "batch": 32, "steps": 800,
        },
    },
    "paper": HEAD_SIZES["paper"] | {
        "heads": 14, "shared": (14, 7, 2, 1),
        "recall": {
            "width": 112, "heads": 14, "depth": 2, "vocab": 8192, "pairs": 64, "length": 512, "batch": 256,
            "steps": 100_000,
        },
    },
}  # fmt: skip


def recall_run(preset: dict[str, Any], shape: ModelShape, seed: int, **options: Any) -> Run:
    """A small decoder on associative recall, with Muon: AdamW does not reliably find the look-up in so few steps."""
    used = preset["recall"]
    return Run(
        task={"name": "recall", **{name: used[name] for name in ("vocab", "pairs", "length")}},
        shape=str(shape),
        options=options_preset("nanochat", vocab=used["vocab"], context=used["length"], **options),
        recipe=Recipe(optimizer="muon", warm_up=0.1, batch=used["batch"]),
        steps=used["steps"],
        seed=seed,
        evaluations=2,
    )


def cells(preset: dict[str, Any]) -> list[Cell]:
    found = []
    for task, run_of, size in (("text", text_run, preset), ("recall", recall_run, preset["recall"])):
        for parts in preset["shared"]:
            shape = ModelShape(width=size["width"], heads=size["heads"], kv_heads=parts, depth=size["depth"])
            place = {"task": task, "heads a key": shape.layers[0].group}
            found += [Cell(place, run_of(preset, shape, seed)) for seed in range(preset["seeds"])]
    return found


def worse(rows: list[Row], task: str, base: dict[str, Any], changed: dict[str, Any]) -> dict[int, float]:
    """By seed: the error of one place over that of another."""
    before = {row.seed: row for row in cell(rows, task=task, **base)}
    after = {row.seed: row for row in cell(rows, task=task, **changed)}
    least = SEEN if task == "recall" else 0.0
    both = before.keys() & after.keys()
    seen = {seed: [max(row[seed].metrics["error"], least) for row in (after, before)] for seed in both}
    return {seed: worse / better for seed, (worse, better) in seen.items()}


def keys_of(rows: list[Row]) -> tuple[str, ...]:
    return tuple(row.key for row in rows)


def most_on_look_up(rows: list[Row]) -> list[Comparison]:
    """N4: one shared head costs recall something, and more than it costs text."""
    shared = max(row.cell["heads a key"] for row in rows)
    one, all_ = {"heads a key": 1}, {"heads a key": shared}
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

    points = measured(rows, "heads a key", "task", "task")
    told = "nanochat-style decoders; learning rate of each arm chosen on validation"
    return curves(points, "What sharing keys and values costs", [told], "query heads a key/value head",
                  "error (text: bits a byte)")  # fmt: skip


CLAIMS = (
    Claim("N4", "Sharing key/value heads costs most on retrieval-like tasks", "N, 4", "sharing", most_on_look_up),
)
STUDY = Study("sharing", __doc__, PRESETS, cells, chart, CLAIMS)
