"""Dimension: does what low rank lacks grow with the dimension of the points?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), appendix.
Claims: Q12. The gap is the difference of errors, as the paper plots them, at half and at full rank. Half the rank is
half in every dimension, and the error of a constant predictor grows with d too, so the chart also has errors as parts
of it.
Task: as rank-cliff, in d dimensions; two layers, on the laptop one, because in its few steps two collapse in 32.
Grid: dimension × rank, with the same MLP in every dimension, as published. Published learning rate, but on the laptop
rank-cliff's, which three of the cells are.
Power: in 16 dimensions errors differ between seeds by 0.1 % at half the rank and 1.3 % at full; growth by 1 % is seen.
Command: headwise study run dimension --preset laptop (2 minutes on two cores, after rank-cliff)
"""

import math
from itertools import pairwise
from typing import Any

from headwise.ledger.claims import Claim, Comparison, against
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.neighbors import LONGER, NEIGHBOR_SIZES, NeighborPreset, neighbor_run


class DimensionPreset(NeighborPreset):
    """Dimensions, and ranks as parts of them: 2 for half."""

    depth: int
    multiplier: int
    parts: tuple[int, ...]
    dims: tuple[int, ...]


PRESETS = {
    "smoke": DimensionPreset.like(NEIGHBOR_SIZES["smoke"], depth=1, multiplier=1, parts=(1, 2), dims=(4, 8)),
    "laptop": DimensionPreset.like(NEIGHBOR_SIZES["laptop"], depth=1, multiplier=1, parts=(1, 2, 4), dims=(8, 16, 32)),
    "paper": DimensionPreset.like(LONGER, depth=2, multiplier=8, parts=(1, 2, 4, 8, 16), dims=(16, 64, 128, 256)),
}


def cells(preset: DimensionPreset) -> list[Cell]:
    return [
        Cell(
            {"dim": dim, "part": f"d/{part}" if part > 1 else "d"},
            neighbor_run(preset.replace(dim=dim), preset.depth, preset.multiplier, dim // part, seed),
        )
        for dim in preset.dims
        for part in preset.parts
        for seed in range(preset.seeds)
    ]


def gaps(rows: list[Row]) -> list[Comparison]:
    """Q12: the gap of each dimension against that of the one before."""
    dims = sorted({row.cell["dim"] for row in rows})
    return [_growth(rows, small, large) for small, large in pairwise(dims)]


def _growth(rows: list[Row], small: int, large: int) -> Comparison:
    arms = [
        {row.seed: row for row in cell(rows, dim=dim, part=part)} for dim in (large, small) for part in ("d/2", "d")
    ]
    seeds = sorted(set.intersection(*(set(arm) for arm in arms)))
    errors = [[arm[seed].metrics["error"] for arm in arms] for seed in seeds]
    return against(
        "test error of rank d/2 − of rank d",
        f"{large} dimensions",
        f"{small} dimensions",
        [(low - full) / ((low_before - full_before) or math.nan) for low, full, low_before, full_before in errors],
        at_least=1.0,
        keys=tuple(arm[seed].key for seed in seeds for arm in arms),
    )


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured

    used = PRESETS[preset]
    parts = [Row(r.cell, r.seed, {"left": r.metrics["error"] / r.metrics["trivial_error"]}, r.key) for r in rows]
    points: list[Mark] = [{**p, "panel": "error"} for p in measured(rows, "dim", "part", label="rank {}")]
    left = measured(parts, "dim", "part", metric="left", label="rank {}")
    points += [{**point, "panel": "relative to a constant predictor"} for point in left]
    notes = [f"{used.points} points, depth {used.depth}, {used.steps:,} steps"]
    return curves(points, "More dimensions", notes, "dimension", "test error (squared distance)")


CLAIMS = (Claim("Q12", "The gap grows with the dimension d", "Q, appendix", "dimension", gaps,
          untestable="the scale decides the sign: it holds in absolute error, and reverses relative to a constant "
          "predictor or as a ratio"),)  # fmt: skip
STUDY = Study("dimension", __doc__, PRESETS, cells, chart, CLAIMS)
