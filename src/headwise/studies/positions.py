"""Positions: do positional encodings help heads of low rank, on a task where places mean nothing?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Figure 3.
Claims: Q10, Q19.
Task: as rank-cliff, with learned encodings: none, added to the points, or concatenated as d more columns. Concatenation
also doubles the width, and with it the attention, so there is a control: as many columns, of zeros.
Grid: encoding × rank × depth. Published learning rate, but on the laptop rank-cliff's, whose runs without encodings
these are.
Power: at half the rank errors differ between seeds by 0.2 %, so that a ratio of 1.02 would be seen.
Command: headwise study run positions --preset laptop (3 minutes on two cores, after rank-cliff)
"""

from collections.abc import Iterator
from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, paired
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.neighbors import LONGER, NEIGHBOR_SIZES, NeighborPreset, neighbor_run

ENCODINGS = ("none", "added", "concatenated", "zeros")
NAMES = ("no encodings", "added encodings", "concatenated encodings", "as many columns of zeros")
PUBLISHED = {1: (0.4308 / 0.3217, 0.4091 / 0.4308), 3: (0.03566 / 0.000119, 0.06067 / 0.03566)}  # by depth, rank 32


class PositionsPreset(NeighborPreset):
    """Ranks by depth: (depth, ranks)."""

    multiplier: int
    grid: tuple[tuple[int, tuple[int, ...]], ...]


PRESETS = {
    "smoke": PositionsPreset.like(NEIGHBOR_SIZES["smoke"], multiplier=1, grid=((1, (4,)), (2, (4,)))),
    "laptop": PositionsPreset.like(NEIGHBOR_SIZES["laptop"], multiplier=1, grid=((1, (16, 8)), (2, (8,)))),
    "paper": PositionsPreset.like(
        LONGER, multiplier=8, grid=tuple((depth, (64, 32, 16, 8, 4, 2, 1)) for depth in (1, 3))
    ),
}


def cells(preset: PositionsPreset) -> list[Cell]:
    return [
        Cell(
            {"dim": preset.dim, "encoding": encoding, "rank": rank, "depth": depth},
            neighbor_run(preset, depth, preset.multiplier, rank, seed, task=_task(encoding, preset.dim)),
        )
        for depth, ranks in preset.grid
        for rank in ranks
        for encoding in ENCODINGS
        for seed in range(preset.seeds)
    ]


def _task(encoding: str, dim: int) -> dict[str, Any]:
    if encoding == "zeros":
        return {"notes": dim}
    return {} if encoding == "none" else {"positions": encoding}


def encodings(rows: list[Row]) -> list[Comparison]:
    """Q10, as the paper words it: at half the rank concatenated ones lower the error, added ones do not."""
    comparisons = []
    for depth, where, (none, added, concatenated, _) in _at_half_rank(rows):
        helps, harms = PUBLISHED.get(depth, (None, None))
        comparisons += [
            paired(concatenated, none, at_most=1 / 1.1, published=helps, where=where),
            paired(added, none, at_least=0.9, published=harms, where=where),
        ]
    return comparisons


def more_than_width(rows: list[Row]) -> list[Comparison]:
    """Q19: concatenated ones lower the error by more than as many columns of zeros do."""
    return [
        paired(concatenated, zeros, at_most=1 / 1.1, where=where)
        for _, where, (_, _, concatenated, zeros) in _at_half_rank(rows)
    ]


def _at_half_rank(rows: list[Row]) -> Iterator[tuple[int, str, list[Variant]]]:
    """Of each depth: every encoding at half the rank."""
    half = int(rows[0].cell["dim"]) // 2
    for depth in sorted({row.cell["depth"] for row in rows}):
        variants = [
            Variant(name, cell(rows, depth=depth, rank=half, encoding=encoding))
            for encoding, name in zip(ENCODINGS, NAMES, strict=True)
        ]
        yield depth, f"rank {half}, {depth} layer{'s' if depth > 1 else ''}", variants


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured
    from headwise.ledger.published import published_values

    used = PRESETS[preset]
    points = measured(rows, "rank", "encoding", "depth")
    for value in published_values("positions") if preset == "paper" else []:
        encoding = "concatenated" if value["concatenated"] else "added" if value["added"] else "none"
        said: Mark = {"x": value["rank"], "y": value["error"], "kind": "published"}
        points.append({**said, "series": encoding, "panel": f"{value['depth']:g}"})
    for point in points:
        point["panel"] = f"{point['panel']} layer{'s' if point['panel'] != '1' else ''}"
    notes = [f"{used.setting}; zeros: columns, no encoding"]
    return curves(points, "Positional encodings", notes, "rank of each head", "test error (squared distance)")


CLAIMS = (
    Claim(
        "Q10",
        "Concatenated positional encodings help low rank; additive ones do not",
        "Q, Fig. 3",
        "positions",
        encodings,
        caveat="restated as the paper words it: that zeros do as well is a claim of its own, Q19",
    ),
    Claim(
        "Q19",
        "What concatenated encodings give is more than the width of as many zeros",
        "our control of Q10",
        "positions",
        more_than_width,
    ),
)
STUDY = Study("positions", __doc__, PRESETS, cells, chart, CLAIMS)
