"""Converged heads: do trained heads of full rank become a multiple of minus the identity?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), the figure on learned
weights: angle between a head's QKᵀ and I, and its Frobenius norm over √d.
Claims: Q11. To find the farthest point, a head needs logits that fall with the product of two points: −I, times much.
Task: rank-cliff's full-rank models of one layer, with the weights measured at each evaluation.
Grid: number of heads, of full rank. Published learning rate.
Power: pilots of one head differ by 7 % in what is left to 180 degrees, but eight heads by a third: three seeds left the
claim open (13, 5.6 to 30, where 6 is asked for), so the laptop has eight.
Command: headwise study run converged-heads --preset laptop (1 minute on two cores, after compensation)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, per_seed
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.neighbors import HEAD_PROBES, NEIGHBOR_SIZES, NeighborPreset, neighbor_run

ANGLE, NORM = "qk-identity-angle.layer0", "qk-norm.layer0"
RANDOM, CLOSE = 90.0, 15.0  # degrees: of an untrained head, and what counts as converged
PUBLISHED = {1: 179.57, 8: 176.32, 64: 168.53}


class ConvergedPreset(NeighborPreset):
    """Numbers of heads of full rank."""

    multipliers: tuple[int, ...]


PRESETS = {
    "smoke": ConvergedPreset.like(NEIGHBOR_SIZES["smoke"], multipliers=(1, 2)),
    "laptop": ConvergedPreset.like(NEIGHBOR_SIZES["laptop"], multipliers=(1, 8), seeds=8),
    "paper": ConvergedPreset.like(NEIGHBOR_SIZES["paper"], multipliers=(1, 8, 64)),
}


def cells(preset: ConvergedPreset) -> list[Cell]:
    return [
        Cell({"multiplier": multiplier}, neighbor_run(preset, 1, multiplier, preset.dim, seed, probes=HEAD_PROBES))
        for multiplier in preset.multipliers
        for seed in range(preset.seeds)
    ]


def minus_identity(rows: list[Row]) -> list[Comparison]:
    """Q11: the angle that separates a head's QKᵀ from −I, mean over heads, against an untrained head's."""
    return [
        per_seed(
            Variant(f"{multiplier} trained head{'s' if multiplier > 1 else ''}", cell(rows, multiplier=multiplier)),
            f"an untrained head ({RANDOM:g}°)",
            lambda row: (180 - row.metrics[ANGLE]) / RANDOM,
            metric="angle from −I",
            at_most=CLOSE / RANDOM,
            published=RANDOM / (180 - PUBLISHED[multiplier]) if multiplier in PUBLISHED else None,
        )
        for multiplier in sorted({row.cell["multiplier"] for row in rows})
    ]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured
    from headwise.ledger.published import published_values

    used, names = PRESETS[preset], ("degrees from −I", "norm of QKᵀ / √d")
    turned = [
        Row(row.cell, row.seed, {"left": 180 - row.metrics[ANGLE], "norm": row.metrics[NORM]}, "") for row in rows
    ]
    points: list[Mark] = []
    for metric, name in zip(("left", "norm"), names, strict=True):
        points += [{**point, "panel": name} for point in measured(turned, "multiplier", "", metric=metric, label=name)]
    for multiplier in used.multipliers:
        random: Mark = {"x": multiplier, "y": RANDOM, "series": "an untrained head", "panel": names[0]}
        points.append({**random, "kind": "theory"})
    for value in published_values("converged_heads") if preset == "paper" else []:
        for name, y in zip(names, (180 - value["angle"], value["norm"]), strict=True):
            said: Mark = {"x": value["multiplier"], "y": y, "series": name, "panel": name, "kind": "published"}
            points.append(said)
    notes = [f"one layer, {used.setting}; means over heads"]
    return curves(points, "What full-rank heads become", notes, "heads of full rank", "degrees, or norm")


CLAIMS = (
    Claim(
        "Q11",
        "Trained full-rank heads converge to a multiple of −I in QK",
        "Q, figure on learned weights",
        "converged-heads",
        minus_identity,
    ),
)
STUDY = Study("converged-heads", __doc__, PRESETS, cells, chart, CLAIMS)
