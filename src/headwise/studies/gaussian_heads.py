"""Gaussian heads: does the condition number of many concatenated Gaussian heads go to 1, as predicted?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), Theorem 3.2.
Claims: L1.
No runs: matrices of independent Gaussian entries are drawn, N tokens × D columns (heads × head size), and compared with
(√D + √N) / (√D − √N). What was drawn is in gaussian_heads.csv, so that the ledger need not load torch to be read; a
test draws it again. The theorem has no heads in it at fixed D; `block-conditioning` has real layers.
Command: headwise study run gaussian-heads --preset laptop (seconds)
"""

import csv
from functools import cache
from importlib.resources import files
from typing import Any

from headwise.ledger.claims import KAPPA, Claim, Comparison, against, agree
from headwise.ledger.study import Preset, Study
from headwise.store.rows import Cell, Row

TOKENS, HEAD_SIZE = 64, 16
HEADS = (8, 16, 64, 1024)
PRESETS = {"smoke": Preset(seeds=10), "laptop": Preset(seeds=10)}  # the least that are drawn


def cells(preset: Preset) -> list[Cell]:
    return []


def draw(heads: int) -> list[float]:
    """κ of so many heads side by side, seed by seed: a row of the table."""
    from headwise.theory.conditioning import gaussian_condition

    seeds = max(10, round(800 / heads))  # κ varies less as heads grow
    return [gaussian_condition(TOKENS, heads * HEAD_SIZE, seed) for seed in range(seeds)]


@cache
def drawn() -> dict[int, list[float]]:
    """The table: κ by the number of heads."""
    text = files("headwise.studies").joinpath("gaussian_heads.csv").read_text()
    return {int(heads): [float(one) for one in conditions] for heads, *conditions in csv.reader(text.splitlines())}


def towards_one(rows: list[Row]) -> list[Comparison]:
    """L1: within a tenth of the prediction either way, and within a fifth of 1 at the end."""
    from headwise.theory.gaussian import marchenko_pastur

    comparisons = []
    for heads in HEADS:
        measured, predicted = drawn()[heads], marchenko_pastur(TOKENS, heads * HEAD_SIZE)
        where = f"head dim {HEAD_SIZE}, {TOKENS} tokens"
        ratios = [one / predicted for one in measured]
        comparisons += agree(KAPPA, f"{heads} Gaussian heads", "the prediction", ratios, 0.9, where=where)
    most = HEADS[-1]
    return [*comparisons, against(KAPPA, f"{most} Gaussian heads", "κ = 1", drawn()[most], at_most=1.2)]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, across_seeds, curves
    from headwise.theory.gaussian import marchenko_pastur

    points: list[Mark] = []
    for heads, conditions in drawn().items():
        shared: Mark = {"x": heads, "series": "κ", "panel": f"{TOKENS} tokens, head size {HEAD_SIZE}"}
        points.append({**shared, "y": marchenko_pastur(TOKENS, heads * HEAD_SIZE), "kind": "theory"})
        points.append(across_seeds(conditions, heads, shared["series"], shared["panel"]))
    notes = ["independent Gaussian entries, nothing else; theory: (√D + √N) / (√D − √N), D = heads × head size"]
    return curves(points, "Gaussian heads side by side", notes, "heads", "condition number")


CLAIMS = (
    Claim(
        "L1",
        "κ of concatenated Gaussian heads → 1 as heads grow",
        "L, Thm 3.2",
        "gaussian-heads",
        towards_one,
        computed=True,
    ),
)
STUDY = Study("gaussian-heads", __doc__, PRESETS, cells, chart, CLAIMS)
