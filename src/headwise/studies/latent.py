"""Latent: what does a smaller key/value latent cost, and does the cost grow faster than the saving?

Source: the note on what the rank paper means for nanochat, point 3.
Claims: N3.
Tasks: the next byte of text, and multi-query associative recall, both by a nanochat-style decoder with MLA.
Grid: the latent's width as a part of the model's, 1/1.5 to 1/16; a rotated part of each head stays outside of it, as in
DeepSeek's layer, so that position is never compressed. Each variant has its own learning rate, chosen on validation
with a seed that is not judged. Recall errors under 0.01 count as 0.01.
"Disproportionately": halving the latent multiplies the error by more at the small end of the grid than at the large.
Power: on text as in head-size, a ratio of 1.03 between two variants, so of 1.02 per halving; recall was not piloted
with a latent.
Command: headwise study run latent --preset laptop (about 9 minutes on two cores)
"""

import math
from typing import Any

from headwise.ledger.claims import Claim, Comparison, against
from headwise.ledger.study import Study
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.statistics import keys_of, worse
from headwise.studies._recipes.text import LOOK_UP, LookUpPreset, RecallTraining, recall_run, text_run


class LatentPreset(LookUpPreset):
    """Compression: the model's width over the latent's."""

    parts: tuple[float, ...]


PRESETS = {
    "smoke": LatentPreset.like(LOOK_UP["smoke"], parts=(2, 4, 8)),
    "laptop": LatentPreset.like(LOOK_UP["laptop"], parts=(1.5, 4, 16)),
    "paper": LatentPreset.like(LOOK_UP["paper"], parts=(1.5, 2, 4, 8, 16)),
}


def compressed(size: LookUpPreset | RecallTraining, part: float) -> ModelShape:
    """A shape whose latent is the width divided by `part`; half of each head is rotated, outside the latent."""
    usual = ModelShape(width=size.width, heads=size.heads, depth=size.depth).layers[0]
    return ModelShape(
        width=size.width,
        heads=size.heads,
        qk_rank=2 * usual.qk_rank,
        v_rank=usual.v_rank,
        rope_rank=usual.qk_rank,
        kv_latent=round(size.width / part),
        depth=size.depth,
    )


def cells(preset: LatentPreset) -> list[Cell]:
    cells = []
    for part in preset.parts:
        for seed in range(preset.seeds):
            # DeepSeek's layer: latents pass a norm, queries and keys pass no other
            text = text_run(preset, compressed(preset, part), seed, qk_norm="none")
            recall = recall_run(preset.recall, compressed(preset.recall, part), seed, qk_norm="none")
            cells += [Cell({"task": "text", "compression": part}, text)]
            cells += [Cell({"task": "recall", "compression": part}, recall)]
    return cells


def disproportionate(rows: list[Row]) -> list[Comparison]:
    """N3: a halving costs more between the two smallest latents than between the two largest, on each task."""
    parts = sorted({row.cell["compression"] for row in rows})
    if len(parts) < 3:
        return []
    comparisons = []
    for task in ("text", "recall"):
        first, last = (_a_halving(rows, task, low, high) for low, high in (parts[:2], parts[-2:]))
        ratios = [last[seed] / first[seed] for seed in sorted(first.keys() & last.keys())]
        comparisons.append(
            against(
                "error factor per halving of the latent",
                f"1/{parts[-2]:g} to 1/{parts[-1]:g} of the width",
                f"1/{parts[0]:g} to 1/{parts[1]:g}",
                ratios,
                at_least=1.0,
                where=task,
                keys=keys_of(cell(rows, task=task)),
            )
        )
    return comparisons


def _a_halving(rows: list[Row], task: str, low: float, high: float) -> dict[int, float]:
    """By seed: the factor on the error that each halving of the latent between two sizes has, on average."""
    factors = worse(rows, task, {"compression": low}, {"compression": high})
    return {seed: ratio ** (1 / math.log2(high / low)) for seed, ratio in factors.items()}


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import curves, measured

    points = measured(rows, "compression", "task", "task")
    note = f"nanochat-style decoders with a key/value latent; {PRESETS[preset].tuning}"
    return curves(points, "What a smaller latent costs", [note], "width over latent", "error (text: bits per byte)")


CLAIMS = (
    Claim("N3", "Stronger compression of keys and values costs disproportionately", "N, 3", "latent", disproportionate),
)
STUDY = Study("latent", __doc__, PRESETS, cells, chart, CLAIMS)
