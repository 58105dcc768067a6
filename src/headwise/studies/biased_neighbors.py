"""Biased neighbours: a target that a few full-rank heads give exactly, and low rank not at all.

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Theorem 3; our explicit
version, without a condition on the size of the values (docs/reference/theory.md).
Claims: Q4.
Runs: nothing is trained. n full-rank heads with thresholds and signs + − + … give a target whose low harmonics vanish;
beside them, random hard heads of rank 1 and 2 with thresholds and weights fitted by least squares.
Command: headwise study run biased-neighbors --preset laptop (about a minute on two cores)
"""

from typing import Any

from headwise.ledger.claims import NO_SKILL, Claim, Comparison, Variant, per_seed, proved
from headwise.ledger.study import Preset, Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.constructions import constructed
from headwise.training.run import Run

TRIVIAL = 0.5  # of the mean of the two points


class BiasedPreset(Preset):
    """Targets as (dimension, jumps), and the random heads beside them."""

    targets: tuple[tuple[int, int], ...]
    ranks: tuple[int, ...]
    heads: tuple[int, ...]


PRESETS = {
    "smoke": BiasedPreset(targets=((4, 9),), ranks=(1,), heads=(16,)),
    "laptop": BiasedPreset(targets=((4, 9), (6, 13)), ranks=(1, 2), heads=(64, 256)),
}


def cells(preset: BiasedPreset) -> list[Cell]:
    cells = []
    for dim, jumps in preset.targets:
        for seed in range(preset.seeds):
            full = constructed({"name": "biased-heads", "jumps": jumps, "inverse_temperature": 1000.0}, dim, seed=seed)
            cells.append(Cell({"dim": dim, "rank": dim, "heads": jumps}, full))
            for rank in preset.ranks:
                for heads in preset.heads:
                    run = _fitted(dim, jumps, rank, heads, seed)
                    cells.append(Cell({"dim": dim, "rank": rank, "heads": heads}, run))
    return cells


def _fitted(dim: int, jumps: int, rank: int, heads: int, seed: int) -> Run:
    begin = {"name": "fitted-heads", "thresholds": True, "target": "oscillating", "jumps": jumps}
    return constructed(begin, dim, heads, rank, seed)


def separation(rows: list[Row]) -> list[Comparison]:
    """Q4: of a constant predictor's error full rank leaves a tenth at most, low rank nine tenths; heads needed grow."""
    comparisons = []
    for dim, rank, heads in sorted({(row.cell["dim"], row.cell["rank"], row.cell["heads"]) for row in rows}):
        name = f"{heads} heads of rank {rank} in {dim} dimensions"
        here = Variant(name, cell(rows, dim=dim, rank=rank, heads=heads))
        required: dict[str, Any] = {"at_most": 0.1} if rank == dim else {"at_least": 0.9}
        comparisons.append(per_seed(here, NO_SKILL, lambda row: row.metrics["error"] / TRIVIAL, **required))
    return [*comparisons, *certified_growth()]


def certified_growth() -> list[Comparison]:
    import math

    from headwise.theory.bounds import graded_heads_needed
    from headwise.theory.sphere import alternating_sign, zonal_spectrum

    comparisons = []
    for dim in (8, 16, 32):
        wave, jumps = alternating_sign(dim, 3 * dim - 1)
        needed = graded_heads_needed(dim, 1, "0.4", zonal_spectrum(dim, wave, 8 * dim, jumps), values="free")
        target = f"d = {dim}, error 0.4 ({3 * dim - 1} full-rank heads reach it)"
        comparisons.append(proved("log₂(rank-1 heads needed) / d", target, math.log2(needed) / dim, at_least=1.0))
    return comparisons


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import curves, measured

    points = measured(rows, "heads", "rank", "dim", label="rank {}")
    for point in points:
        point["panel"] = f"{point['panel']} dimensions"
    notes = ["error 0.5 is the mean of the two points; full-rank heads at inverse temperature 1,000"]
    return curves(points, "Biased neighbours: full rank does it, low rank does not begin", notes, "heads", "error")


CLAIMS = (
    Claim(
        "Q4",
        "Biased nearest neighbours separate exponentially: poly(d) full-rank heads against exp(Ω(d−r))",
        "Q, Thm 3",
        "biased-neighbors",
        separation,
    ),
)
STUDY = Study("biased-neighbors", __doc__, PRESETS, cells, chart, CLAIMS)
