"""The rank bound: how many heads of low rank would it take, and does anything get below what is certified?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Theorem 2.
Claims: Q2, Q3.
The bounds are computed (docs/reference/theory.md has the proofs): one layer, two orthonormal points, a uniform query,
keys of rank r, any attention weights; scalar or free values. Runs: bare attention layers that meet these hypotheses and
try to get as low as they can, trained by gradient descent (free values) or random with fitted weights (scalar values).
Command: headwise study run rank-bound --preset laptop (about 3 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, exactly, proved
from headwise.ledger.study import Preset, Study
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.constructions import constructed
from headwise.training.run import Recipe, Run

BARE = ModelOptions(norm="none", residual=False)


class BoundPreset(Preset):
    """The dimension, layers as (rank, heads), and how they are trained."""

    dim: int
    steps: int
    batch: int
    grid: tuple[tuple[int, int], ...]


PRESETS = {
    "smoke": BoundPreset(dim=4, steps=20, batch=64, grid=((1, 1), (1, 4), (2, 2))),
    "laptop": BoundPreset(dim=8, steps=1500, batch=256, grid=((1, 1), (1, 8), (1, 32), (2, 4), (4, 2), (7, 1))),
}


def cells(preset: BoundPreset) -> list[Cell]:
    return [
        Cell({"dim": preset.dim, "rank": rank, "heads": heads, "how": how}, run)
        for rank, heads in preset.grid
        for seed in range(preset.seeds)
        for how, run in (
            ("trained", _trained(preset, rank, heads, seed)),
            ("fitted", _fitted(preset, rank, heads, seed)),
        )
    ]


def _trained(preset: BoundPreset, rank: int, heads: int, seed: int) -> Run:
    dim = preset.dim
    shape = ModelShape(width=dim, heads=heads, qk_rank=rank, v_rank=dim, mlp=0)
    task = {"name": "nearest-neighbor", "dim": dim, "points": 2, "layout": "orthogonal", "queries": "separate"}
    recipe = Recipe(learning_rate=0.02, batch=preset.batch)
    return Run(task=task, shape=str(shape), options=BARE, recipe=recipe, steps=preset.steps, seed=seed)


def _fitted(preset: BoundPreset, rank: int, heads: int, seed: int) -> Run:
    begin = {"name": "fitted-heads", "keys": "uniform", "values": "scalar"}
    return constructed(begin, preset.dim, heads, rank, seed)


def high_accuracy(rows: list[Row]) -> list[Comparison]:
    """Q2: at an error of 0.1/√d the heads needed double with every dimension; and nothing lies below its bound."""
    import math

    from headwise.theory.bounds import certified_heads, free_bound, scalar_bound

    comparisons = []
    for dim in (16, 32, 64, 128):
        for rank in (1, dim // 2):
            needed = certified_heads(dim, rank, f"{0.1 / math.sqrt(dim):.6f}", values="free")
            at = f"error 0.1/√d, d = {dim}, r = {rank}"
            comparisons.append(
                proved("log₂(heads needed) / (d − r)", at, math.log2(needed) / (dim - rank), at_least=0.5)
            )
    for how, bound in (("trained", free_bound), ("fitted", scalar_bound)):
        for rank, heads in sorted({(row.cell["rank"], row.cell["heads"]) for row in cell(rows, how=how)}):
            dim = rows[0].cell["dim"]
            least = bound(dim, rank, heads)
            if least > 0:
                name = f"{heads} {how} head{'s' if heads > 1 else ''} of rank {rank}"
                here = cell(rows, how=how, rank=rank, heads=heads)
                comparisons.append(_never_below(name, f"{dim} dimensions", here, least))
    return comparisons


def _never_below(name: str, where: str, rows: list[Row], bound: float) -> Comparison:
    """The least of a cell's errors, with 4 standard errors of its measurement: each run alone must obey a theorem."""
    lowest = min(row.metrics["error"] + 4 * row.metrics["standard_error"] for row in rows)
    keys = tuple(row.key for row in rows)
    return exactly(
        "least error + 4 standard errors",
        name,
        "the certified bound",
        lowest / bound,
        at_least=1.0,
        where=where,
        keys=keys,
    )


def high_dimension(rows: list[Row]) -> list[Comparison]:
    """Q3: at a fixed error the heads needed grow as a power of d, and the power grows as the error shrinks."""
    import math

    from headwise.theory.bounds import certified_heads

    def power(error: str) -> float:
        low, high = (certified_heads(dim, 1, error, values="free") for dim in (512, 1024))
        return math.log2(high) - math.log2(low)

    powers = {error: power(error) for error in ("0.15", "0.12", "0.1")}
    name = "power of d in the heads needed"
    comparisons = [proved(name, f"error {error}, rank 1", value, at_least=2.0) for error, value in powers.items()]
    return [*comparisons, exactly(name, "error 0.1", "error 0.15", powers["0.1"] / powers["0.15"], at_least=1.5)]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, across_seeds, curves
    from headwise.theory.bounds import free_bound, scalar_bound

    dim = PRESETS[preset].dim
    counts = [2**k for k in range(11)]
    points: list[Mark] = []
    for rank in (1, 2, 4):
        for name, bound in (("scalar values", scalar_bound), ("free values", free_bound)):
            for heads, least in zip(counts, bound(dim, rank, counts), strict=True):
                if least > 1e-4:
                    points.append({"x": heads, "y": least, "series": name, "panel": f"rank {rank}", "kind": "theory"})
        for how, name in (("trained", "free values"), ("fitted", "scalar values")):
            for heads in sorted({row.cell["heads"] for row in cell(rows, rank=rank, how=how)}):
                errors = [row.metrics["error"] for row in cell(rows, rank=rank, how=how, heads=heads)]
                points.append(across_seeds(errors, heads, name, f"rank {rank}"))
    notes = [
        f"{dim} dimensions, two orthonormal points, a uniform query, one layer: certified lower bounds (dashed),",
        "bare attention layers trained (free values) and random heads with fitted weights (scalar values)",
    ]
    return curves(points, "Nothing gets below the bound", notes, "heads", "error")


CLAIMS = (
    Claim(
        "Q2",
        "H rank-r heads cannot do nearest-neighbour search unless H ≥ exp(Ω(d−r)) (high accuracy)",
        "Q, Thm 2",
        "rank-bound",
        high_accuracy,
    ),
    Claim(
        "Q3",
        "Nor in high dimension unless H ≥ (d/r)^Ω(1/ε)",
        "Q, Thm 2",
        "rank-bound",
        high_dimension,
        computed=True,
    ),
)
STUDY = Study("rank-bound", __doc__, PRESETS, cells, chart, CLAIMS)
