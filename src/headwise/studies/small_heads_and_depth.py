"""Small heads and depth (registered): do more layers make up for small heads on text?

Source: the note on what the rank paper means for nanochat, its caveats.
Claims: N7.
Task: the next byte of TinyStories, by a nanochat-style decoder of width 64, its logit scale learned and the same 4
dimensions of every head rotated.
Grid: 2, 4 and 8 layers × 4 heads of 16 and 16 heads of 4. What small heads cost is their log error over that of the
usual heads of the same depth; the claim is that it is less at 8 layers than at 2.
Gates: the usual heads beat a 5-gram at 8 layers and a 3-gram at 2; small heads cost something at 2 layers, else there
was nothing to make up for; rates are inside.
Power: 8 seeds at an SD of 0.6 to 1.3 % see a difference of costs of 0.8 to 1.6 %.
Command: headwise study run small-heads-and-depth --preset desktop --data text=tinystories.txt.xz
"""

from headwise.ledger.claims import BITS
from headwise.ledger.registration import Arm, Gates, RateGrid, RegisteredClaim, Registration, Test
from headwise.studies._recipes.registered import (
    FOUR_DIMENSIONS,
    MUON_RATES,
    STORIES_3GRAM,
    STORIES_5GRAM,
    TINYSTORIES,
    beats,
    registered_study,
    smaller,
    text_arm,
)

STEPS, SEEDS = 3000, 8
DEPTHS, HEADS = (2, 4, 8), {"heads of 16": 4, "heads of 4": 16}


def arms() -> tuple[Arm, ...]:
    return tuple(
        text_arm(name, f"w64-h{heads}-L{depth}", STEPS, SEEDS, FOUR_DIMENSIONS, stratum=f"{depth} layers")
        for depth in DEPTHS
        for name, heads in HEADS.items()
    )


def less_cost(deep: int, shallow: int) -> Test:
    usual, small = HEADS
    weights = {f"{deep} layers:{small}": 1.0, f"{deep} layers:{usual}": -1.0}
    weights |= {f"{shallow} layers:{small}": -1.0, f"{shallow} layers:{usual}": 1.0}
    return Test(
        name=f"cost of small heads at {deep} layers against {shallow}", variant=f"{small}, {deep} layers",
        baseline=f"{shallow} layers, each against {usual}", metric=BITS, weights=weights, direction="at most",
    )  # fmt: skip


DESKTOP = Registration(
    study="small-heads-and-depth",
    claims=(
        RegisteredClaim(
            id="N7",
            claim="Depth makes up for small heads on text",
            source="N, caveats",
            family="N",
            conditions=(FOUR_DIMENSIONS,),
            tests=(less_cost(8, 2),),
            also=(less_cost(4, 2), less_cost(8, 4)),
            gates=Gates(
                learned=(
                    beats(STORIES_5GRAM, variant="heads of 16", stratum="8 layers"),
                    beats(STORIES_3GRAM, variant="heads of 16", stratum="2 layers"),
                ),
                sensitive=("2 layers:heads of 4", "2 layers:heads of 16"),
                rates=tuple(HEADS),
            ),
        ),
    ),
    arms=arms(),
    grid=RateGrid(first=MUON_RATES),
    sources=(TINYSTORIES,),
)
SMOKE = smaller(DESKTOP, {one.name: f"w8-h{1 + place}-r4-L1" for place, one in enumerate(DESKTOP.arms)})
STUDY = registered_study("small-heads-and-depth", __doc__, DESKTOP, SMOKE)
