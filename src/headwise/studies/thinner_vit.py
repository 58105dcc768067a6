"""Thinner ViT: do more heads make up for fewer layers on images, and how few layers may there be?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802).
Claims: L5, L10.
Task: classes of images by a vision transformer, 16 patches per image; the laptop preset is for CIFAR-10.
Grid: the paper's pair scaled down (a third of the layers goes, heads double in the same width); as its control the
same layers without the new heads, since only a difference from it would be due to heads; and, the MLP as it was, heads
of the base's size added until a model of fewer layers, down to one, has the base's parameters again (within 1 %). Each
variant has its own learning rate, chosen on validation with a seed that is not judged.
Margins: "keeps" is tested as equivalence, at most 3 % more errors than the base, with at least 25 % of its parameters
saved. Whether the control keeps them as well is shown, not judged: the claim is about the thin model. Accuracy breaks
where one layer leaves 10 % more errors than the deeper variant, at equal parameters, that validation prefers.
Optimiser: Muon on the laptop, where it left fewer errors after 600 steps than AdamW after 1,000; the paper's is AdamW.
Power: in pilots (base and thin, seeds 101 to 103, one learning rate) the ratio of their errors differed between seeds
by 1.5 %, so that five seeds see one of 1.024 at the level of two comparisons. One pilot each: a layer less without new
heads left 4 % more errors, and one layer of equal parameters 3 % fewer: training as short as this favours shallow
models.
Command: headwise study run thinner-vit --preset laptop --data images=PLACE (about 5 minutes on two cores)
"""

from statistics import mean
from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, paired, parameters_saved
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.images import IMAGE_SIZES, ImagePreset, vit_options, vit_run
from headwise.studies._recipes.thinner import ThinnerPreset, variant_label, variants

MARGIN, SAVED, BREAKS = 0.03, 0.25, 1.1


class ThinnerImagePreset(ThinnerPreset, ImagePreset):
    """Depth for heads in a vision transformer."""


PRESETS = {
    "smoke": ThinnerImagePreset.like(IMAGE_SIZES["smoke"], base=(2, 2), thin=((1, 4),), equal=(1,)),
    "laptop": ThinnerImagePreset.like(IMAGE_SIZES["laptop"], base=(3, 4), thin=((2, 8),), equal=(2, 1)),
    "paper": ThinnerImagePreset.like(IMAGE_SIZES["paper"], base=(12, 12), thin=((8, 16), (7, 24)), equal=(8, 4, 2, 1)),
}


def cells(preset: ThinnerImagePreset) -> list[Cell]:
    cells = []
    for kind, shape in variants(preset, vit_options(preset)):
        place = {"arm": variant_label(kind, shape), "kind": kind, "depth": shape.depth, "heads": shape.layers[0].heads}
        cells += [Cell(place, vit_run(preset, shape, seed)) for seed in range(preset.seeds)]
    return cells


def keeps_accuracy(rows: list[Row]) -> list[Comparison]:
    """L5: each thin variant has at most 3 % more errors than the base, and at most three quarters of its parameters."""
    base = cell(rows, kind="base")
    comparisons = []
    for name in dict.fromkeys(row.cell["arm"] for row in cell(rows, kind="thin") if base):
        variant, baseline = Variant(name, cell(rows, arm=name)), Variant(base[0].cell["arm"], base)
        comparisons += [paired(variant, baseline, at_most=1 + MARGIN), parameters_saved(variant, baseline, SAVED)]
    return comparisons


def least_depth(rows: list[Row]) -> list[Comparison]:
    """L10: at equal parameters, errors of one layer against those of the deeper variant that validation prefers."""
    one = cell(rows, kind="equal parameters", depth=1)
    deeper: dict[str, list[Row]] = {}
    for row in (*cell(rows, kind="base"), *cell(rows, kind="equal parameters")):
        if row.cell["depth"] > 1:
            deeper.setdefault(row.cell["arm"], []).append(row)
    if not one or not deeper:
        return []
    best = min(deeper, key=lambda name: mean(row.metrics["validation_error"] for row in deeper[name]))
    return [paired(Variant(one[0].cell["arm"], one), Variant(best, deeper[best]), at_least=BREAKS)]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import frontier
    from headwise.ledger.published import published_rows

    used = PRESETS[preset]
    notes = [
        f"ViT of width {used.width}, {used.setting}",
        "control: the thin variant's layers without its heads; equal parameters: heads of the base's size, its MLP",
    ]
    if preset == "paper":
        pattern = "{model} {parameters}→{thin_parameters} M, {accuracy}→{thin_accuracy} %"
        foreign = [pattern.format(**pair) for pair in published_rows("leaner") if pair["known_as"] != "crammed-bert"]
        notes.append(f"published, of other vision transformers: {'; '.join(foreign)}")
    return frontier(rows, "arm", "More heads, fewer layers, on images", notes, "share of images missed")


CONTROL = "the thin model without the extra heads keeps accuracy as well, so nothing could have failed"
SHORT = "in training as short as this depth is not needed, so accuracy could not break"
CLAIMS = (
    Claim("L5", "ViT: fewer layers with more heads keep accuracy with ≥ 25 % fewer parameters", "L, table on ViT",
          "thinner-vit", keeps_accuracy, untestable=CONTROL),
    Claim("L10", "There is a minimum depth: below it accuracy breaks", "L", "thinner-vit", least_depth,
          untestable=SHORT),
)  # fmt: skip
STUDY = Study("thinner-vit", __doc__, PRESETS, cells, chart, CLAIMS)
