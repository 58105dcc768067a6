"""Thinner GPT: do more heads make up for fewer layers in a decoder on text?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), GPT on stories.
Claims: L6.
Task: the next byte of text, by a nanochat-style decoder.
Grid: as in thinner-vit: the paper's pair scaled down (a third of the layers goes, heads double in the same width); as
its control the same layers without the new heads, since only a difference from it would be due to heads; and, the MLP
as it was, heads of the base's size added until a model of fewer layers, down to one, has the base's parameters again.
Each variant has its own learning rate, chosen on validation with a seed that is not judged.
Margin: "keeps" is tested as equivalence, at most 1 % more bits per byte than the base, with at least 25 % of its
parameters saved. Whether the control keeps them as well is shown, not judged: the claim is about the thin model.
Power: in pilots (base and thin, seeds 100 to 102, one learning rate) their ratio differed between seeds by 0.4 %, so
that five seeds see 0.7 %; the pilots' own was 0.957, and that of the control to the thin variant 0.980 (two seeds).
Command: headwise study run thinner-gpt --preset laptop (about 5 minutes on two cores; --data text=PLACE for stories)
"""

from typing import Any

from headwise.ledger.claims import BITS, Claim, Comparison, Variant, paired, parameters_saved
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.text import THINNER, ThinnerTextPreset, text_options, text_run
from headwise.studies._recipes.thinner import MARGIN, variant_label, variants

SAVED = 0.25
PRESETS = THINNER


def cells(preset: ThinnerTextPreset) -> list[Cell]:
    return [
        Cell({"arm": variant_label(kind, shape), "kind": kind}, text_run(preset, shape, seed))
        for kind, shape in variants(preset, text_options())
        for seed in range(preset.seeds)
    ]


def keeps_its_loss(rows: list[Row]) -> list[Comparison]:
    """L6: thin has at most 1 % more bits per byte than the base, and at most three quarters of its parameters."""
    base, thin = cell(rows, kind="base"), cell(rows, kind="thin")
    if not base or not thin:
        return []
    variant, baseline = (Variant(some[0].cell["arm"], some) for some in (thin, base))
    return [paired(variant, baseline, metric=BITS, at_most=1 + MARGIN), parameters_saved(variant, baseline, SAVED)]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import frontier

    used = PRESETS[preset]
    note = f"decoder of width {used.width} on text, {used.steps:,} steps of {used.batch} × {used.context} "
    note += f"bytes; {used.tuning}"
    return frontier(rows, "arm", "Fewer layers, more heads", [note], "bits per byte")


CLAIMS = (
    Claim(
        "L6", "A GPT with two thirds of the layers and twice the heads keeps its loss on text", "L, stories",
        "thinner-gpt", keeps_its_loss,
        untestable="rank also moves rotary frequencies and the logits' temperature here, either of which may be why "
        "(thin-stories moves them apart)",
    ),
)  # fmt: skip
STUDY = Study("thinner-gpt", __doc__, PRESETS, cells, chart, CLAIMS)
