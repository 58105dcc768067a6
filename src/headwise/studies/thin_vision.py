"""Thin vision (registered): fewer layers with more heads in XCiT, TNT and DaViT, on images.

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), table on XCiT, TNT
and DaViT.
Claims: L22.
Task: classes of CIFAR-10, 32 × 32 pixels in patches of 8, with 9,000 images, cropped and flipped, 4 times each; models
with the stems, local parts, inner transformers and heads of their authors, and their initialisation.
Grid: base 6 layers; thin 2 with twice the heads of half the rank; control 2 with the old heads. DaViT has pairs of
layers, of squares and of channels, all in one stage, so that depth is its only difference. Learning rates are chosen on
validation for each.
Margin: 2 % more errors, for each of the three kinds of model.
Gates: the base beats logistic regression on the same pixels and images; two layers with the old heads are worse than
six, else depth was not needed and nothing could be restored; rates are inside.
Power: paired log ratios had an SD of 1.3 % on ViT: 4 seeds see 3 %.
Command: headwise study run thin-vision --preset desktop --data images=cifar10.zip (about 15 minutes of one core)
"""

from headwise.ledger.claims import ERROR
from headwise.ledger.registration import Arm, Gates, RateGrid, RegisteredClaim, Registration, Saving
from headwise.options import ModelOptions
from headwise.studies._recipes.registered import (
    CIFAR_IMAGES,
    CIFAR_LOGISTIC,
    beats,
    better,
    cifar,
    credit,
    keeps,
    muon,
    registered_study,
    smaller,
)

BATCH, EPOCHS, PATCHES, SEEDS = 64, 3, 16, 3
SHAPES = {"base": "w32-h2-L6", "thin": "w32-h4-L2", "control": "w32-h2-L2"}
OPTIONS = ModelOptions(
    family="vit", norm="layer", norm_place="pre", residual=True, norm_eps=1e-6, mlp_kind="plain", activation="gelu",
    bias="all", positions="none", qk_norm="none", logit_scale=False, output_scale=1.0, dropout=0.0, init="vit",
    embedding_norm=False, final_norm=True, head="classes", classes=10, image=32, patch=8, channels=3, whitened=False,
)  # fmt: skip
KINDS = {
    "XCiT": OPTIONS.replace(style="xcit", mixer="xca"),
    "TNT": OPTIONS.replace(style="tnt", mixer="attention", positions="learned", inner="w8-h2", norm_eps=1e-5),
    "DaViT": OPTIONS.replace(style="davit", mixer="squares-4,channels", norm_eps=1e-5),
}
RECIPE = muon(BATCH).replace(weight_decay=0.3, clip=1.0)
DESKTOP = Registration(
    study="thin-vision",
    claims=(
        RegisteredClaim(
            id="L22",
            claim="XCiT, TNT and DaViT: fewer layers with more heads keep accuracy with ≥ 25 % fewer parameters",
            source="L, table on XCiT, TNT and DaViT",
            family="L",
            conditions=tuple(KINDS),
            tests=(keeps("thin", "base", 0.02, ERROR),),
            saving=Saving(variant="thin", baseline="base", part=0.25),
            also=(credit(metric=ERROR), better("thin", "control", "finer heads at equal parameters", ERROR)),
            gates=Gates(learned=(beats(CIFAR_LOGISTIC),), sensitive=("control", "base"), rates=tuple(SHAPES)),
        ),
    ),
    arms=tuple(
        Arm(
            variant=name, condition=kind, shape=shape, options=options, recipe=RECIPE, seeds=SEEDS,
            task={"name": "images", "side": 32, "patch": 8, "augment": "crop-flip"},
            steps=EPOCHS * CIFAR_IMAGES // BATCH,
        )
        for kind, options in KINDS.items()
        for name, shape in SHAPES.items()
    ),
    grid=RateGrid(first=(0.005, 0.01, 0.02), seeds=(1000,)),
    sources=(cifar(PATCHES),),
)  # fmt: skip
SMOKE = smaller(
    DESKTOP,
    {name: f"w16-h2-L{2 if name == 'base' else 1}" for name in SHAPES},
    task={"side": 8, "patch": 4},
    options={"image": 8, "patch": 4, "channels": 1},
)
STUDY = registered_study("thin-vision", __doc__, DESKTOP, SMOKE)
