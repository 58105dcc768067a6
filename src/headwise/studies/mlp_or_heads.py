"""MLP or heads: of parameters added to every layer, are those in heads worth more than those in the MLP?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), Section 3.3.
Claims: L9.
Task: classes of images by a vision transformer, as in thinner-vit.
Grid: a small base with an MLP of twice the width; the same with the MLP quadrupled (eight times the width) and, for as
many parameters, with the heads quadrupled at their size (heads × size > width); and between these two the MLPs of four
and six times the width, with the heads that are left, all of equal parameters and depth. It is the heads' total size
that pays for the MLP, since another depth would bring in a third effect. One variant doubles the heads within the
width, as the paper does, which costs nothing. Each variant has its own learning rate, chosen on validation with a seed
that is not judged.
The claim holds if heads doubled in the width leave fewer errors than the base, and fewer than the quadrupled MLP.
Power: as in thinner-vit, whose models are of this size: five seeds see a ratio of errors of 1.024.
Command: headwise study run mlp-or-heads --preset laptop --data images=PLACE (about 5 minutes on two cores)
"""

from collections.abc import Iterator
from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, paired
from headwise.ledger.study import Study
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.images import IMAGE_SIZES, ImagePreset, vit_run

BASE, RATIOS = 2, (2, 4, 6, 8)  # MLP widths as multiples of the model's


class MlpPreset(ImagePreset):
    """Depth and heads of the base; the other variants follow from it."""

    depth: int
    heads: int


PRESETS = {
    "smoke": MlpPreset.like(IMAGE_SIZES["smoke"], depth=1, heads=2),
    "laptop": MlpPreset.like(IMAGE_SIZES["laptop"], depth=2, heads=4),
    "paper": MlpPreset.like(IMAGE_SIZES["paper"], depth=8, heads=12),
}


def mlp_variants(preset: MlpPreset) -> Iterator[tuple[str, int, ModelShape]]:
    """Kind, MLP ratio and shape: the base, more heads in its width, and the shapes that share the largest's size."""
    width, heads, depth = preset.width, preset.heads, preset.depth
    base = ModelShape(width=width, heads=heads, depth=depth, mlp=BASE * width)
    yield "base", BASE, base
    yield "heads doubled in the width", BASE, ModelShape(width=width, heads=2 * heads, depth=depth, mlp=BASE * width)
    for ratio in RATIOS:
        more = heads + heads * (max(RATIOS) - ratio) // 2  # attention as wide as the model costs two MLP ratios
        size = base.layers[0].qk_rank
        shape = ModelShape(width=width, heads=more, qk_rank=size, depth=depth, mlp=ratio * width)
        yield "equal parameters", ratio, shape


def cells(preset: MlpPreset) -> list[Cell]:
    cells = []
    for kind, ratio, shape in mlp_variants(preset):
        layer = shape.layers[0]
        name = f"{kind} (MLP {ratio} × width, {layer.heads} heads, head dim {layer.qk_rank})"
        place = {"arm": name, "kind": kind, "ratio": ratio}
        cells += [Cell(place, vit_run(preset, shape, seed)) for seed in range(preset.seeds)]
    return cells


def worth_more(rows: list[Row]) -> list[Comparison]:
    """L9: heads doubled in the width leave fewer errors than the base, and than the quadrupled MLP."""
    base, heads = cell(rows, kind="base"), cell(rows, kind="heads doubled in the width")
    mlp = cell(rows, kind="equal parameters", ratio=max(RATIOS))
    if not base or not heads or not mlp:
        return []
    variant, *others = (Variant(rows[0].cell["arm"], rows) for rows in (heads, base, mlp))
    return [paired(variant, other, at_most=1.0) for other in others]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import frontier

    used = PRESETS[preset]
    note = f"ViT of width {used.width} and {used.depth} layers, {used.setting}"
    return frontier(rows, "arm", "Parameters for the MLP, or for heads", [note], "share of images missed")


CLAIMS = (Claim("L9", "MLP width matters less than heads", "L, Sec. 3.3", "mlp-or-heads", worth_more,
          restated="as the paper's own doubling of heads in the same width, not of heads added to it"),)  # fmt: skip
STUDY = Study("mlp-or-heads", __doc__, PRESETS, cells, chart, CLAIMS)
