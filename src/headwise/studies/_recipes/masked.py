"""What registered studies of masked bytes share: the reviews they read, a BERT of bytes, its variants, their gates."""

from typing import Any

from headwise.ledger.claims import MASKED_BITS
from headwise.ledger.registration import Arm, Data, Gates, RateGrid, Saving, Test
from headwise.options import ModelOptions
from headwise.studies._recipes.registered import adamw, beats, better, credit, keeps, one_turn

CONTEXT, BATCH, MARGIN = 64, 32, 0.02
TASK = {"name": "text", "objective": "masked", "context": CONTEXT}
REVIEWS = Data(
    task="text",
    about="10,000 reviews of IMDB and their README, unpacked into a folder (13.2 MB)",
    digest="0ddbc6bcc9a93d34",
    train=11_630_497,
)
# From both sides of masked bytes: `headwise tasks text:FOLDER,objective=masked,context=64 --baselines`
REVIEWS_3GRAM = ("3-gram of both sides, Kneser-Ney", 2.40736)


def bert(**changes: Any) -> ModelOptions:
    """A BERT of bytes with BERT's own initialisation; norms before each part, which depth needs, and rotary positions,
    which it learns from in fewer steps; nothing is left to a default."""
    written: dict[str, Any] = {
        "family": "bert", "norm": "layer", "norm_place": "pre", "residual": True, "norm_eps": 1e-12,
        "mlp_kind": "plain", "activation": "gelu", "bias": "all", "positions": "rotary", "rope_base": one_turn(CONTEXT),
        "qk_norm": "none", "logit_scale": False, "output_scale": 1.0, "dropout": 0.0, "init": "bert",
        "vocab": 257, "context": CONTEXT, "segments": 0, "embedding_norm": True, "final_norm": True, "tied": True,
        "pooler": False, "head": "mlm",
    }  # fmt: skip
    return ModelOptions(**{**written, **changes})


def masked_arms(shapes: dict[str, str], steps: int, seeds: int) -> tuple[Arm, ...]:
    return tuple(
        Arm(
            variant=name, task=TASK, shape=shape, options=bert(), recipe=adamw(BATCH).replace(clip=1.0), steps=steps,
            seeds=seeds,
        )
        for name, shape in shapes.items()
    )  # fmt: skip


TESTS = (keeps("thin", "base", MARGIN, MASKED_BITS),)
ALSO: tuple[Test, ...] = (
    credit(metric=MASKED_BITS),
    better("thin", "control", "finer heads at equal parameters", MASKED_BITS),
)
SAVING = Saving(variant="thin", baseline="base", part=0.25)
GATES = Gates(learned=(beats(REVIEWS_3GRAM),), sensitive=("control", "base"), rates=("base", "thin", "control"))
GRID = RateGrid(first=(0.002, 0.004, 0.008, 0.016))
