"""Context length: does a model of low rank fail as there are more points to search, where one of full rank does not?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Section 6 and its figure
on the number of points.
Claims: Q6, Q20. The conjecture (Q20, which no run here decides) is about one fixed model for every N; as in the figure,
each N has a model trained for it.
Task: as rank-cliff, N points. Every token asks, as in the paper; and apart from it, because a vote can then be counted
on the points' side, the flow where one more token asks. On a laptop all N get as many tokens per step.
Grid: number of points × rank × who asks; two layers. Published learning rate, but on the laptop rank-cliff's.
Power: with 16 points errors of two full-rank layers differ between seeds by 16 %; if also with 4 and 64, five seeds see
growth of the gap by a factor of 1.4. A pilot of one seed had gaps of 3.6 and 16.
Command: headwise study run context-length --preset laptop (6 minutes on two cores, after rank-cliff)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, paired, paired_effects, undecided
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.neighbors import LONGER, NEIGHBOR_SIZES, NeighborPreset, neighbor_run
from headwise.studies._recipes.statistics import half_and_full

PUBLISHED = {4: 0.0069 / 0.0074, 16: 0.2316 / 0.0017, 64: 0.434 / 0.0086, 256: 0.5435 / 0.04}  # ranks 32 and 64
ALL, ONE = "every token asks", "one token asks"


class ContextPreset(NeighborPreset):
    """Ranks, and sets of points: (who asks, number of points, batch)."""

    multiplier: int
    ranks: tuple[int, ...]
    sets: tuple[tuple[str, int, int], ...]


PRESETS = {
    "smoke": ContextPreset.like(
        NEIGHBOR_SIZES["smoke"], multiplier=1, ranks=(8, 4), sets=((ALL, 4, 512), (ALL, 8, 512), (ONE, 4, 512))
    ),
    "laptop": ContextPreset.like(
        NEIGHBOR_SIZES["laptop"],
        seeds=5,
        multiplier=1,
        ranks=(16, 8),
        sets=((ALL, 4, 512), (ALL, 16, 128), (ALL, 64, 32), (ONE, 4, 512), (ONE, 64, 32)),
    ),
    "paper": ContextPreset.like(
        LONGER,
        multiplier=64,
        ranks=(64, 32, 16, 8, 1),
        sets=((ALL, 4, 256), (ALL, 16, 256), (ALL, 64, 256), (ALL, 256, 256), (ONE, 4, 256), (ONE, 64, 256)),
    ),
}


def cells(preset: ContextPreset) -> list[Cell]:
    return [
        Cell(
            {"dim": preset.dim, "points": points, "rank": rank, "asks": asks},
            neighbor_run(
                preset.replace(points=points, batch=batch),
                2,
                preset.multiplier,
                rank,
                seed,
                task={"queries": "separate"} if asks == ONE else None,
            ),
        )
        for asks, points, batch in preset.sets
        for rank in preset.ranks
        for seed in range(preset.seeds)
    ]


def more_points(rows: list[Row]) -> list[Comparison]:
    """Q6: with the most points half the rank fails, and its distance from full rank has grown with them."""
    full = int(rows[0].cell["dim"])
    counts = sorted({row.cell["points"] for row in cell(rows, asks=ALL)})
    if len(counts) < 2:
        return []
    fewest, most = (half_and_full(rows, asks=ALL, points=points) for points in (counts[0], counts[-1]))
    half = f"rank {full // 2}"
    few, many = (PUBLISHED.get(points) for points in (counts[0], counts[-1]))
    return [
        paired(
            Variant(half, most[0]),
            Variant(f"rank {full}", most[1]),
            where=f"{counts[-1]} points",
            at_least=2.0,
            published=many,
        ),
        paired_effects(
            f"test error of {half} / of rank {full}",
            (f"{counts[-1]} points", *most),
            (f"{counts[0]} points", *fewest),
            at_least=2.0,
            published=many / few if many and few else None,
        ),
    ]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured
    from headwise.ledger.published import published_values

    used = PRESETS[preset]
    points = measured(rows, "points", "rank", "asks", label="rank {}")
    for row in {(row.cell["asks"], row.cell["points"]): row for row in rows}.values():
        baseline: Mark = {"x": row.cell["points"], "y": row.metrics["trivial_error"], "kind": "theory"}
        points.append({**baseline, "series": "a constant predictor (no-skill baseline)", "panel": row.cell["asks"]})
    for value in published_values("context_length") if preset == "paper" else []:
        said: Mark = {"x": value["points"], "y": value["error"], "kind": "published"}
        points.append({**said, "series": f"rank {value['rank']:g}", "panel": ALL})
    notes = [f"two layers, {used.dim} dimensions, {used.steps:,} steps; a model for each number of points"]
    return curves(points, "More points to search", notes, "points", "test error (squared distance)")


CLAIMS = (
    Claim(
        "Q6",
        "The two-layer vote degrades with N, and a model of low rank fails as N grows",
        "Q, Sec. 6, Fig. N",
        "context-length",
        more_points,
    ),
    undecided(
        "Q20", "One fixed model of low rank fails across many N", "Q, Conjecture 6", "context-length",
        "to decide it, one model must be trained and tested on sets of 4 to 256 points at once, against one per size; "
        "here every run has one size",
    ),
)  # fmt: skip
STUDY = Study("context-length", __doc__, PRESETS, cells, chart, CLAIMS)
