"""The transition: between half and full rank, where does the error drop, and what moves that place?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), which has only ranks that
divide the dimension; a question it leaves.
Claims: Q15.
Task: as rank-cliff, at the ranks between, with as many heads as fill the width with values.
Fit: log error between neighbouring ranks is a line; the threshold is the rank where it reaches half the error of a
constant predictor.
Grid: rank × (points, dimension, depth), each moved alone from rank-cliff's own. Published learning rate.
Power: below full rank errors differ between seeds by 0.2 %, which moves a threshold by less than 1 %: a ratio of 1.05
is seen. A pilot of one seed had a threshold of 12.7 in 16 dimensions.
Command: headwise study run transition --preset laptop (5 minutes on two cores, after rank-cliff)
"""

import math
from itertools import pairwise
from typing import Any

from headwise.ledger.claims import Claim, Comparison, against
from headwise.ledger.statistics import LEVEL, interval
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.neighbors import NEIGHBOR_SIZES, NeighborPreset, neighbor_run

BASE = "base"


class TransitionPreset(NeighborPreset):
    """Curves by what is moved: (dimension, points, depth, ranks); MLP and batch follow from dimension and points."""

    mlp_ratio: int
    tokens: int
    grid: dict[str, tuple[int, int, int, tuple[int, ...]]]


PRESETS = {
    "smoke": TransitionPreset.like(
        NEIGHBOR_SIZES["smoke"], mlp_ratio=2, tokens=4096, grid={BASE: (8, 8, 1, (8, 6, 4)), "depth": (8, 8, 2, (8, 4))}
    ),
    "laptop": TransitionPreset.like(
        NEIGHBOR_SIZES["laptop"],
        mlp_ratio=4,
        tokens=2048,
        grid={
            BASE: (16, 16, 1, (16, 14, 12, 10, 8)),
            "points": (16, 64, 1, (16, 14, 12, 10, 8)),
            "dimension": (8, 16, 1, (8, 7, 6, 5, 4)),
            "depth": (16, 16, 2, (16, 12, 10, 8, 4)),
        },
    ),
    "paper": TransitionPreset.like(
        NEIGHBOR_SIZES["paper"],
        mlp_ratio=32,
        tokens=4096,
        grid={
            BASE: (64, 16, 1, (64, 60, 56, 52, 48, 40, 32)),
            "points": (64, 64, 1, (64, 60, 56, 52, 48, 40, 32)),
            "dimension": (32, 16, 1, (32, 30, 28, 26, 24, 20, 16)),
            "depth": (64, 16, 3, (64, 48, 40, 32, 16, 8, 4)),
        },
    ),
}


def cells(preset: TransitionPreset) -> list[Cell]:
    cells = []
    for moved, (dim, points, depth, ranks) in preset.grid.items():
        batch, mlp = preset.tokens // points, preset.mlp_ratio * dim
        sized = preset.replace(dim=dim, points=points, mlp=mlp, batch=batch)
        place = {"moved": moved, "dim": dim, "points": points, "depth": depth}
        cells += [
            Cell({**place, "rank": rank}, neighbor_run(sized, depth, 1, rank, seed))
            for rank in ranks
            for seed in range(preset.seeds)
        ]
    return cells


def threshold(curve: list[tuple[int, float]], level: float) -> float:
    """The largest rank at which the error is `level`, from (rank, error) pairs; NaN if it never is."""
    falling = sorted(curve, reverse=True)
    for (high, low_error), (low, high_error) in pairwise(falling):
        if low_error <= level < high_error:
            part = math.log(level / low_error) / math.log(high_error / low_error)
            return high - part * (high - low)
    return math.nan


def _curves(rows: list[Row], moved: str) -> dict[int, list[Row]]:
    """By seed, the rows of one curve, from full rank down."""
    curves: dict[int, list[Row]] = {}
    for row in sorted(cell(rows, moved=moved), key=lambda row: -row.cell["rank"]):
        curves.setdefault(row.seed, []).append(row)
    return curves


def _threshold(curve: list[Row]) -> float:
    errors = [(row.cell["rank"], row.metrics["error"]) for row in curve]
    return threshold(errors, curve[0].metrics["trivial_error"] / 2)


def _steepening(curve: list[Row]) -> float:
    """How much faster log error falls with each rank above the threshold than below it."""
    at, level = _threshold(curve), curve[0].metrics["trivial_error"] / 2
    (most, least), (few, large) = ((row.cell["rank"], row.metrics["error"]) for row in (curve[0], curve[-1]))
    if math.isnan(at) or not few < at < most:
        return math.nan
    return math.log(level / least) / (most - at) / (math.log(large / level) / (at - few))


def moves(rows: list[Row]) -> list[Comparison]:
    """Q15: the error drops above a threshold; more points and dimensions raise it, more layers lower it."""
    base = _curves(rows, BASE)
    keys = tuple(row.key for curve in base.values() for row in curve)
    slopes = [_steepening(curve) for curve in base.values()]
    fall = "fall of log error per rank"
    comparisons = [against(fall, "above the threshold rank", "below it", slopes, at_least=2.0, keys=keys)]
    for moved in ("points", "dimension", "depth"):
        other = _curves(rows, moved)
        seeds = sorted(base.keys() & other.keys())
        if not seeds:
            continue
        place = "dim" if moved == "dimension" else moved
        sizes = {curves[seeds[0]][0].cell[place]: curves for curves in (base, other)}
        large, small = max(sizes), min(sizes)
        pairs = [(sizes[large][seed], sizes[small][seed]) for seed in seeds]
        required = {"at_most": 1.0} if moved == "depth" else {"at_least": 1.0}
        comparisons.append(
            against(
                "threshold rank",
                f"{moved} {large}",
                f"{moved} {small}",
                [_threshold(one) / _threshold(two) for one, two in pairs],
                **required,
                keys=tuple(row.key for pair in pairs for curve in pair for row in curve),
            )
        )
    return comparisons


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured

    names = {}
    for moved, (dim, count, depth, _) in PRESETS[preset].grid.items():
        thresholds = tuple(_threshold(curve) for curve in _curves(rows, moved).values())
        at, low, high = interval(thresholds, LEVEL)
        name = f"{dim} dimensions, {count} points, {depth} layer{'s' if depth > 1 else ''}"
        names[moved] = name + (f": rank {at:.1f} ({low:.1f} to {high:.1f})" if math.isfinite(high) else "")
    shown = [
        Row(
            {"part": row.cell["rank"] / row.cell["dim"], "name": names[row.cell["moved"]]},
            row.seed,
            {"left": row.metrics["error"] / row.metrics["trivial_error"]},
            row.key,
        )
        for row in rows
    ]
    points = measured(shown, "part", "name", metric="left")
    ends = [point["x"] for point in points]
    for x in (min(ends), max(ends)):
        level: Mark = {
            "x": x,
            "y": 0.5,
            "series": "half the error of a constant predictor",
            "panel": "",
            "kind": "theory",
        }
        points.append(level)
    notes = [
        f"{PRESETS[preset].steps:,} steps at the published learning rate; a threshold is where a curve crosses one half"
    ]
    return curves(
        points, "Where the error drops", notes, "rank / dimension", "error / error of a constant predictor", log_x=False
    )


CLAIMS = (
    Claim(
        "Q15",
        "There is a threshold rank where the error drops; it moves with N, d and depth",
        "a question on Q, Fig. 1",
        "transition",
        moves,
        untestable="any falling curve crosses a threshold: a power law of the rank fits within 0.8 %",
    ),
)
STUDY = Study("transition", __doc__, PRESETS, cells, chart, CLAIMS)
