"""Asymmetric heads: is a higher rank worth more in queries and keys, or in values?

Source: the note on what the rank paper means for nanochat, point 2.
Claims: N2.
Task: the next byte of text, by a nanochat-style decoder.
Grid: variants of equal parameters. The rank of queries and keys, or that of values, is doubled and the MLP pays for it;
or one is raised by half at the cost of the other. Each variant has its own learning rate, chosen on validation with a
seed that is not judged.
Power: with three seeds two variants were told apart from a ratio of about 1.05 on, so six are run.
Command: headwise study run asymmetric --preset laptop (about 10 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import BITS, Claim, Comparison, Variant, paired
from headwise.ledger.study import Study
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.text import TEXT_SIZES, TextPreset, text_run


class AsymmetricPreset(TextPreset):
    """One number of heads; the variants follow from it."""

    heads: int


PRESETS = {
    "smoke": AsymmetricPreset.like(TEXT_SIZES["smoke"], heads=2),
    "laptop": AsymmetricPreset.like(TEXT_SIZES["laptop"], heads=4, seeds=6),
    "paper": AsymmetricPreset.like(TEXT_SIZES["paper"], heads=14),
}


def variants_of(width: int, heads: int, depth: int) -> dict[str, ModelShape]:
    """The usual shape and four others with its number of parameters."""
    usual = ModelShape(width=width, heads=heads, depth=depth)
    rank, mlp = usual.layers[0].qk_rank, usual.mlps[0]
    paid = mlp - heads * rank  # a product in and one out, for one rank doubled
    half = rank // 2
    changes = {
        "usual": {},
        "query/key rank doubled": {"qk_rank": 2 * rank, "v_rank": rank, "mlp": paid},
        "value rank doubled": {"qk_rank": rank, "v_rank": 2 * rank, "mlp": paid},
        "query/key rank for value rank": {"qk_rank": rank + half, "v_rank": rank - half},
        "value rank for query/key rank": {"qk_rank": rank - half, "v_rank": rank + half},
    }
    return {
        name: ModelShape.model_validate({"width": width, "heads": heads, "depth": depth, "mlp": mlp, **change})
        for name, change in changes.items()
    }


def cells(preset: AsymmetricPreset) -> list[Cell]:
    variants = variants_of(preset.width, preset.heads, preset.depth)
    return [
        Cell({"arm": name}, text_run(preset, shape, seed))
        for name, shape in variants.items()
        for seed in range(preset.seeds)
    ]


def queries_and_keys(rows: list[Row]) -> list[Comparison]:
    """N2: doubling the query/key rank gains over the usual shape, and more than doubling the value rank."""
    doubled = Variant("query/key rank doubled", cell(rows, arm="query/key rank doubled"))
    others = [Variant(name, cell(rows, arm=name)) for name in ("usual", "value rank doubled")]
    return [paired(doubled, other, metric=BITS, at_most=1.0) for other in others]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import frontier

    used = PRESETS[preset]
    note = f"decoder of width {used.width} and {used.depth} layers on text, {used.steps:,} steps; "
    note += f"equal parameters, {used.tuning}"
    return frontier(rows, "arm", "Rank for queries and keys, or for values", [note], "bits per byte")


CLAIMS = (
    Claim(
        "N2", "Raising only the query/key rank is where the gain is", "N, 2", "asymmetric", queries_and_keys,
        untestable="rank also moves rotary frequencies and the logits' temperature here, either of which may be why "
        "(value-rank holds them still)",
    ),
)  # fmt: skip
STUDY = Study("asymmetric", __doc__, PRESETS, cells, chart, CLAIMS)
