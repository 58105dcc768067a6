"""Temperature: is it rank that low-rank heads lack, or only a sharper softmax?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Figure 1. Its confound:
logits are divided by √rank, so a split into heads also changes their temperature.
Claims: Q17.
Task: rank-cliff's, with its runs as they are, with a learned factor on every head's logits, and with queries and keys
normalised before that factor, so that the factor alone sets the temperature. At rank 1 a normalised query is only a
sign: drawn, but as good as no attention, and no part of the verdict.
Grid: rank × logits, one layer. Published learning rate.
Power: with a learned factor errors of full rank differ between two pilot seeds by 2 %, so that a ratio of 1.1 is seen.
Command: headwise study run temperature --preset laptop (3 minutes on two cores, after rank-cliff)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, paired, paired_effects
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row
from headwise.studies._recipes.neighbors import NEIGHBOR_SIZES, NeighborPreset, neighbor_run
from headwise.studies._recipes.statistics import half_and_full

PLAIN, SCALED, NORMALISED = "divided by √rank", "learned factor", "normalised, learned factor"
LOGITS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    SCALED: {"logit_scale": True},
    NORMALISED: {"logit_scale": True, "qk_norm": "rms-plain"},
}


class TemperaturePreset(NeighborPreset):
    """Ranks, each with every kind of logits."""

    ranks: tuple[int, ...]


PRESETS = {
    "smoke": TemperaturePreset.like(NEIGHBOR_SIZES["smoke"], ranks=(8, 4)),
    "laptop": TemperaturePreset.like(NEIGHBOR_SIZES["laptop"], ranks=(16, 8, 4, 1)),
    "paper": TemperaturePreset.like(NEIGHBOR_SIZES["paper"], ranks=(64, 32, 16, 8, 4, 2, 1)),
}


def cells(preset: TemperaturePreset) -> list[Cell]:
    return [
        Cell(
            {"dim": preset.dim, "rank": rank, "logits": logits},
            neighbor_run(preset, 1, 1, rank, seed, options=options),
        )
        for logits, options in LOGITS.items()
        for rank in preset.ranks
        for seed in range(preset.seeds)
    ]


def rank_remains(rows: list[Row]) -> list[Comparison]:
    """Q17: however logits are scaled, half the rank fails as in Q7; and a learned factor leaves most of the effect."""
    full = int(rows[0].cell["dim"])
    effects = {logits: half_and_full(rows, logits=logits) for logits in LOGITS}
    names = (f"rank {full // 2}", f"rank {full}")
    scaled = [
        paired(*map(Variant, names, effects[logits]), where=f"logits: {logits}", at_least=2.0)
        for logits in (SCALED, NORMALISED)
    ]
    metric = f"test error of {names[0]} / of {names[1]}"
    kept = paired_effects(metric, (SCALED, *effects[SCALED]), (PLAIN, *effects[PLAIN]), at_least=0.5)
    return [*scaled, kept]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import curves, measured

    used = PRESETS[preset]
    points = measured(rows, "rank", "logits")
    notes = [f"one layer, {used.setting}"]
    return curves(points, "Rank or temperature", notes, "rank of each head", "test error (squared distance)")


CLAIMS = (
    Claim(
        "Q17",
        "The effect is rank, not softmax temperature",
        "a confound of Q, Fig. 1",
        "temperature",
        rank_remains,
    ),
)
STUDY = Study("temperature", __doc__, PRESETS, cells, chart, CLAIMS)
