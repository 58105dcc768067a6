"""Conditioning and speed: does a lower condition number make a model learn faster, and are heads the only way to it?

Source: the open questions of Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv
2505.20802), and its reviewers'.
Claims: L12, L13.
Task: classes of images by a vision transformer. κ is that of the heads' outputs side by side, the geometric mean over
layers: at initialisation (a run of no steps with the same weights), and over all evaluations of training; values above
2²³, which float32 cannot tell from infinity, count as 2²³.
Grid: heads × depth at a fixed width; and at one shape, the plain one, three interventions that leave it as it is: a
norm of queries and keys, orthogonal matrices of attention at the beginning (the drawn ones with equal singular values),
and tokens whitened before the first block (κ of the tokens is 1, the class token as long as the others). Each variant
has its own learning rate, chosen on validation with a seed that is not judged.
Steps to target: when validation's cross-entropy first falls, on straight lines between evaluations, to what the plain
variant of the same seed has after 60 % of its steps. A run that never does counts with all its steps.
Claims: L12 has two parts, and needs both. Over a seed's runs the logarithm of the steps is regressed on log κ, log
heads and log depth; the factor in steps that doubling κ makes is above 1, with κ at the beginning and with κ in
training. And each intervention that lowers κ in training (in every seed) lowers the steps to target. L13: the least κ
of an intervention is no more than 10 % above the least κ of any number of heads at the plain variant's depth, at the
beginning and in training.
Power: in pilots (75 steps, seeds 100 to 102) the ratio of steps to target of two variants differed between seeds by
14 %, so that five seeds, at the level of five comparisons, see a factor of 1.33; that of two κ in training, by 3 to
19 %.
Limits: whitening also removes the information in the tokens' singular values; the other two interventions do not, but
lower κ by less.
Command: headwise study run conditioning-and-speed --preset laptop --data images=PLACE (about 5 minutes on two cores)
"""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import geometric_mean
from typing import Any

from headwise.ledger.claims import STEPS, Claim, Comparison, Variant, against, paired
from headwise.ledger.study import Study
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.images import CIFAR, IMAGENET, ImagePreset, vit_run
from headwise.studies._recipes.statistics import HEADS_KAPPA, LARGEST, kappa
from headwise.training.run import Run

REACHED_BY, AS_WELL = 0.6, 1 / 1.1
BEGINNING, TRAINING = "κ at the beginning", "κ in training"
INTERVENTIONS: dict[str, dict[str, Any]] = {
    "query/key norm": {"qk_norm": "rms-plain"},
    "orthogonal": {"init": "orthogonal"},
    "whitened tokens": {"whitened": True},
}


class SpeedPreset(ImagePreset):
    """The plain shape as (layers, heads), and the heads that are tried by depth."""

    plain: tuple[int, int]
    grid: dict[int, tuple[int, ...]]
    evaluations: int


PRESETS = {
    "smoke": SpeedPreset(
        width=8, plain=(1, 2), grid={1: (1, 2, 4), 2: (2,)}, side=8, patch=4, channels=1, classes=10, augment="none",
        optimizer="adamw", batch=64, steps=4, evaluations=4, rates=(0.003,), seeds=2,
    ),
    "laptop": SpeedPreset(
        width=32, plain=(2, 4), grid={1: (1, 4, 16), 2: (1, 2, 4, 8, 16)}, side=16, patch=4, channels=3, classes=10,
        augment="flip", optimizer="adamw", batch=64, steps=240, evaluations=20, rates=(0.003, 0.01), seeds=5,
        data=CIFAR,
    ),
    "paper": SpeedPreset(
        width=768, plain=(12, 12), grid={8: (12, 16, 24), 12: (1, 4, 12, 16, 24)}, side=224, patch=16, channels=3,
        classes=1000, augment="full", optimizer="adamw", batch=4096, steps=93_835, evaluations=100,
        rates=(0.001, 0.003), data=IMAGENET,
    ),
}  # fmt: skip


def cells(preset: SpeedPreset) -> list[Cell]:
    variants = [("heads", depth, heads) for depth, counts in preset.grid.items() for heads in counts]
    variants += [(kind, *preset.plain) for kind in ("plain", *INTERVENTIONS)]
    variants.remove(("heads", *preset.plain))
    cells = []
    for kind, depth, heads in variants:
        name = f"{depth} layer{'s' * (depth > 1)}, {heads} head{'s' * (heads > 1)}" + (
            f", {kind}" if kind in INTERVENTIONS else ""
        )
        place = {"arm": name, "kind": kind, "depth": depth, "heads": heads}
        for seed in range(preset.seeds):
            run = _run(preset, kind, depth, heads, seed)
            cells.append(Cell({**place, "part": "beginning"}, run.replace(steps=0)))
            cells.append(Cell({**place, "part": "training"}, run))
    return cells


def _run(preset: SpeedPreset, kind: str, depth: int, heads: int, seed: int) -> Run:
    run = vit_run(preset, ModelShape(width=preset.width, heads=heads, depth=depth), seed)
    options = run.options.replace(**INTERVENTIONS.get(kind, {}))
    return run.replace(options=options, evaluations=preset.evaluations, probes=(HEADS_KAPPA,))


def steps_to(row: Row, target: float) -> float:
    """When the cross-entropy on validation first falls to a value; all steps where it never does."""
    curve = _curve(row)
    if curve[0][1] <= target:
        return curve[0][0]
    for (before, high), (after, low) in pairwise(curve):
        if low <= target:
            return before + (after - before) * (high - target) / (high - low)
    return curve[-1][0]


def _curve(row: Row) -> list[tuple[int, float]]:
    return [(step, value) for step, name, value in row.history if name == "cross_entropy"]


def target_of(plain: Row) -> float:
    """Cross-entropy of the plain variant after 60 % of its steps, at the nearest evaluation."""
    curve = _curve(plain)
    wanted = REACHED_BY * curve[-1][0]
    return min(curve, key=lambda point: abs(point[0] - wanted))[1]


def measured_rows(rows: list[Row]) -> list[Row]:
    """A row for each trained run whose seed has a plain variant and whose beginning was probed: its κ and its steps."""
    begun = {(row.cell["arm"], row.seed): kappa(row, HEADS_KAPPA, most=LARGEST) for row in cell(rows, part="beginning")}
    targets = {row.seed: target_of(row) for row in cell(rows, kind="plain", part="training")}
    trained = []
    for row in cell(rows, part="training"):
        if (row.cell["arm"], row.seed) in begun and row.seed in targets:
            kappas = {
                BEGINNING: begun[row.cell["arm"], row.seed],
                TRAINING: kappa(row, HEADS_KAPPA, 0.0, 1.0, LARGEST),
            }
            trained.append(replace(row, metrics={**kappas, "steps": steps_to(row, targets[row.seed])}))
    return trained


def faster(rows: list[Row]) -> list[Comparison]:
    """L12: steps grow with κ over all runs, and fall with each intervention that lowers κ."""
    known = measured_rows(rows)
    plain = Variant("plain", cell(known, kind="plain"))
    comparisons = [_per_doubling(known, metric) for metric in (BEGINNING, TRAINING)]
    changed = [Variant(f"{kind} (lowers κ)", cell(known, kind=kind)) for kind in INTERVENTIONS]
    lowered = [variant for variant in changed if _lowers(plain, variant)]
    if not lowered:
        return [
            *comparisons,
            against(STEPS, "an intervention that lowers κ in every seed", plain.name, (), at_most=1.0),
        ]
    return [*comparisons, *(paired(variant, plain, metric=STEPS, field="steps", at_most=1.0) for variant in lowered)]


def _lowers(plain: Variant, changed: Variant) -> bool:
    ratios = paired(changed, plain, field=TRAINING, at_most=1.0).ratios
    return bool(ratios) and min(ratios) > 1


def _per_doubling(rows: list[Row], metric: str) -> Comparison:
    """The factor in steps to target for twice the κ at equal heads and depth: one regression per seed."""
    import numpy as np

    factors: list[float] = []
    keys: list[str] = []
    for seed in sorted({row.seed for row in rows}):
        used = [row for row in rows if row.seed == seed]
        known = [(1.0, math.log(r.metrics[metric]), math.log(r.cell["heads"]), math.log(r.cell["depth"])) for r in used]
        steps = [math.log(row.metrics["steps"]) for row in used]
        if np.linalg.matrix_rank(known) == 4 and len(used) > 4:
            factors.append(2 ** float(np.linalg.lstsq(np.array(known), np.array(steps))[0][1]))
            keys += [row.key for row in used]
    where, used_keys = "equal heads and depth, regression", tuple(keys)
    return against(STEPS, f"twice the {metric}", "once", factors, at_least=1.0, where=where, keys=used_keys)


def as_well(rows: list[Row]) -> list[Comparison]:
    """L13: the least κ that an intervention gives against the least of any number of heads, at the plain depth."""
    known = measured_rows(rows)
    depths = {row.cell["depth"] for row in cell(known, kind="plain")}
    near = [row for row in known if row.cell["depth"] in depths]
    comparisons = []
    for metric in (BEGINNING, TRAINING):
        heads = _least([row for row in near if row.cell["kind"] not in INTERVENTIONS], metric)
        other = _least([row for row in near if row.cell["kind"] in INTERVENTIONS], metric)
        if heads and other:
            variant, baseline = (Variant(rows[0].cell["arm"], rows) for rows in (other, heads))
            comparisons.append(paired(variant, baseline, metric=metric, field=metric, at_most=1 / AS_WELL))
    return comparisons


def _least(rows: list[Row], metric: str) -> list[Row]:
    """The rows of the variant where a metric is the least."""
    return min(_variants(rows), key=lambda seeds: _typical(seeds, metric), default=[])


def _variants(rows: list[Row]) -> list[list[Row]]:
    return [cell(rows, arm=variant) for variant in dict.fromkeys(row.cell["arm"] for row in rows)]


def _typical(rows: list[Row], metric: str) -> float:
    return geometric_mean(row.metrics[metric] for row in rows)


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, across_seeds, curves

    points: list[Mark] = []
    for metric in (BEGINNING, TRAINING):
        for seeds in _variants(measured_rows(rows)):
            place, steps = seeds[0].cell, [row.metrics["steps"] for row in seeds]
            series = place["arm"] if place["kind"] in INTERVENTIONS else f"other heads, depth {place['depth']}"
            points.append(across_seeds(steps, _typical(seeds, metric), series, metric))
    used = PRESETS[preset]
    note = f"vision transformers of width {used.width}; target: the plain variant's cross-entropy on validation after "
    note += f"{REACHED_BY:.0%} of {used.steps:,} steps; {used.tuning}"
    return curves(points, "Conditioning and speed", [note], "κ of the heads' outputs", "steps to target", log_y=False)


CLAIMS = (
    Claim(
        "L12",
        "Better conditioning causes faster convergence",
        "open question in L; reviewers of L",
        "conditioning-and-speed",
        faster,
    ),
    Claim(
        "L13",
        "Other interventions condition attention as well as heads do",
        "open question in L",
        "conditioning-and-speed",
        as_well,
    ),
)
STUDY = Study("conditioning-and-speed", __doc__, PRESETS, cells, chart, CLAIMS)
