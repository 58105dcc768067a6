"""Replay: do the rank paper's conclusions hang on how its figures were made?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Figure 1, whose points are
the least over seeds of the best epoch's mean training loss, on 100 batches that come round every epoch.
Claims: Q18.
Task: rank-cliff's cells on a fresh stream, which are its own runs, and on batches that come round again: on the laptop
10 of them, so that parameters are as large a part of the numbers to learn as in the paper, a hundredth.
Two ways to read them: test error on a fresh stream, seed by seed; and the authors' number on the replayed one, where an
epoch is 100 steps, the time between two evaluations.
Power: in one layer the ratio of two errors differs between seeds by 1.4 %, so that a factor of 1.1 between the two ways
would be seen; with two layers by 16 %, where a ratio must exceed 1.5 by a factor of 2.3.
Command: headwise study run replay --preset laptop (2 minutes on two cores, after rank-cliff)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, agree, paired
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.neighbors import NEIGHBOR_SIZES, NeighborPreset, neighbor_run
from headwise.studies._recipes.statistics import half_and_full

AUTHORS, BEST = "least_mean_loss", "training loss of the best epoch, {} batches"


class ReplayPreset(NeighborPreset):
    """Batches that come round again, evaluations of them, and ranks by depth: (depth, ranks)."""

    replay: int
    epochs: int
    grid: tuple[tuple[int, tuple[int, ...]], ...]


PRESETS = {
    "smoke": ReplayPreset.like(NEIGHBOR_SIZES["smoke"], replay=2, epochs=3, grid=((1, (8, 4)), (2, (8, 4)))),
    "laptop": ReplayPreset.like(
        NEIGHBOR_SIZES["laptop"], replay=10, epochs=20, grid=((1, (16, 8, 4, 1)), (2, (16, 8)))
    ),
    "paper": ReplayPreset.like(
        NEIGHBOR_SIZES["paper"],
        replay=100,
        epochs=1000,
        grid=tuple((depth, (64, 32, 16, 8, 4, 2, 1)) for depth in (1, 3)),
    ),
}


def cells(preset: ReplayPreset) -> list[Cell]:
    replayed = preset.replace(evaluations=preset.epochs)
    return [
        Cell(
            {"dim": preset.dim, "rank": rank, "depth": depth, "stream": stream},
            neighbor_run(settings, depth, 1, rank, seed, task=task),
        )
        for depth, ranks in preset.grid
        for rank in ranks
        for stream, settings, task in (("fresh", preset, {}), ("replayed", replayed, {"replay": preset.replay}))
        for seed in range(preset.seeds)
    ]


def readings(rows: list[Row]) -> list[Comparison]:
    """Q18: Q7 and Q8 hold on the best epoch's training loss too; and in one layer, where seeds differ little enough to
    tell, the effect in the authors' number is that in test error, within a factor of two.

    The authors' number is one for all seeds, so it has no interval of its own.
    """
    full = int(rows[0].cell["dim"])
    comparisons = []
    for depth, wanted in zip(sorted({row.cell["depth"] for row in rows}), (2.0, 1.5), strict=False):
        names, at = (f"rank {full // 2}", f"rank {full}"), f"{depth} layer{'s' if depth > 1 else ''}"
        low, high = half_and_full(rows, depth=depth, stream="replayed")
        sides = [Variant(name, some) for name, some in zip(names, (low, high), strict=True)]
        comparisons.append(
            paired(*sides, metric="best epoch's training loss", field=AUTHORS, where=at, at_least=wanted)
        )
        if depth == 1 and low and high:
            best = [min(row.metrics[AUTHORS] for row in side) for side in (low, high)]
            fresh = half_and_full(rows, depth=depth, stream="fresh")
            tested = paired(*(Variant("", some) for some in fresh), at_least=wanted)
            ratios = [ratio * best[1] / best[0] for ratio in tested.ratios]
            effect = f"error of {names[0]} / of {names[1]}"
            comparisons += agree(effect, "test error", "the authors' number", ratios, 0.5, where=at, keys=tested.keys)
    return comparisons


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured
    from headwise.ledger.published import published_values

    used = PRESETS[preset]
    fresh, replayed = (cell(rows, stream=stream) for stream in ("fresh", "replayed"))
    points = measured(fresh, "rank", "stream", "depth", label="test error, {} stream")
    points += measured(replayed, "rank", "stream", "depth", label="test error, {} batches")
    points += measured(replayed, "rank", "stream", "depth", AUTHORS, BEST)
    for value in published_values("rank_cliff") if preset == "paper" else []:
        if value["multiplier"] == 1 and value["depth"] in {row.cell["depth"] for row in rows}:
            said: Mark = {"x": value["rank"], "y": value["error"], "kind": "published"}
            points.append({**said, "series": BEST.format("replayed"), "panel": f"{value['depth']:g}"})
    for point in points:
        point["panel"] = f"{point['panel']} layer{'s' if point['panel'] != '1' else ''}"
    notes = [f"{used.setting}, {used.replay} batches"]
    return curves(points, "Fresh and replayed data", notes, "rank of each head", "error (squared distance)")


CLAIMS = (
    Claim(
        "Q18",
        "The conclusions do not hang on the figures' metric: the best seed and epoch's training loss, on replayed data",
        "a check of Q's code",
        "replay",
        readings,
    ),
)
STUDY = Study("replay", __doc__, PRESETS, cells, chart, CLAIMS)
