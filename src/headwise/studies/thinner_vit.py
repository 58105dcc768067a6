"""Thinner ViT: do more heads make up for fewer layers on images, and how few layers may there be?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802).
Claims: L5, L10.
Task: classes of images by a vision transformer, 16 patches an image; the laptop preset is for CIFAR-10.
Grid: the paper's pair scaled down (a third of the layers goes, heads double in the same width); as its control the
same layers without the new heads, since only a difference from it would be due to heads; and, the MLP as it was, heads
of the base's size added until a model of fewer layers, down to one, has the base's parameters again (within 1 %). Each
arm has its own learning rate, chosen on validation with a seed that is not judged.
Margins: "keeps" is tested as equivalence, at most 3 % more errors than the base, with at least 25 % of its parameters
saved. Whether the control keeps them as well is shown, not judged: the claim is about the thin model. Accuracy breaks
where one layer leaves 10 % more errors than the deeper arm, at equal parameters, that validation prefers.
Optimiser: Muon on the laptop, where it left fewer errors after 600 steps than AdamW after 1,000; the paper's is AdamW.
Power: in pilots (base and thin, seeds 101 to 103, one rate) the ratio of their errors differed between seeds by 1.5 %,
so that five seeds see one of 1.024 at the level of two comparisons. One pilot each: a layer less without new heads left
4 % more errors, and one layer of equal parameters 3 % fewer: training as short as this favours shallow models.
Command: headwise study run thinner-vit --preset laptop --data images=PLACE (about 5 minutes on two cores)
"""

import csv
from collections.abc import Iterator
from importlib.resources import files
from statistics import mean
from typing import Any

from headwise.cost import parameters
from headwise.ledger.claims import Claim, Comparison, Variant, paired, parameters_saved
from headwise.ledger.study import Study
from headwise.options import ModelOptions
from headwise.options import preset as options_preset
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.training.run import Recipe, Run

MARGIN, SAVED, BREAKS = 0.03, 0.25, 1.1
CIFAR = {"images": "CIFAR-10, as its own files or as a zip or folder of images"}
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "width": 8, "base": (2, 2), "thin": ((1, 4),), "equal": (1,),
        "side": 8, "patch": 2, "channels": 1, "classes": 10, "augment": "crop-flip",
        "optimizer": "muon", "batch": 64, "steps": 3, "rates": (0.003,), "seeds": 3,
    },
    "laptop": {
        "width": 32, "base": (3, 4), "thin": ((2, 8),), "equal": (2, 1),
        "side": 16, "patch": 4, "channels": 3, "classes": 10, "augment": "crop-flip",
        "optimizer": "muon", "batch": 64, "steps": 700, "rates": (0.01, 0.02), "seeds": 5, "data": CIFAR,
    },
    "paper": {
        "width": 768, "base": (12, 12), "thin": ((8, 16), (7, 24)), "equal": (8, 4, 2, 1),
        "side": 224, "patch": 16, "channels": 3, "classes": 1000, "augment": "full",
        "optimizer": "adamw", "batch": 4096, "steps": 93_835, "seeds": 3,
        "data": {"images": "ImageNet-1k, as a folder of images"},
    },
}  # fmt: skip


def vit_run(preset: dict[str, Any], shape: ModelShape, seed: int) -> Run:
    """A vision transformer by the paper's recipe, where no rates are tried; its neighbour trains the same."""
    return Run(
        task={"name": "images", **{name: preset[name] for name in ("side", "patch", "augment")}},
        shape=str(shape),
        options=vit_options(preset),
        recipe=Recipe(
            optimizer=preset["optimizer"],
            learning_rate=0.003,
            batch=preset["batch"],
            warm_up=0.1,
            clip=1.0,
            weight_decay=0.3,
        ),
        steps=preset["steps"],
        seed=seed,
        evaluations=4,
    )


def vit_options(preset: dict[str, Any]) -> ModelOptions:
    facts = {name: preset[name] for name in ("patch", "channels", "classes")}
    return options_preset("vit", image=preset["side"], **facts)


def arms(preset: dict[str, Any]) -> Iterator[tuple[str, ModelShape]]:
    """Every arm's kind and shape: the base, the paper's thin ones, their controls, and those of equal parameters."""
    width, (depth, heads) = preset["width"], preset["base"]
    base = ModelShape(width=width, heads=heads, depth=depth)
    yield "base", base
    for layers, more in preset["thin"]:
        yield "thin", ModelShape(width=width, heads=more, depth=layers)
    for layers in dict.fromkeys(layers for layers, _ in preset["thin"]):
        yield "control", ModelShape(width=width, heads=heads, depth=layers)
    for layers in preset["equal"]:
        yield "equal parameters", as_large(base, layers, vit_options(preset))


def as_large(base: ModelShape, depth: int, options: ModelOptions) -> ModelShape:
    """So many layers with heads of the base's size, as many as come nearest to the base's parameters; its MLP stays."""

    def shaped(heads: int) -> ModelShape:
        return ModelShape(width=base.width, heads=heads, qk_rank=size, depth=depth, mlp=base.mlps[0])

    size = base.layers[0].qk_rank
    wanted, one, two = (parameters(shape, options)["total"] for shape in (base, shaped(1), shaped(2)))
    return shaped(1 + round((wanted - one) / (two - one)))


def cells(preset: dict[str, Any]) -> list[Cell]:
    found = []
    for kind, shape in arms(preset):
        layer = shape.layers[0]
        told = f"{kind}: {shape.depth} × {layer.heads} heads of {layer.qk_rank}"
        place = {"arm": told, "kind": kind, "depth": shape.depth, "heads": layer.heads}
        found += [Cell(place, vit_run(preset, shape, seed)) for seed in range(preset["seeds"])]
    return found


def keeps_accuracy(rows: list[Row]) -> list[Comparison]:
    """L5: each thin arm has at most 3 % more errors than the base, and at most three quarters of its parameters."""
    base = cell(rows, kind="base")
    found = []
    for name in dict.fromkeys(row.cell["arm"] for row in cell(rows, kind="thin") if base):
        variant, baseline = Variant(name, cell(rows, arm=name)), Variant(base[0].cell["arm"], base)
        found += [paired(variant, baseline, at_most=1 + MARGIN), parameters_saved(variant, baseline, SAVED)]
    return found


def least_depth(rows: list[Row]) -> list[Comparison]:
    """L10: at equal parameters, errors of one layer against those of the deeper variant that validation prefers."""
    one = cell(rows, kind="equal parameters", depth=1)
    deeper: dict[str, list[Row]] = {}
    for row in (*cell(rows, kind="base"), *cell(rows, kind="equal parameters")):
        if row.cell["depth"] > 1:
            deeper.setdefault(row.cell["arm"], []).append(row)
    if not one or not deeper:
        return []
    best = min(deeper, key=lambda arm: mean(row.metrics["validation_error"] for row in deeper[arm]))
    return [paired(Variant(one[0].cell["arm"], one), Variant(best, deeper[best]), at_least=BREAKS)]


def published() -> list[dict[str, str]]:
    """The paper's own pairs, before and after: parameters in millions, accuracy in percent."""
    text = files("headwise.ledger.published").joinpath("leaner.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def trained(preset: dict[str, Any]) -> str:
    """What a chart says of how its models were trained."""
    rate = "learning rate of each arm chosen on validation" if "rates" in preset else "the published learning rate"
    return f"{preset['steps']:,} steps of {preset['batch']:,} images of {preset['side']} × {preset['side']}; {rate}"


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import frontier

    used = PRESETS[preset]
    notes = [
        f"ViT of width {used['width']}, {trained(used)}",
        "control: the thin arm's layers without its heads; equal parameters: heads of the base's size, its MLP",
    ]
    if preset == "paper":
        told = "{model} {parameters}→{thin_parameters} M, {accuracy}→{thin_accuracy} %"
        foreign = [told.format(**pair) for pair in published() if pair["expressible"] == "no"]
        notes.append(f"published, of layers that headwise has not: {'; '.join(foreign)}")
    return frontier(rows, "arm", "More heads, fewer layers, on images", notes, "share of images missed")


CONTROL = "the thin model without the extra heads does as well, so the heads are not shown to be the reason"
CLAIMS = (
    Claim("L5", "ViT: fewer layers with more heads keep accuracy with ≥ 25 % fewer parameters", "L, table on ViT",
          "thinner-vit", keeps_accuracy, caveat=CONTROL),
    Claim("L10", "There is a minimum depth: below it accuracy breaks", "L", "thinner-vit", least_depth),
)  # fmt: skip
STUDY = Study("thinner-vit", __doc__, PRESETS, cells, chart, CLAIMS)
