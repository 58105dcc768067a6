"""The majority vote: two layers of rank-1 heads do for two points what one layer cannot; and for more points?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Section 6.
Claims: Q5; evidence for Q6, which trained models decide.
Runs: nothing is trained. H random hard heads of rank 1 vote for a point, a second layer fetches the winner. For two
points the error is about √(d/H), in closed form; for more the vote degrades.
Command: headwise study run majority-vote --preset laptop (about 2 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, paired, per_seed
from headwise.ledger.study import Preset, Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.constructions import constructed


class VotePreset(Preset):
    """Votes, each (dimension, points, heads, seeds)."""

    grid: tuple[tuple[int, int, int, int], ...]


PRESETS = {
    "smoke": VotePreset(grid=((4, 2, 11, 3), (4, 2, 101, 3), (4, 4, 101, 3))),
    "laptop": VotePreset(
        grid=(
            *((8, 2, heads, 8) for heads in (101, 1001, 4001)),  # near the bound: a quarter below it must be seen
            *((32, 2, heads, 3) for heads in (101, 1001, 4001)),
            *((32, points, 1001, 3) for points in (4, 8)),
        )
    ),
}


def cells(preset: VotePreset) -> list[Cell]:
    return [
        Cell(
            {"dim": dim, "points": points, "heads": heads},
            constructed({"name": "majority-vote", "points": points}, dim, heads, seed=seed),
        )
        for dim, points, heads, seeds in preset.grid
        for seed in range(seeds)
    ]


def two_points(rows: list[Row]) -> list[Comparison]:
    """Q5: below what any one layer of as many rank-1 heads can reach (scalar values), and falling with heads."""
    from headwise.theory.bounds import scalar_bound

    comparisons = []
    pairs = cell(rows, points=2)
    for dim in sorted({row.cell["dim"] for row in pairs}):
        counts = sorted({row.cell["heads"] for row in cell(pairs, dim=dim)})
        fewest, most = (
            Variant(f"vote of {heads} heads", cell(pairs, dim=dim, heads=heads)) for heads in (counts[0], counts[-1])
        )
        least = scalar_bound(dim, 1, counts[-1] + 1)
        bound = f"least of any {counts[-1] + 1} rank-1 heads in one layer"
        comparisons.append(_over_bound(most, bound, least, f"d = {dim}"))
        comparisons.append(paired(most, fewest, at_most=0.5, where=f"d = {dim}"))
    return comparisons


def _over_bound(vote: Variant, bound: str, least: float, where: str) -> Comparison:
    return per_seed(vote, bound, lambda row: row.metrics["error"] / least, at_most=1.0, where=where)


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured
    from headwise.theory.bounds import scalar_bound
    from headwise.theory.constructions import vote_error

    votes, points = cell(rows, points=2), measured(cell(rows, points=2), "heads", "dim", label="d = {}")
    for dim in sorted({row.cell["dim"] for row in votes}):
        for heads in sorted({row.cell["heads"] for row in votes}):
            said: Mark = {"x": heads, "y": vote_error(dim, heads), "series": f"d = {dim}", "kind": "theory"}
            points.append(said)
            bound: Mark = {"x": heads, "y": scalar_bound(dim, 1, heads), "kind": "theory"}
            points.append({**bound, "series": f"d = {dim}: no one layer below (scalar values)"})
    for point in points:
        point["panel"] = "two points, by heads"
    others = [row for row in rows if row.cell["dim"] == max(r.cell["dim"] for r in rows)]
    more = measured(cell(others, heads=1001), "points", "heads", label="{} voting heads")
    for point in more:
        point["panel"] = "by number of points"
    notes = ["two layers of rank-1 heads, nothing trained; theory: the vote's closed form, and the one-layer bound"]
    return curves(points + more, "A majority vote of rank-1 heads", notes, "heads, or points", "error")


CLAIMS = (
    Claim(
        "Q5",
        "Two layers of rank-1 heads suffice for N = 2, by majority vote, with polynomially many heads",
        "Q, Sec. 6",
        "majority-vote",
        two_points,
    ),
)
STUDY = Study("majority-vote", __doc__, PRESETS, cells, chart, CLAIMS)
