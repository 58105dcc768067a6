"""Compensation: what does attention do in the deeper models of low rank that recover some of the error?

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Figure 1; a question it
leaves.
Claims: Q16.
Task: rank-cliff's models with probes: sharpness and entropy of attention, effective rank of QKᵀ, layer by layer.
Grid: rank × depth. Published learning rate.
Power: probes of layers over each other differ between two pilot seeds by 1 %, so that a ratio of 1.05 is seen. What the
pilots showed (sharpness 1.3, entropy 1.6 from layer to layer) is how the directions to be judged were chosen.
Command: headwise study run compensation --preset laptop (2 minutes on two cores)
"""

from collections.abc import Callable
from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, against, paired
from headwise.ledger.study import Study
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.neighbors import HEAD_PROBES, NEIGHBOR_SIZES, NeighborPreset, neighbor_run


class CompensationPreset(NeighborPreset):
    """Depths and ranks, one module of heads each."""

    depths: tuple[int, ...]
    ranks: tuple[int, ...]


PRESETS = {
    "smoke": CompensationPreset.like(NEIGHBOR_SIZES["smoke"], depths=(1, 2), ranks=(8, 4)),
    "laptop": CompensationPreset.like(NEIGHBOR_SIZES["laptop"], depths=(1, 2), ranks=(16, 8, 4)),
    "paper": CompensationPreset.like(NEIGHBOR_SIZES["paper"], depths=(1, 3, 5), ranks=(64, 32, 16, 8)),
}


def cells(preset: CompensationPreset) -> list[Cell]:
    return [
        Cell(
            {"dim": preset.dim, "rank": rank, "depth": depth},
            neighbor_run(preset, depth, 1, rank, seed, probes=HEAD_PROBES),
        )
        for depth in preset.depths
        for rank in preset.ranks
        for seed in range(preset.seeds)
    ]


def by_depth(rows: list[Row]) -> list[Comparison]:
    """Q16: depth helps half the rank, its first layer spreads attention and its last picks, more than at full rank."""
    half = int(rows[0].cell["dim"]) // 2
    deep = min((row.cell["depth"] for row in rows if row.cell["depth"] > 1), default=2)
    shallow, deeper = (cell(rows, rank=half, depth=depth) for depth in (1, deep))
    full = cell(rows, rank=2 * half, depth=deep)
    changes = {
        "sharpness of the last layer vs the first": _over("sharpness", -1, 0),
        "entropy of the first layer vs the last": _over("attention-entropy", 0, -1),
    }
    helps = paired(
        Variant(f"{deep} layers", deeper), Variant("1 layer", shallow), where=f"rank {half}", at_most=1 / 1.1
    )
    return [helps, *(_stronger(name, change, deeper, full) for name, change in changes.items())]


def _stronger(metric: str, change: Callable[[Row], float], half: list[Row], full: list[Row]) -> Comparison:
    """What changes from layer to layer at half the rank, over the same at full rank."""
    changes = [{row.seed: (change(row), row.key) for row in rows} for rows in (half, full)]
    seeds = sorted(changes[0].keys() & changes[1].keys())
    ratios = [changes[0][seed][0] / changes[1][seed][0] for seed in seeds]
    keys = tuple(side[seed][1] for seed in seeds for side in changes)
    lower, higher = (f"rank {rows[0].cell['rank']}" if rows else "none" for rows in (half, full))
    return against(metric, lower, higher, ratios, at_least=1.0, keys=keys)


def _layers(row: Row, probe: str) -> list[float]:
    return [row.metrics[f"{probe}.layer{layer}"] for layer in range(row.cell["depth"])]


def _over(probe: str, one: int, other: int) -> Callable[[Row], float]:
    """A probe in one layer over the same in another."""
    return lambda row: _layers(row, probe)[one] / _layers(row, probe)[other]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured

    used = PRESETS[preset]
    names = {"sharpness": "sharpness", "attention-entropy": "entropy (nats)", "qk-rank": "effective rank of QKᵀ"}
    named = [Row({**row.cell, "model": _model(row)}, row.seed, row.metrics, row.key) for row in rows]
    points: list[Mark] = []
    for probe, panel in names.items():
        for layer in range(max(used.depths)):
            values = measured(named, "dim", "model", metric=f"{probe}.layer{layer}")
            points += [{**point, "x": layer + 1, "panel": panel} for point in values]
    notes = [f"{used.setting}; means over heads"]
    return curves(points, "What attention does, layer by layer", notes, "layer", "value", log_x=False)


def _model(row: Row) -> str:
    depth = row.cell["depth"]
    return f"rank {row.cell['rank']}, {depth} layer{'s' if depth > 1 else ''}"


CLAIMS = (
    Claim(
        "Q16",
        "Trained attention (sharpness, entropy, effective rank) shows how depth compensates for rank",
        "a question on Q, Fig. 1",
        "compensation",
        by_depth,
        restated="the pattern must be stronger at half the rank than at full rank; before, it had no contrast",
    ),
)
STUDY = Study("compensation", __doc__, PRESETS, cells, chart, CLAIMS)
