"""The rank cliff: what rank can a head of one layer, or of several, not do without?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Figure 1.
Claims: Q7, Q8, Q9, Q21 (which no run here decides).
Task: among N points on the sphere, every point finds the one farthest from it.
Grid: rank × multiplier × depth. A multiplier of k averages k modules of width / rank heads, as the authors do: k times
the attention's parameters, and an output scaled by 1/k. Published learning rate for every variant. The published
warm-up is 5,000 steps long; a short run needs a larger part of its steps for it, or the norms' scalars reach 0 before
the rest has learned anything, and models of several layers stay at error 1.
Power: with one layer the logarithm of a ratio varied by 0.02 between seeds, with two by 0.15, so that three seeds see
ratios of 1.07 and of 1.7; those claimed are 2 or more. `published-size` is the paper's model with one layer and a tenth
of its steps (about an hour): it decides nothing, and is set beside the published points. `benchmarks/figure_1.py`
trains one cell with torch's own layers in a plain loop.
Command: headwise study run rank-cliff --preset laptop (about 10 minutes on two cores)
"""

from statistics import mean
from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, beats_no_skill, paired, undecided
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.neighbors import NEIGHBOR_SIZES, NeighborPreset, neighbor_run

LAPTOP_RANKS = (16, 8, 4, 2, 1)
PAPER_RANKS = (64, 32, 16, 8, 4, 2, 1)
PUBLISHED_DIM = 64


class CliffPreset(NeighborPreset):
    """Places of the grid: (depth, multiplier, ranks)."""

    grid: tuple[tuple[int, int, tuple[int, ...]], ...]


PRESETS = {
    "smoke": CliffPreset.like(NEIGHBOR_SIZES["smoke"], grid=((1, 1, (8, 4, 1)), (1, 2, (4,)), (2, 1, (8, 4)))),
    "demo": CliffPreset.like(NEIGHBOR_SIZES["laptop"], warm_up=0.05, seeds=2, grid=((1, 1, LAPTOP_RANKS),)),
    "laptop": CliffPreset.like(
        NEIGHBOR_SIZES["laptop"], grid=((1, 1, LAPTOP_RANKS), (1, 8, (16, 8)), (1, 64, (8,)), (2, 1, (16, 8, 4, 1)))
    ),
    "published-size": CliffPreset.like(  # the paper's models, a tenth of its steps
        NEIGHBOR_SIZES["paper"], steps=10_000, seeds=2, grid=((1, 1, (64, 32, 16, 8, 1)),)
    ),
    "paper": CliffPreset.like(
        NEIGHBOR_SIZES["paper"],
        grid=tuple((depth, multiplier, PAPER_RANKS) for depth in (1, 3, 5) for multiplier in (1, 8, 64)),
    ),
}


def cells(preset: CliffPreset) -> list[Cell]:
    return [
        Cell(
            {"dim": preset.dim, "rank": rank, "multiplier": multiplier, "depth": depth},
            neighbor_run(preset, depth, multiplier, rank, seed),
        )
        for depth, multiplier, ranks in preset.grid
        for rank in ranks
        for seed in range(preset.seeds)
    ]


def _full(rows: list[Row]) -> int:
    """The full rank; rows may still lack it."""
    return int(rows[0].cell["dim"])


def one_layer(rows: list[Row]) -> list[Comparison]:
    """Q7: full rank suffices; half of it, with the largest multiplier there is, does not."""
    full = _full(rows)
    half = full // 2
    most = max((row.cell["multiplier"] for row in cell(rows, depth=1, rank=half)), default=1)
    enough = Variant(f"one head of rank {full}", cell(rows, depth=1, multiplier=1, rank=full))
    many = Variant(f"{most} times the heads, of rank {half}", cell(rows, depth=1, multiplier=most, rank=half))
    return [
        paired(many, enough, at_least=2.0, published=0.3072 / 0.01531),
        beats_no_skill(enough, at_most=0.25),
    ]


def more_layers(rows: list[Row]) -> list[Comparison]:
    """Q8: depth helps low rank, and full rank is still clearly better."""
    full = _full(rows)
    half = full // 2
    deep = min((row.cell["depth"] for row in rows if row.cell["depth"] > 1), default=2)
    shallow, deeper = (cell(rows, depth=depth, multiplier=1, rank=half) for depth in (1, deep))
    low, enough = (Variant(f"rank {rank}", cell(rows, depth=deep, multiplier=1, rank=rank)) for rank in (half, full))
    return [
        paired(low, enough, at_least=1.5, published=0.05101 / 0.003182, where=f"{deep} layers"),
        paired(Variant(f"{deep} layers", deeper), Variant("1 layer", shallow), at_most=1 / 1.1, where=f"rank {half}"),
    ]


def fewer_parameters(rows: list[Row]) -> list[Comparison]:
    """Q9: one full-rank module against every larger one of lower rank, at equal depth."""
    full = _full(rows)
    larger = {
        (row.cell["depth"], row.cell["multiplier"], row.cell["rank"])
        for row in rows
        if row.cell["multiplier"] > 1 and row.cell["rank"] < full
    }
    return [
        paired(
            Variant(
                f"rank {rank}, {multiplier} times the attention parameters",
                cell(rows, depth=depth, multiplier=multiplier, rank=rank),
            ),
            Variant(f"rank {full}", cell(rows, depth=depth, multiplier=1, rank=full)),
            where=f"{depth} layer{'s' if depth > 1 else ''}",
            at_least=1.0,
        )
        for depth, multiplier, rank in sorted(larger)
    ]


CLAIMS = (
    Claim(
        "Q7",
        "One layer: full rank is necessary and sufficient; rank d/2 fails even with 64 times the parameters",
        "Q, Fig. 1",
        "rank-cliff",
        one_layer,
    ),
    Claim(
        "Q8",
        "Several layers: low rank recovers partly, full rank still wins clearly",
        "Q, Fig. 1",
        "rank-cliff",
        more_layers,
    ),
    Claim(
        "Q9",
        "Full rank with fewer parameters beats low rank with more",
        "Q, Sec. 7",
        "rank-cliff",
        fewer_parameters,
    ),
    undecided(
        "Q21",
        "The rank cliff holds for a causal nearest-neighbour task",
        "N, caveats",
        "rank-cliff",
        "to decide it, every point must find the farthest of those before it, by a decoder, on this grid; the task's "
        "points see all others",
    ),
)


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.ranks import rank_curves

    used = PRESETS[preset]
    note = f"{used.setting} at the published learning rate"
    return rank_curves(rows, "The rank cliff", note, published="rank_cliff" if used.dim == PUBLISHED_DIM else None)


def against_published(rows: list[Row]) -> list[dict[str, float]]:
    """Errors beside the figure's, where a model is of its size: their mean, their range, and the ratio."""
    from headwise.ledger.published import published_values

    points = []
    for value in published_values("rank_cliff"):
        place = {"dim": PUBLISHED_DIM, **{name: int(value[name]) for name in ("depth", "multiplier", "rank")}}
        if errors := [row.metrics["error"] for row in cell(rows, **place)]:
            measured = {"error": mean(errors), "least": min(errors), "most": max(errors), "seeds": len(errors)}
            points.append({**value, **measured, "published": value["error"], "ratio": mean(errors) / value["error"]})
    return points


STUDY = Study("rank-cliff", __doc__, PRESETS, cells, chart, CLAIMS, against_published=against_published)
