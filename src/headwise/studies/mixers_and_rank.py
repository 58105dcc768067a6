"""Mixers and rank (registered): which mixers need heads of full rank to search, at equal parameters.

Source: our question on "Quality over Quantity in Attention Layers" (arXiv 2407.16153), whose theorems are of plain
attention.
Claims: Q22.
Task: the farthest of 16 points on the sphere in 16 dimensions, by the paper's encoder of one layer with a learned scale
of the logits, so that temperature does not move with rank.
Grid: 2 heads whose values fill the width, with queries and keys of full rank and of half; for each mixer that sees a
set: plain attention, talking heads, gated attention, sinks, differential attention, cross-covariance, channel groups
(whose values have the rank of their queries). Windows and squares ask where a point stands in a sequence or an image,
which a set does not say. The MLP takes or gives back what parameters differ, so that all have the same number to within
0.5 %. Learning rates are chosen on validation for each.
Margin: half the rank leaves at least twice the error.
Gates: full rank has at most a quarter of the best linear mixture's error, else what rank would be for was not learned;
rates are inside.
Power: below full rank errors differ between seeds by 0.2 %, at full rank by 1.3 %: 3 seeds see far less than a factor.
Command: headwise study run mixers-and-rank --preset desktop (about 10 minutes of one core)
"""

from headwise.ledger.claims import ERROR
from headwise.ledger.registration import Arm, Gates, Learned, RateGrid, RegisteredClaim, Registration, Test
from headwise.options import ModelOptions
from headwise.studies._recipes.registered import registered_study, smaller
from headwise.training.run import Recipe

DIM, POINTS, BATCH, STEPS, SEEDS = 16, 16, 128, 750, 3
MIXERS = {
    "plain attention": "attention",
    "talking heads": "talking",
    "gated attention": "gated",
    "sinks": "sinks",
    "differential attention": "differential",
    "cross-covariance": "xca",
    "channel groups": "channels",
}
CHANNELS = ("xca", "channels")
FULL, HALF = "full rank", "half rank"
RANKS = {FULL: DIM, HALF: DIM // 2}
# MLPs with which parameters are those of plain attention at full rank and an MLP of the usual width
MLPS = {
    "attention": {FULL: 64, HALF: 80},
    "talking": {FULL: 64, HALF: 80},
    "gated": {FULL: 56, HALF: 72},
    "sinks": {FULL: 64, HALF: 80},
    "differential": {FULL: 62, HALF: 80},
    "xca": {FULL: 48, HALF: 80},
    "channels": {FULL: 48, HALF: 81},
}
# A quarter of the best linear mixture's error: `headwise tasks nearest-neighbor,dim=16,points=16`
MIXTURE = ("a quarter of the best linear mixture", 0.76873 / 4)
RECIPE = Recipe(
    optimizer="adamw", learning_rate=0.01, betas=(0.9, 0.95), weight_decay=0.0, schedule="cosine", warm_up=0.3,
    final_learning_rate=0.0, clip=0.0, batch=BATCH,
)  # fmt: skip


def options(mixer: str) -> ModelOptions:
    """Of the paper's encoder; channels that look at channels have no logits of tokens to scale."""
    return ModelOptions(
        family="encoder", norm="unit", norm_place="post", residual=True, norm_eps=1e-6, mlp_kind="plain",
        activation="relu", bias="all", positions="none", qk_norm="none", logit_scale=mixer not in CHANNELS,
        output_scale=1.0, dropout=0.0, init="torch", embedding_norm=False, final_norm=False, head="none", mixer=mixer,
    )  # fmt: skip


def shape(variant: str, mixer: str) -> str:
    values = "" if mixer in CHANNELS else f"-v{DIM // 2}"
    return f"w{DIM}-h2-r{RANKS[variant]}{values}-L1-m{MLPS[mixer][variant]}"


DESKTOP = Registration(
    study="mixers-and-rank",
    claims=(
        RegisteredClaim(
            id="Q22",
            claim="Whatever mixes tokens, search needs full rank: half of it leaves at least twice the error",
            source="a question on Q, Fig. 1",
            family="Q",
            conditions=tuple(MIXERS),
            tests=(
                Test(
                    name="half the rank", variant=HALF, baseline=FULL, metric=ERROR, direction="at least",
                    weights={HALF: 1.0, FULL: -1.0}, threshold=1.0,
                ),
            ),
            gates=Gates(
                learned=(Learned(variant=FULL, baseline=MIXTURE[0], value=MIXTURE[1]),), rates=(FULL, HALF)
            ),
        ),
    ),
    arms=tuple(
        Arm(
            variant=variant, condition=name, options=options(mixer), recipe=RECIPE, steps=STEPS, seeds=SEEDS,
            task={"name": "nearest-neighbor", "dim": DIM, "points": POINTS}, shape=shape(variant, mixer),
        )
        for name, mixer in MIXERS.items()
        for variant in RANKS
    ),
    grid=RateGrid(first=(0.016, 0.032, 0.064), seeds=(1000,)),
)  # fmt: skip
SMOKE = smaller(DESKTOP, {})
STUDY = registered_study("mixers-and-rank", __doc__, DESKTOP, SMOKE)
