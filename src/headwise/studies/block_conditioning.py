"""Block conditioning: do real attention blocks at initialisation follow the theorem on Gaussian heads?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), Section 3.
Claims: L2, L4.
Runs: nothing is trained. One attention layer after a norm, at initialisation, on points of the sphere: κ of its heads'
outputs side by side, with the mean over tokens removed, of the block with its residual, and of the Jacobian; heads at a
fixed head size, at a fixed width (heads × size = width), and heads against size at equal parameters.
Command: headwise study run block-conditioning --preset laptop (about 2 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import KAPPA as CONDITION
from headwise.ledger.claims import Claim, Comparison, Variant, paired, per_seed
from headwise.ledger.study import Preset, Study
from headwise.options import ModelOptions
from headwise.shape import AttentionShape, ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.training.run import ProbeName, Recipe, Run

KAPPA = "heads-condition.layer0"
BLOCK_PROBES: tuple[ProbeName, ...] = ("heads-condition", "centred-heads-condition", "residual-block-condition")


class BlockPreset(Preset):
    """One attention layer: its width, tokens, head size and numbers of heads."""

    dim: int
    points: int
    head_size: int
    heads: tuple[int, ...]


PRESETS = {
    "smoke": BlockPreset(dim=16, points=8, head_size=4, heads=(1, 2, 4, 8)),
    "laptop": BlockPreset(dim=64, points=32, head_size=8, heads=(1, 2, 4, 8, 16, 32, 64), seeds=5),
}


def cells(preset: BlockPreset) -> list[Cell]:
    dim, size = preset.dim, preset.head_size
    shapes = [("fixed head size", heads, size) for heads in preset.heads]
    shapes += [("fixed width", heads, AttentionShape(width=dim, heads=heads).qk_rank) for heads in preset.heads]
    shapes += [("larger heads", 4, size * heads // 4) for heads in preset.heads if heads >= 4]
    return [
        Cell({"axis": axis, "heads": heads, "size": rank, "tokens": preset.points}, _run(preset, heads, rank, seed))
        for axis, heads, rank in shapes
        for seed in range(preset.seeds)
    ]


def _run(preset: BlockPreset, heads: int, size: int, seed: int) -> Run:
    shape = ModelShape(width=preset.dim, heads=heads, qk_rank=size, mlp=0)
    return Run(
        task={"name": "nearest-neighbor", "dim": preset.dim, "points": preset.points},
        shape=str(shape),
        options=ModelOptions(norm="rms-plain", norm_place="pre"),
        recipe=Recipe(batch=64),
        steps=0,
        seed=seed,
        probes=BLOCK_PROBES,
    )


def more_heads(rows: list[Row]) -> list[Comparison]:
    """L2: κ falls with heads, and ends within a factor of two of the theorem's.

    At a fixed head size, where the heads have more columns than there are tokens, as the theorem asks: at a fixed width
    it says nothing of heads.
    """
    from headwise.theory.gaussian import marchenko_pastur

    wide = cell(rows, axis="fixed head size")
    last = max((row.cell["heads"] for row in wide), default=1)
    enough = min(r.cell["heads"] for r in wide if r.cell["heads"] * r.cell["size"] > r.cell["tokens"])
    fewer, more = (Variant(_heads(heads), cell(wide, heads=heads)) for heads in (enough, last))
    falls = paired(more, fewer, metric=CONDITION, field=KAPPA, where="fixed head size", at_most=1 / 1.1)
    many = Variant(f"{last} real heads", more.rows)
    tokens, size = (many.rows[0].cell[name] for name in ("tokens", "size"))
    predicted = marchenko_pastur(tokens, last * size)
    limit = per_seed(
        many,
        "the theorem",
        lambda row: row.metrics[KAPPA] / predicted,
        metric=CONDITION,
        where="fixed head size",
        at_most=2.0,
    )
    return [falls, limit]


def _heads(count: int) -> str:
    return f"{count} head{'s' if count > 1 else ''}"


def heads_or_size(rows: list[Row]) -> list[Comparison]:
    """L4: at equal parameters, more heads have a lower κ than larger heads."""
    comparisons = []
    for size in sorted({row.cell["size"] for row in cell(rows, axis="larger heads")}):
        base = min(row.cell["size"] for row in cell(rows, axis="fixed head size"))
        heads = 4 * size // base
        if size > base and (more := cell(rows, axis="fixed head size", heads=heads)):
            larger = Variant(f"4 heads of dim {size}", cell(rows, axis="larger heads", size=size))
            variant = Variant(f"{heads} heads of dim {base}", more)
            comparisons.append(paired(variant, larger, metric=CONDITION, field=KAPPA, at_most=1.0))
    return comparisons


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured
    from headwise.theory.gaussian import marchenko_pastur

    points: list[Mark] = []
    names = {"heads": "κ of the heads' outputs", "centred-heads": "without the mean over tokens"}
    names |= {"residual-block": "of the block with its residual"}
    kept = [row for row in rows if row.cell["axis"] != "larger heads"]
    for probe, name in names.items():
        points += measured(kept, "heads", "", "axis", f"{probe}-condition.layer0", name)
    for axis, heads, columns in sorted(
        {(r.cell["axis"], r.cell["heads"], r.cell["heads"] * r.cell["size"]) for r in kept}
    ):
        if columns != kept[0].cell["tokens"]:
            kappa = marchenko_pastur(kept[0].cell["tokens"], columns)
            said: Mark = {"x": heads, "y": kappa, "series": "theorem, Gaussian entries", "panel": axis}
            points.append({**said, "kind": "theory"})
    used = PRESETS[preset]
    notes = [f"one attention layer at initialisation, {used.points} tokens, width {used.dim}"]
    return curves(points, "Real attention blocks and the theorem", notes, "heads", "condition number")


CLAIMS = (
    Claim(
        "L2",
        "Real attention blocks at initialisation follow it: more heads, lower κ",
        "L, Sec. 3",
        "block-conditioning",
        more_heads,
        restated="at a fixed head size; at a fixed width, where it was judged too, the theorem says nothing of heads",
    ),
    Claim("L4", "Heads improve κ more than head dimension does", "L", "block-conditioning", heads_or_size),
)
STUDY = Study("block-conditioning", __doc__, PRESETS, cells, chart, CLAIMS)
