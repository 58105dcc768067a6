"""Head size: at equal parameters, are fewer and larger heads as good for a language model?

Source: the note on what the rank paper means for nanochat, points 2 and 5.
Claims: N1, N5.
Task: the next byte of text, by a nanochat-style decoder (rotary positions, normalised queries and keys, squared ReLU).
Grid: heads × rank = width, every number of heads. Parameters, FLOPs and KV cache bytes are then equal, so that only
loss and time differ. Each variant has its own learning rate, chosen on validation with a seed that is not judged.
"Keeps" is tested as equivalence: at most 1 % more bits per byte than with heads of half the size.
Power: in pilots (4 and 8 heads, seeds 100 to 102) the ratio of two variants differed between seeds by 1.2 %, so that
three seeds see a ratio of 1.03; the pilots' own was 1.075.
Command: headwise study run head-size --preset laptop (about 8 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import BITS, CACHE, FLOPS, SECONDS, Claim, Comparison, Variant, paired
from headwise.ledger.study import Study
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.text import TEXT_SIZES, TextPreset, text_run

AS_GOOD = 0.99


class HeadSizePreset(TextPreset):
    """Every number of heads that is tried."""

    heads: tuple[int, ...]


PRESETS = {
    "smoke": HeadSizePreset.like(TEXT_SIZES["smoke"], heads=(1, 2, 4)),
    "laptop": HeadSizePreset.like(TEXT_SIZES["laptop"], heads=(1, 2, 4, 8, 16)),
    "paper": HeadSizePreset.like(TEXT_SIZES["paper"], heads=(1, 2, 7, 14, 28)),
}


def cells(preset: HeadSizePreset) -> list[Cell]:
    shapes = [ModelShape(width=preset.width, heads=heads, depth=preset.depth) for heads in preset.heads]
    return [
        Cell({"heads": shape.layers[0].heads, "rank": shape.layers[0].qk_rank}, text_run(preset, shape, seed))
        for shape in shapes
        for seed in range(preset.seeds)
    ]


def _usual(rows: list[Row]) -> tuple[Variant, Variant]:
    """The rows of the head size nearest to a fourteenth of the width, as nanochat has it, and of twice that."""
    ranks = sorted({row.cell["rank"] for row in rows})
    width = max(row.cell["rank"] * row.cell["heads"] for row in rows)
    small = min(ranks[:-1], key=lambda rank: abs(rank * 14 / width - 1), default=ranks[0])
    larger = min((rank for rank in ranks if rank > small), default=small)
    return Variant(f"head dim {small}", cell(rows, rank=small)), Variant(f"head dim {larger}", cell(rows, rank=larger))


def larger_heads(rows: list[Row]) -> list[Comparison]:
    """N1: bits per byte with heads twice as large, against the usual head size."""
    small, large = _usual(rows)
    if not small.rows or not large.rows:
        return []
    return [paired(large, small, metric=BITS, at_most=1 / AS_GOOD)]


def other_costs(rows: list[Row]) -> list[Comparison]:
    """N5: the same at equal FLOPs and equal KV cache (both are equal here), and no more seconds."""
    small, large = _usual(rows)
    if not small.rows or not large.rows:
        return []
    return [
        *larger_heads(rows),
        paired(large, small, metric=FLOPS, field="flops", at_most=1 / AS_GOOD),
        paired(large, small, metric=CACHE, field="kv_bytes_per_token", at_most=1 / AS_GOOD),
        paired(large, small, metric=SECONDS, field="seconds", at_most=1 / 0.95),
    ]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import frontier

    used = PRESETS[preset]
    note = f"decoder of width {used.width} and {used.depth} layers on text, {used.steps:,} steps of "
    note += f"{used.batch} × {used.context} bytes; {used.tuning}"
    return frontier(rows, "heads", "Head size at equal parameters", [note], "bits per byte")


CLAIMS = (
    Claim(
        "N1", "Heads twice as large keep or improve a nanochat-style model at equal parameters", "N, 5", "head-size",
        larger_heads,
        untestable="rank also moves rotary frequencies and the logits' temperature here, either of which may be why; "
        "and one step, head dim 4 to 8, says nothing of larger heads",
    ),
    Claim(
        "N5", "It holds per FLOP, per second and per cache byte, not only per parameter", "reviewers of Q and L",
        "head-size", other_costs,
    ),
)  # fmt: skip
STUDY = Study("head-size", __doc__, PRESETS, cells, chart, CLAIMS)
