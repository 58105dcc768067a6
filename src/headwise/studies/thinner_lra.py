"""Thinner models of long sequences: do more heads make up for fewer layers on Long-Range Arena?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802).
Claims: L8.
Tasks: ListOps, generated, expressions of up to 32 symbols; in the paper preset at its published lengths, with
Pathfinder, the arena's texts and its images. Pairs of papers are published as files only, which no preset can name.
Grid: a third of the layers goes and heads double in the same width (the paper's pair, scaled down); the control has the
fewer layers without the new heads, since only a difference from it would be due to heads; and, the MLP as it was, heads
of the base's size added until the fewer layers have the base's parameters again. Each variant of each task has its own
learning rate, chosen on validation with a seed that is not judged.
Margin: "keeps" is tested as equivalence, at most 5 % more errors than the base on each task, by a base that has learned
something: it makes at most 65 % of the errors of always giving the most common answer. A linear classifier of an
expression's symbols, which knows nothing of their order, makes 66 % (headwise tasks listops --baselines: 0.58 of 0.88);
in a first version of the preset, 450 steps of 32, all variants made 71 %, so that their equality said nothing. Control
and equal parameters are shown, not judged: the claim is about the thin model.
Power: in that first version the ratio of base and thin differed between its five seeds by 0.5 %; if it differed by 2 %,
four times as much, five seeds would still see a ratio of 1.04 at the level of two comparisons.
Open: the claim is judged on ListOps alone. Pathfinder does not fit: of 8 × 8 pixels with one dash per path, a pilot's
error was 0.39 after 150 steps and 0.24 after 300, still falling fast, so that a run's end depends on when it began to
learn; and 12 × 12 pixels with two dashes take 1,500 steps of 64 pictures, by their FLOPs some 40 minutes on two cores
for these variants and seeds. The paper preset takes about 10²⁰ FLOPs, 180 hours of a GPU that does 150 TFLOP/s, of
which texts are 27, images 54 and Pathfinder 96.
Command: headwise study run thinner-lra --preset laptop (about 5 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, beats_no_skill, paired
from headwise.ledger.study import Preset, Study
from headwise.options import preset as options_preset
from headwise.spec import Spec
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.thinner import labelled
from headwise.training.run import Recipe, Run

MARGIN, LEARNED = 0.05, 1 / 0.65
LISTOPS = {"vocab": 16, "classes": 10}
TEXTS = {"vocab": 259, "classes": 2}


class LongTask(Spec):
    """A task, what its model must know of it, and its training."""

    task: dict[str, Any]
    facts: dict[str, int]
    batch: int
    steps: int


class ThinnerLongPreset(Preset):
    """Shapes of the variants, and the tasks, each by name."""

    arms: dict[str, str]
    tasks: dict[str, LongTask]


SHORT = LongTask(task={"name": "listops"}, facts=LISTOPS | {"context": 32}, batch=64, steps=700)
PRESETS = {
    "smoke": ThinnerLongPreset(
        arms={"base": "w8-h2-L2", "thin": "w8-h4-L1", "control": "w8-h2-L1", "as large": "w8-h8-r4-L1"},
        tasks={
            "ListOps": SHORT.replace(batch=256, steps=3),
            "text": LongTask(task={"name": "lra", "length": 64}, facts=TEXTS | {"context": 64}, batch=64, steps=3),
        },
        rates=(0.003,),
    ),
    "laptop": ThinnerLongPreset(
        arms={"base": "w32-h4-L3", "thin": "w32-h8-L2", "control": "w32-h4-L2", "as large": "w32-h10-r8-L2"},
        tasks={"ListOps": SHORT},
        rates=(0.003, 0.01),
        seeds=5,
    ),
    "paper": ThinnerLongPreset(
        arms={"base": "w512-h8-L6", "thin": "w512-h16-L4", "control": "w512-h8-L4", "as large": "w512-h20-r64-L4"},
        tasks={
            "ListOps": LongTask(
                task={"name": "listops", "shortest": 501, "longest": 1999, "depth": 10, "arguments": 10},
                facts=LISTOPS | {"context": 1999},
                batch=32,
                steps=5000,
            ),
            "Pathfinder": LongTask(
                task={"name": "pathfinder", "side": 32, "dashes": 14, "levels": 256},
                facts={"vocab": 256, "classes": 2, "context": 1024},
                batch=256,
                steps=62_500,
            ),
            "text": LongTask(
                task={"name": "lra", "part": "text", "length": 4000, "source": "stanfordnlp/imdb"},
                facts=TEXTS | {"context": 4000},
                batch=32,
                steps=20_000,
            ),
            "image": LongTask(
                task={"name": "lra", "part": "image", "source": "uoft-cs/cifar10"},
                facts={"vocab": 259, "classes": 10, "context": 1025},
                batch=256,
                steps=35_000,
            ),
        },
        rates=(0.0003, 0.001, 0.003),
    ),
}


def cells(preset: ThinnerLongPreset) -> list[Cell]:
    return [
        Cell({"task": name, "arm": variant, "shape": shape}, _run(used, shape, seed))
        for name, used in preset.tasks.items()
        for variant, shape in preset.arms.items()
        for seed in range(preset.seeds)
    ]


def _run(used: LongTask, shape: str, seed: int) -> Run:
    """One kind of model for every task: a BERT with norms before each part, rotary positions and no pooler."""
    bare = {"norm_place": "pre", "final_norm": True, "positions": "rotary", "segments": 0, "pooler": False}
    return Run(
        task=used.task,
        shape=shape,
        options=options_preset("bert", init="unit", head="classes", **bare, **used.facts),
        recipe=Recipe(warm_up=0.1, batch=used.batch, clip=1.0),
        steps=used.steps,
        seed=seed,
        evaluations=2,
    )


def keeps_on_long_range(rows: list[Row]) -> list[Comparison]:
    """L8: on every task the base has learned something, and the thin model makes no more errors."""
    comparisons = []
    for task in dict.fromkeys(row.cell["task"] for row in rows):
        base, thin = (labelled(name, cell(rows, task=task, arm=name)) for name in ("base", "thin"))
        comparisons += [
            beats_no_skill(base, at_most=1 / LEARNED, where=task),
            paired(thin, base, at_most=1 + MARGIN, where=task),
        ]
    return comparisons


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import by_parameters, curves

    shapes = ", ".join(f"{variant} {shape}" for variant, shape in PRESETS[preset].arms.items())
    notes = [shapes, PRESETS[preset].tuning]
    title = "Fewer layers, more heads on long sequences"
    return curves(by_parameters(rows), title, notes, "parameters", "error", log_x=False)


CLAIMS = (
    Claim(
        "L8", "On Long-Range Arena (on a laptop: ListOps) fewer layers with more heads keep the accuracy",
        "L, experiments", "thinner-lra", keeps_on_long_range,
        untestable="ListOps in short sequences; the thin model without extra heads does as well, so nothing could fail",
    ),
)  # fmt: skip
STUDY = Study("thinner-lra", __doc__, PRESETS, cells, chart, CLAIMS)
