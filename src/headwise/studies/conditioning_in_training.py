"""Conditioning in training: do more heads keep a lower condition number while a model learns?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), Section 3.
Claims: L3.
Task: classes of images by a vision transformer, and the next byte of text by a nanochat-style decoder, but with learned
positions (under rotary ones a text that begins with two equal bytes makes κ infinite, whatever the heads).
Grid: every number of heads at a fixed width (heads × size = width) and at a fixed head size. κ of the heads' outputs
side by side, of the block's output, and of the block with its residual, at the beginning (a run of no steps with the
same weights) and through training; in the first seed, on images and where heads are compared, also κ of the Jacobian,
with and without the residual. κ is the geometric mean over layers. One learning rate for all: losses are not compared.
Claim: in the middle and at the end of training, at a fixed width and on both tasks, κ of the heads' outputs is larger
with 1 head than with a few, and larger with a few than with the most; what it was at the beginning is said beside it.
With 1 head a matrix may be singular to working precision: a κ above 2²³ counts as that, which is to 1 head's advantage.
The block with its residual and the Jacobian are shown, not judged: the theorem is about the heads' outputs.
Power: in pilots (60 steps, seeds 100 to 102) the ratio of κ with 8 heads to that with 32 differed between seeds by 6 to
10 % on text and 24 % on images, so that ten seeds, at the level of eight comparisons, see a ratio of 1.12 on text and
of 1.3 on images. The pilots' own were 1.30 and 1.31; those of 1 head to 8 were 200 and more.
Command: headwise study run conditioning-in-training --preset laptop --data images=PLACE (about 8 minutes on two cores)
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import geometric_mean
from typing import Any

from headwise.ledger.claims import KAPPA, Claim, Comparison, Variant, paired
from headwise.ledger.study import Preset, Study
from headwise.shape import AttentionShape, ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.images import CIFAR, IMAGENET, ImageTraining, vit_run
from headwise.studies._recipes.statistics import HEADS_KAPPA, LARGEST, kappa
from headwise.studies._recipes.text import TextTraining, text_run
from headwise.training.run import ProbeName, Run

TRAINING_PROBES: tuple[ProbeName, ...] = (HEADS_KAPPA, "block-condition", "residual-block-condition")
JACOBIANS: tuple[ProbeName, ...] = ("jacobian-condition", "residual-jacobian-condition")
STAGES = {"at the beginning": 0.0, "in the middle": 0.5, "at the end": 1.0}  # as parts of the steps


class TrainingPreset(Preset):
    """Models of one width and depth on both tasks; `shown` seeds of the places that are not compared."""

    width: int
    depth: int
    heads: tuple[int, ...]
    size: int
    jacobians: bool
    evaluations: int
    shown: int
    images: ImageTraining
    text: TextTraining


PRESETS = {
    "smoke": TrainingPreset(
        width=8, depth=1, heads=(1, 2), size=4, jacobians=True, evaluations=2, seeds=2, shown=1,
        images=ImageTraining(
            side=8, patch=4, channels=1, classes=10, augment="none", optimizer="adamw", batch=64, steps=4
        ),
        text=TextTraining(context=4, batch=128, steps=4),
    ),
    "laptop": TrainingPreset(
        width=64, depth=2, heads=(1, 2, 4, 8, 16, 32), size=8, jacobians=True, evaluations=4, seeds=10, shown=2,
        data=CIFAR,
        images=ImageTraining(
            side=12, patch=4, channels=3, classes=10, augment="flip", optimizer="adamw", batch=32, steps=300
        ),
        text=TextTraining(context=16, batch=32, steps=200),
    ),
    "paper": TrainingPreset(
        width=768, depth=12, heads=(1, 2, 4, 8, 16, 32), size=64, jacobians=False, evaluations=20, seeds=5, shown=2,
        data=IMAGENET | {"text": "TinyStories, as a text file"},
        images=ImageTraining(
            side=224, patch=16, channels=3, classes=1000, augment="full", optimizer="adamw", batch=4096, steps=93_835
        ),
        text=TextTraining(context=512, batch=64, steps=100_000),
    ),
}  # fmt: skip


def compared(counts: Sequence[int]) -> list[int]:
    """Of all numbers of heads, those that are judged: the least, a few, the most."""
    return sorted({counts[place] for place in (0, len(counts) // 2, -1)}) if counts else []


def cells(preset: TrainingPreset) -> list[Cell]:
    """Places that are compared have all the seeds; those that are only shown have a few."""
    width = preset.width
    shapes = [("fixed width", heads, AttentionShape(width=width, heads=heads).qk_rank) for heads in preset.heads]
    shapes += [("fixed head size", heads, preset.size) for heads in preset.heads]
    cells = []
    for task in ("images", "text"):
        for axis, heads, size in shapes:
            place = {"task": task, "axis": axis, "heads": heads}
            judged = axis == "fixed width" and heads in compared(preset.heads)
            for seed in range(preset.seeds if judged else preset.shown):
                run = _run(preset, task, heads, size, seed)
                cells.append(Cell({**place, "part": "beginning"}, run.replace(steps=0)))
                cells.append(Cell({**place, "part": "training"}, run))
    return cells


def _run(preset: TrainingPreset, task: str, heads: int, size: int, seed: int) -> Run:
    shape = ModelShape(width=preset.width, heads=heads, qk_rank=size, depth=preset.depth)
    run = vit_run(preset.images, shape, seed) if task == "images" else _text_run(preset.text, shape, seed)
    few = seed == 0 and heads in compared(preset.heads) and heads * size == preset.width
    probes = TRAINING_PROBES + JACOBIANS if preset.jacobians and task == "images" and few else TRAINING_PROBES
    return run.replace(evaluations=preset.evaluations, probes=probes)


def _text_run(training: TextTraining, shape: ModelShape, seed: int) -> Run:
    """With learned positions: rotary ones leave values alone, so that the first bytes, where equal, have equal rows."""
    return text_run(training, shape, seed, positions="learned", context=training.context)


def staged(rows: list[Row], probe: str = HEADS_KAPPA, most: float = math.inf) -> list[Row]:
    """A row for each stage of a run, with its κ; the beginning is a run of its own."""
    stages = []
    for row in rows:
        for stage, part in STAGES.items():
            value = kappa(row, probe, part, part, most)
            if (part == 0) == (row.cell["part"] == "beginning") and not math.isnan(value):
                stages.append(Row({**row.cell, "stage": stage}, row.seed, {"κ": value}, row.key))
    return stages


def stays_true(rows: list[Row]) -> list[Comparison]:
    """L3: κ is lower with more heads, in the middle and at the end of training."""
    known = cell(staged(rows, most=LARGEST), axis="fixed width")
    counts = sorted({row.cell["heads"] for row in known})
    comparisons = []
    for task in ("images", "text"):
        for fewer, more in pairwise(compared(counts)):
            names = [f"{count} head{'s' if count > 1 else ''}" for count in (more, fewer)]
            first, *later = (
                paired(
                    *(
                        Variant(name, cell(known, task=task, stage=stage, heads=count))
                        for name, count in zip(names, (more, fewer), strict=True)
                    ),
                    metric=KAPPA,
                    field="κ",
                    where=f"{task}, {stage}",
                    at_most=1.0,
                )
                for stage in STAGES
            )
            if first.ratios:
                began = (("at the beginning", geometric_mean(first.ratios)),)
                comparisons += [replace(comparison, beside=began) for comparison in later]
    return comparisons


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import curves, measured

    names = {
        HEADS_KAPPA: "heads' outputs",
        "block-condition": "block's output",
        "residual-block-condition": "with residual",
    }
    names |= dict(zip(JACOBIANS, ("Jacobian", "Jacobian with residual"), strict=True))
    placed = [
        replace(row, cell={**row.cell, "panel": f"{row.cell['task']}, {row.cell['axis']}: {name}"})
        for probe, name in names.items()
        for row in staged(rows, probe)
        if math.isfinite(row.metrics["κ"]) and (probe in TRAINING_PROBES or row.cell["axis"] == "fixed width")
    ]
    panels = list(dict.fromkeys(row.cell["panel"] for row in placed))
    points = measured(placed, "heads", "stage", "panel", "κ")
    points.sort(key=lambda point: (panels.index(point["panel"]), list(STAGES).index(point["series"])))
    used = PRESETS[preset]
    note = f"width {used.width}, {used.depth} layers; fixed head size {used.size}; mean over layers; "
    note += f"{used.images.steps:,} steps on images, {used.text.steps:,} on text; singular ones left out"
    return curves(points, "Conditioning through training", [note], "heads", "condition number")


CLAIMS = (
    Claim(
        "L3",
        "More heads, lower κ: it stays true through training",
        "L, figure; reviewers of L",
        "conditioning-in-training",
        stays_true,
        caveat="learned positions began too quiet, which may change the order of head counts",
    ),
)
STUDY = Study("conditioning-in-training", __doc__, PRESETS, cells, chart, CLAIMS)
