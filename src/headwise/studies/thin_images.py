"""Thin images (registered): fewer layers with more heads on images, heads against the MLP, and one layer alone.

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), table on ViT and
Section 3.3.
Claims: L5, L9, L10.
Task: classes of CIFAR-10, 32 × 32 pixels in patches of 4, by a vision transformer of width 64 with ViT's own
initialisation; 9,000 images, cropped and flipped, 24 times each.
Grid: base 8 layers × 4 heads of 16; thin 5 × 8 of 8; control 5 × 4 of 16. At 5 layers the MLP doubled instead, against
the paper's own doubling of heads in the same width (thin over control). One layer with heads of 16 added until its
parameters are the base's. Learning rates are chosen on validation, from a grid that grows until the best is inside.
Margins: L5: 2 % more errors. L9: no more errors with heads doubled than with the MLP doubled, nor than without either.
L10: one layer leaves 10 % more errors than the base at equal parameters.
Gates: the base beats logistic regression on the same pixels and images; five layers with the old heads are worse than
eight, else depth was not needed and nothing could be restored; rates are inside; validation did not rise again.
Looks: at 3 seeds (level 0.005) and at 6 (0.048).
Power: paired log ratios had an SD of 1.3 %, so 6 seeds see 2 % with a power of 0.95; one layer has 4.
Command: headwise study run thin-images --preset desktop --data images=cifar10.zip
"""

from headwise.ledger.claims import ERROR
from headwise.ledger.registration import Arm, Gates, Look, RateGrid, RegisteredClaim, Registration, Saving, Test
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.studies._recipes.registered import (
    CIFAR_IMAGES,
    CIFAR_LOGISTIC,
    beats,
    better,
    cifar,
    credit,
    keeps,
    registered_study,
    smaller,
)
from headwise.studies._recipes.thinner import as_large
from headwise.training.run import Recipe

TOKENS, BATCH, EPOCHS = 65, 64, 24
SEEDS = {"base": 6, "thin": 6, "control": 6, "MLP doubled": 6, "one layer": 4}
OPTIONS = ModelOptions(
    family="vit", norm="layer", norm_place="pre", residual=True, norm_eps=1e-6, mlp_kind="plain", activation="gelu",
    bias="all", positions="learned", qk_norm="none", logit_scale=False, output_scale=1.0, dropout=0.0, init="vit",
    embedding_norm=False, final_norm=True, head="classes", classes=10, image=32, patch=4, channels=3, whitened=False,
)  # fmt: skip
RECIPE = Recipe(
    optimizer="adamw", learning_rate=0.003, betas=(0.9, 0.95), weight_decay=0.3, schedule="cosine", warm_up=0.1,
    final_learning_rate=0.0, clip=1.0, batch=BATCH,
)  # fmt: skip
BASE = ModelShape.parse("w64-h4-L8")
SHAPES = {
    "base": str(BASE),
    "thin": "w64-h8-L5",
    "control": "w64-h4-L5",
    "MLP doubled": "w64-h4-L5-m512",
    "one layer": str(as_large(BASE, 1, OPTIONS)),
}


def arms() -> tuple[Arm, ...]:
    return tuple(
        Arm(
            variant=name, task={"name": "images", "side": 32, "patch": 4, "augment": "crop-flip"}, shape=shape,
            options=OPTIONS, recipe=RECIPE, steps=EPOCHS * CIFAR_IMAGES // BATCH, seeds=SEEDS[name],
            rate="like control" if name == "MLP doubled" else "",
        )
        for name, shape in SHAPES.items()
    )  # fmt: skip


ONE_LAYER_BREAKS = Test(
    name="one layer", variant="one layer", baseline="base, equal parameters", metric=ERROR,
    weights={"one layer": 1.0, "base": -1.0}, direction="at least", threshold=0.10,
)  # fmt: skip
DESKTOP = Registration(
    study="thin-images",
    claims=(
        RegisteredClaim(
            id="L5",
            claim="ViT: fewer layers with more heads keep accuracy with ≥ 25 % fewer parameters",
            source="L, table on ViT",
            family="L",
            tests=(keeps("thin", "base", 0.02, ERROR),),
            saving=Saving(variant="thin", baseline="base", part=0.25),
            also=(credit(metric=ERROR), better("thin", "control", "finer heads at equal parameters", ERROR)),
            gates=Gates(
                learned=(beats(CIFAR_LOGISTIC),), sensitive=("control", "base"), rates=("base", "thin", "control")
            ),
            supersedes="the control without the extra heads kept accuracy too, so nothing could have failed; two "
            "learning rates, 700 steps",
            restated="with a control that must be worse than the base, and 2 % more errors at most",
        ),
        RegisteredClaim(
            id="L9",
            claim="MLP width matters less than heads",
            source="L, Sec. 3.3",
            family="L",
            tests=(
                better("thin", "control", "heads doubled in the width gain something", ERROR),
                better("thin", "MLP doubled", "heads doubled against the MLP doubled", ERROR),
            ),
            also=(better("MLP doubled", "control", "the MLP doubled gains something", ERROR),),
            gates=Gates(learned=(beats(CIFAR_LOGISTIC, variant="control"),), rates=("thin", "control")),
            supersedes="it was judged in two layers after 700 steps, with two learning rates",
            restated="as the paper's own doubling of heads in the same width, not of heads added to it",
        ),
        RegisteredClaim(
            id="L10",
            claim="There is a minimum depth: below it accuracy breaks",
            source="L",
            family="L",
            tests=(ONE_LAYER_BREAKS,),
            gates=Gates(learned=(beats(CIFAR_LOGISTIC),), sensitive=("control", "base"), rates=("base", "one layer")),
            supersedes="in training as short as that depth was not needed, so accuracy could not break",
            restated="one layer against eight of equal parameters, where five with the old heads are worse than eight",
        ),
    ),
    arms=arms(),
    grid=RateGrid(first=(0.001, 0.002, 0.004, 0.008)),
    sources=(cifar(TOKENS),),
    looks=(Look(seeds=3, level=0.005), Look(seeds=6, level=0.048)),
    stopping="at 3 seeds if every claim is decided there, else at 6",
)
SMOKE = smaller(
    DESKTOP,
    {name: "w8-h2-L2" if name == "base" else f"w8-h{2 + number}-r4-L1" for number, name in enumerate(SHAPES)},
    task={"side": 8, "patch": 2},
    options={"image": 8, "patch": 2, "channels": 1},
)
STUDY = registered_study("thin-images", __doc__, DESKTOP, SMOKE)
