"""Trained otherwise (registered): does the trade of depth for heads depend on how a model begins and is trained?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), limitations.
Claims: L18.
Task: the next byte of TinyStories, by a decoder of width 64, its logit scale learned and the same 4 dimensions of every
head rotated.
Grid: base 6 layers × 4 heads, thin 4 × 8, control 4 × 4, each with nanochat's and GPT-2's initialisation × AdamW and
Muon × weight decay of 0 and 0.1.
Margin: 1 % more bits per byte, whatever it is trained by.
Gates: bases beat a 5-gram, controls are worse than bases, rates are inside.
Power: 8 seeds see 1 % with a power of 0.9 or more per setting; all eight must clear.
Command: headwise study run trained-otherwise --preset desktop --data text=tinystories.txt.xz
"""

from itertools import product

from headwise.ledger.registration import Arm, Gates, RateGrid, RegisteredClaim, Registration, Saving
from headwise.studies._recipes.registered import (
    STORIES_5GRAM,
    TINYSTORIES,
    adamw,
    beats,
    credit,
    decoder,
    keeps,
    one_turn,
    registered_study,
    smaller,
)

STEPS, SEEDS = 3000, 8
SHAPES = {"base": "w64-h4-p4-L6", "thin": "w64-h8-p4-L4", "control": "w64-h4-p4-L4"}
SETTINGS = {
    f"{init}, {optimizer}, weight decay {decay:g}": (init, optimizer, decay)
    for init, optimizer, decay in product(("nanochat", "gpt2"), ("adamw", "muon"), (0.0, 0.1))
}


def arms() -> tuple[Arm, ...]:
    return tuple(
        Arm(
            variant=name, condition=at, task={"name": "text", "context": 64}, shape=shape,
            options=decoder(logit_scale=True, init=init, rope_base=one_turn(64)), steps=STEPS, seeds=SEEDS,
            recipe=adamw(32).replace(optimizer=optimizer, weight_decay=decay, momentum=0.95),
        )
        for at, (init, optimizer, decay) in SETTINGS.items()
        for name, shape in SHAPES.items()
    )  # fmt: skip


DESKTOP = Registration(
    study="trained-otherwise",
    claims=(
        RegisteredClaim(
            id="L18",
            claim="The trade of depth for heads does not depend on initialisation, optimiser or regularisation",
            source="L, limitations",
            family="L",
            conditions=tuple(SETTINGS),
            tests=(keeps("thin", "base", 0.01),),
            saving=Saving(variant="thin", baseline="base", part=0.25),
            also=(credit(),),
            gates=Gates(
                learned=(beats(STORIES_5GRAM),), sensitive=("control", "base"), rates=("base", "thin", "control")
            ),
        ),
    ),
    arms=arms(),
    grid=RateGrid(first=(0.004, 0.008, 0.016, 0.032)),
    sources=(TINYSTORIES,),
)
SMOKE = smaller(DESKTOP, {"base": "w16-h2-L2", "thin": "w16-h4-L1", "control": "w16-h2-L1"})
STUDY = registered_study("trained-otherwise", __doc__, DESKTOP, SMOKE)
