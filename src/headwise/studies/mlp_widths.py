"""MLP widths (registered): the trade of depth for heads at narrow and wide MLPs, and heads against a narrow MLP.

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), Section 3.3 and
its stated break: where the MLP is narrow, its width may rival heads.
Claims: L16, L17.
Task: the next byte of TinyStories, by a nanochat-style decoder of width 64, its logit scale learned and the same 4
dimensions of every head rotated.
Grid: MLPs of 2, 4 and 8 times the width, each with base 6 layers × 4 heads, thin 4 × 8 and control 4 × 4; and 4 layers
with an MLP as wide as the model: as it is, with the heads doubled in the width, with the MLP doubled.
Margins: L16: 1 % more bits per byte, at every MLP width. L17: the MLP doubled leaves no more than heads doubled.
Gates: bases beat a 5-gram, controls are worse than bases, rates are inside.
Power: 8 seeds see 1 % with a power of 0.9 or more per width, at an SD of 0.6 to 1.3 % of paired log ratios.
Command: headwise study run mlp-widths --preset desktop --data text=tinystories.txt.xz
"""

from headwise.ledger.registration import Arm, Gates, RateGrid, RegisteredClaim, Registration, Saving
from headwise.studies._recipes.registered import (
    MUON_RATES,
    STORIES_5GRAM,
    TINYSTORIES,
    beats,
    better,
    credit,
    decoder,
    keeps,
    muon,
    one_turn,
    registered_study,
    smaller,
)

WIDTH, STEPS, SEEDS = 64, 3000, 8
PAIR = {"base": "h4-p4-L6", "thin": "h8-p4-L4", "control": "h4-p4-L4"}
RATIOS = {f"MLP {ratio} × width": ratio for ratio in (2, 4, 8)}
NARROW = "MLP as wide as the model"
AGAINST = {
    "usual": f"h4-p4-L4-m{WIDTH}",
    "heads doubled": f"h8-p4-L4-m{WIDTH}",
    "MLP doubled": f"h4-p4-L4-m{2 * WIDTH}",
}


def arm(variant: str, letters: str, condition: str) -> Arm:
    return Arm(
        variant=variant, condition=condition, task={"name": "text", "context": 64}, shape=f"w{WIDTH}-{letters}",
        options=decoder(logit_scale=True, rope_base=one_turn(64)), recipe=muon(32), steps=STEPS, seeds=SEEDS,
    )  # fmt: skip


DESKTOP = Registration(
    study="mlp-widths",
    claims=(
        RegisteredClaim(
            id="L16",
            claim="The trade of depth for heads holds with MLPs of 2 to 8 times the width",
            source="L, a next check",
            family="L",
            conditions=tuple(RATIOS),
            tests=(keeps("thin", "base", 0.01),),
            saving=Saving(variant="thin", baseline="base", part=0.25),
            also=(credit(),),
            gates=Gates(
                learned=(beats(STORIES_5GRAM),), sensitive=("control", "base"), rates=("base", "thin", "control")
            ),
        ),
        RegisteredClaim(
            id="L17",
            claim="With narrow MLPs, MLP width rivals heads",
            source="L, break condition",
            family="L",
            conditions=(NARROW,),
            tests=(better("MLP doubled", "heads doubled"),),
            also=(better("MLP doubled", "usual"), better("heads doubled", "usual")),
            gates=Gates(learned=(beats(STORIES_5GRAM, variant="usual"),), rates=tuple(AGAINST)),
        ),
    ),
    arms=(
        *(
            arm(name, f"{letters}-m{ratio * WIDTH}", at)
            for at, ratio in RATIOS.items()
            for name, letters in PAIR.items()
        ),
        *(arm(name, letters, NARROW) for name, letters in AGAINST.items()),
    ),
    grid=RateGrid(first=MUON_RATES),
    sources=(TINYSTORIES,),
)
SMOKE = smaller(DESKTOP, {one.name: f"w8-h{1 + place}-r4-L1" for place, one in enumerate(DESKTOP.arms)})
STUDY = registered_study("mlp-widths", __doc__, DESKTOP, SMOKE)
