"""The full-rank head: does one head of full rank find the nearest of any number of points?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Theorem 2 and Fact 1.
Claims: Q1.
Runs: nothing is trained. One head with Q = βI and K = V = I in the ordinary layer, on uniform points of the sphere, for
several N, d and inverse temperatures β; the error falls as I(N)·√d/β, so a sharp enough head solves any of them.
Command: headwise study run full-rank-head --preset laptop (under a minute on two cores)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, beats_no_skill, paired
from headwise.ledger.study import Preset, Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.constructions import constructed


class FullRankPreset(Preset):
    """Dimensions, numbers of points, and how sharp the head is."""

    dims: tuple[int, ...]
    points: tuple[int, ...]
    inverse_temperatures: tuple[float, ...]


PRESETS = {
    "smoke": FullRankPreset(dims=(8,), points=(2, 4), inverse_temperatures=(10.0, 100.0)),
    "laptop": FullRankPreset(dims=(16, 64), points=(2, 16, 64), inverse_temperatures=(10.0, 100.0, 1000.0), seeds=10),
}


def cells(preset: FullRankPreset) -> list[Cell]:
    return [
        Cell({"dim": dim, "points": points, "beta": beta}, _run(dim, points, beta, seed))
        for dim in preset.dims
        for points in preset.points
        for beta in preset.inverse_temperatures
        for seed in range(preset.seeds)
    ]


def _run(dim: int, points: int, beta: float, seed: int) -> Any:
    begin = {"name": "full-rank-head", "inverse_temperature": beta, "points": points, "layout": "uniform"}
    return constructed(begin, dim, rank=dim, seed=seed)


def any_number(rows: list[Row]) -> list[Comparison]:
    """Q1: sharp, it leaves at most a tenth of a constant predictor's error; sharper by ten, a fifth of that or less."""
    betas = sorted({row.cell["beta"] for row in rows})
    places = sorted({(row.cell["dim"], row.cell["points"]) for row in rows})
    comparisons = []
    for dim, points in places:
        here, where = cell(rows, dim=dim, points=points), f"{points} points in {dim} dimensions"
        softer, sharp = (Variant(f"one head at β = {beta:g}", cell(here, beta=beta)) for beta in betas[-2:])
        comparisons.append(beats_no_skill(sharp, at_most=0.1, where=where))
        comparisons.append(paired(sharp, softer, at_most=0.2, where=where))
    return comparisons


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured
    from headwise.theory.constructions import asymptotic_error

    points = measured(rows, "beta", "points", "dim", label="{} points")
    for dim, number in sorted({(row.cell["dim"], row.cell["points"]) for row in rows}):
        for beta in sorted({row.cell["beta"] for row in rows}):
            error = asymptotic_error(dim, number, beta, "uniform")
            at: Mark = {"x": beta, "y": error, "series": f"{number} points", "panel": str(dim), "kind": "theory"}
            points.append(at)
    for point in points:
        point["panel"] = f"{point['panel']} dimensions"
    notes = ["Q = βI, K = V = I in the ordinary layer, nothing trained; theory: its limit for large β"]
    return curves(points, "One full-rank head finds the nearest point", notes, "inverse temperature β", "error")


CLAIMS = (
    Claim(
        "Q1",
        "One full-rank head represents nearest-neighbour search on the sphere, for any number of points",
        "Q, Thm 2, Fact 1",
        "full-rank-head",
        any_number,
    ),
)
STUDY = Study("full-rank-head", __doc__, PRESETS, cells, chart, CLAIMS)
