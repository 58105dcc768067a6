"""Thin stories (registered): fewer layers with more heads on stories, crossed with what rank is confounded with.

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), GPT on stories.
Claims: L6.
Task: the next byte of TinyStories, by a nanochat-style decoder of width 64 with nanochat's own initialisation.
Grid: base 6 layers × 4 heads of 16; thin 4 × 8 of 8; control 4 × 4 of 16. Five conditions: positions {rotary, learned}
× logit scale {fixed, learned}, and rotary on the same 4 dimensions at every rank. In two of them also heads of 16
added to 4 layers until the parameters are the base's. Every variant's learning rate is chosen on validation, in each
condition, from a grid that grows until the best is inside.
Optimiser: Muon, nanochat's own, 2,000 steps. Pilots: bits per byte of the base 1.489 with learned positions, 1.430 with
rotary ones on 4 dimensions; a 5-gram has 1.540; the control is worse by 1.0 and 4.4 %. With AdamW four layers had 1.61
after 3,000 steps.
Margin: 1 % more bits per byte; gates: the base beats a 5-gram, the control is worse than the base, rates are inside.
Looks: at 4 seeds (level 0.005) and at 8 (0.048).
Power: paired log ratios have an SD of 0.6 to 1.3 %, so 8 seeds see 1 % with a power of 0.9 or more per condition.
Command: headwise study run thin-stories --preset desktop --data text=tinystories.txt.xz
"""

from headwise.ledger.registration import Arm, Gates, Look, RateGrid, RegisteredClaim, Registration, Saving
from headwise.shape import ModelShape
from headwise.studies._recipes.registered import (
    CONDITIONS,
    FOUR_DIMENSIONS,
    MUON_RATES,
    STORIES_5GRAM,
    TINYSTORIES,
    beats,
    better,
    credit,
    decoder,
    keeps,
    registered_study,
    smaller,
    text_arm,
)
from headwise.studies._recipes.thinner import as_large

SEEDS, STEPS = 8, 2000
SHAPES = {"base": "w64-h4-L6", "thin": "w64-h8-L4", "control": "w64-h4-L4"}
ADDED = ("rotary, learned scale", FOUR_DIMENSIONS)
ADDED_SHAPE = str(as_large(ModelShape.parse(SHAPES["base"]), 4, decoder()))


def arms() -> tuple[Arm, ...]:
    usual = [text_arm(name, shape, STEPS, SEEDS, at) for at in CONDITIONS for name, shape in SHAPES.items()]
    added = [text_arm("heads added", ADDED_SHAPE, STEPS, 5, at, rate="like control") for at in ADDED]
    return (*usual, *added)


DESKTOP = Registration(
    study="thin-stories",
    claims=(
        RegisteredClaim(
            id="L6",
            claim="A GPT with two thirds of the layers and twice the heads keeps its loss on stories",
            source="L, stories",
            family="L",
            conditions=tuple(CONDITIONS),
            tests=(keeps("thin", "base", 0.01),),
            saving=Saving(variant="thin", baseline="base", part=0.25),
            also=(
                credit(),
                better("thin", "control", "finer heads at equal parameters"),
                better("heads added", "base", "heads added at equal parameters", conditions=ADDED),
            ),
            gates=Gates(
                learned=(beats(STORIES_5GRAM),), sensitive=("control", "base"), rates=("base", "thin", "control")
            ),
            supersedes="rank was confounded with rotary frequencies and logit temperature, on source code, in 300 "
            "steps with two learning rates",
            restated="on stories; it must hold under every combination of positions and logit scale",
        ),
    ),
    arms=arms(),
    grid=RateGrid(first=MUON_RATES),
    sources=(TINYSTORIES,),
    looks=(Look(seeds=4, level=0.005), Look(seeds=8, level=0.048)),
    stopping="at 4 seeds if the claim is decided there, else at 8",
)
SMOKE = smaller(
    DESKTOP,
    {"base": "w16-h2-L2", "thin": "w16-h4-L1", "control": "w16-h2-L1", "heads added": "w16-h3-r8-L1"},
)
STUDY = registered_study("thin-stories", __doc__, DESKTOP, SMOKE)
