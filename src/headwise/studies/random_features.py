"""Random features: how slowly does the error fall when rank-1 heads are drawn at random and only weighted well?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), figure on random features.
Claims: Q13.
Runs: nothing is trained. H random hard heads of rank 1 with the best weights there are, in the ordinary layer; the
error of every smaller number of them follows from one factorisation. The published curve of d = 8 ends too low: its
keys were not renormalised after a projection and its moments were rounded to 16 bits, so that the error it states is
not the error its weights have (`theory.random_features.published_error` repeats both). Drawn, it decides nothing.
Command: headwise study run random-features --preset laptop (about 3 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import ERROR, Claim, Comparison, agree
from headwise.ledger.study import Preset, Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.constructions import constructed

SOUND = (16, 32, 64)  # dimensions whose published curve is right


class RandomPreset(Preset):
    """Dimensions, and the most heads in each."""

    dims: tuple[int, ...]
    heads: int


PRESETS = {
    "smoke": RandomPreset(dims=(16,), heads=16),
    "laptop": RandomPreset(dims=(8, 16, 32, 64), heads=1024),
    "paper": RandomPreset(dims=(8, 16, 32, 64), heads=16384),
}


def cells(preset: RandomPreset) -> list[Cell]:
    return [
        Cell({"dim": dim}, constructed({"name": "random-heads", "keys": "uniform"}, dim, preset.heads, seed=seed))
        for dim in preset.dims
        for seed in range(preset.seeds)
    ]


def _published() -> dict[tuple[int, int], float]:
    from headwise.ledger.published import published_values

    return {(int(p["dim"]), int(p["heads"])): p["error"] for p in published_values("random_features")}


def as_published(rows: list[Row]) -> list[Comparison]:
    """Q13: at the most heads both have, each curve is within a tenth of the published one, either way."""
    published, comparisons = _published(), []
    for dim in (dim for dim in SOUND if cell(rows, dim=dim)):
        here = cell(rows, dim=dim)
        heads = max(h for d, h in published if d == dim and f"predicted_error_{h}" in here[0].metrics)
        name, value = f"predicted_error_{heads}", published[dim, heads]
        ratios, keys = [row.metrics[name] / value for row in here], tuple(row.key for row in here)
        comparisons += agree(ERROR, f"{heads} random heads", "published", ratios, 0.9, where=f"d = {dim}", keys=keys)
    return comparisons


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, across_seeds, curves
    from headwise.theory.bounds import scalar_bound

    points: list[Mark] = []
    for dim in sorted({row.cell["dim"] for row in rows}):
        here, panel = cell(rows, dim=dim), f"{dim} dimensions"
        for heads in (2**k for k in range(15)):
            errors = [row.metrics[n] for row in here if (n := f"predicted_error_{heads}") in row.metrics]
            if errors:
                points.append(across_seeds(errors, heads, "best weights", panel))
                bound: Mark = {"x": heads, "y": scalar_bound(dim, 1, heads), "series": "no rank-1 heads below"}
                points.append({**bound, "panel": panel, "kind": "theory"})
        for (other, heads), error in _published().items():
            if other == dim:
                point: Mark = {"x": heads, "y": error, "series": "published", "panel": panel, "kind": "published"}
                points.append(point)
    notes = [
        "two orthonormal points; rank-1 hard heads, cosine of query and key uniform in −1 … 1, closed form",
        "bound: one layer, scalar values. The published curve of 8 dimensions is an artefact (headwise study show)",
    ]
    return curves(points, "Random rank-1 heads, weighted as well as can be", notes, "heads", "error")


CLAIMS = (
    Claim(
        "Q13",
        "Random rank-1 heads with optimal weights fall as slowly as the published curves",
        "Q, Fig. random features",
        "random-features",
        as_published,
    ),
)
STUDY = Study("random-features", __doc__, PRESETS, cells, chart, CLAIMS)
