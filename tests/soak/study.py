"""A small grid to be killed in: runs of a few seconds.

Source: none. Claims: Z1.
"""

from headwise.ledger.claims import Claim, Variant, paired
from headwise.ledger.study import Preset, Study
from headwise.store.rows import Cell, cell
from headwise.tasks import load_task
from headwise.training.run import Recipe, Run


class Grid(Preset):
    """How long the runs are."""

    steps: int


PRESETS = {name: Grid(steps=250, seeds=4) for name in ("smoke", "laptop")}


def cells(preset):
    task = load_task({"name": "nearest-neighbor", "dim": 8, "points": 6})
    about = {"task": task.spec(), "options": task.default_options(), "recipe": Recipe(batch=16), "evaluations": 2}
    return [
        Cell({"heads": heads}, Run(shape=f"w8-h{heads}-m16", steps=preset.steps, seed=seed, **about))
        for heads in (1, 2, 4)
        for seed in range(preset.seeds)
    ]


def one_head_does(rows):
    return [paired(Variant("1 head", cell(rows, heads=1)), Variant("4 heads", cell(rows, heads=4)), at_most=1.0)]


def chart(rows, preset):
    return None  # it would take longer than the runs


STUDY = Study("soak", __doc__, PRESETS, cells, chart, (Claim("Z1", "One head does", "a soak", "soak", one_head_does),))
