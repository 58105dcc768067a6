"""Value rank (registered): the rank of values alone, and against that of queries and keys.

Source: the note on what the rank paper means for nanochat, point 2; of the values' rank alone nothing is published.
Claims: N2, N6.
Task: the next byte of TinyStories, by a nanochat-style decoder (4 layers of 4 heads, width 64), its logit scale learned
and the same 4 dimensions rotated at every rank, so that neither temperature nor frequencies move with the rank.
Grid: rank 16 for both; values of 8 and 32, and queries and keys of 8 and 32, with what that saves or costs refilled
into the MLP (equal parameters); values of 8 and 32 with the MLP as it was. Learning rates are chosen on validation.
Gates: the base beats a 5-gram (pilot: 1.478 and 1.492 bits per byte against 1.540), rates are inside their grids.
Power: 6 seeds at an SD of 0.6 to 1.3 % see differences of 0.7 to 1.4 %.
Command: headwise study run value-rank --preset desktop --data text=tinystories.txt.xz
"""

from headwise.ledger.claims import BITS
from headwise.ledger.registration import Arm, Gates, RateGrid, RegisteredClaim, Registration, Test
from headwise.studies._recipes.registered import (
    FOUR_DIMENSIONS,
    MUON_RATES,
    STORIES_5GRAM,
    TINYSTORIES,
    beats,
    better,
    decoder,
    refilled,
    registered_study,
    smaller,
    text_arm,
)

STEPS, SEEDS, BASE = 2000, 6, "w64-h4-L4"
RANKS = {"value rank halved": "r16-v8", "value rank doubled": "r16-v32"}
BOTH = {"query/key rank halved": "r8-v16", "query/key rank doubled": "r32-v16"}


def arms() -> tuple[Arm, ...]:
    shapes = {name: f"w64-h4-{ranks}-L4" for name, ranks in (RANKS | BOTH).items()}
    found = [text_arm("base", BASE, STEPS, SEEDS, FOUR_DIMENSIONS)]
    for name, shape in shapes.items():
        found.append(text_arm(name, refilled(shape, BASE, decoder()), STEPS, SEEDS, FOUR_DIMENSIONS))
        if name in RANKS:
            alone = f"{name}, MLP as it was"
            found.append(text_arm(alone, shape, STEPS, SEEDS, FOUR_DIMENSIONS, rate=f"like {name}"))
    return tuple(found)


GATES = Gates(learned=(beats(STORIES_5GRAM),), rates=("base", *RANKS, *BOTH))
COSTS_MORE = Test(
    name="halving", variant="query/key rank halved", baseline="value rank halved", metric=BITS,
    weights={"query/key rank halved": 1.0, "value rank halved": -1.0}, direction="at least",
)  # fmt: skip
DESKTOP = Registration(
    study="value-rank",
    claims=(
        RegisteredClaim(
            id="N6",
            claim="The rank of values alone matters less than that of queries and keys",
            source="not published",
            family="N",
            conditions=(FOUR_DIMENSIONS,),
            tests=(COSTS_MORE, better("query/key rank doubled", "value rank doubled", "doubling")),
            also=(
                better("base", "value rank halved", "halving the values' rank costs something"),
                better("value rank doubled", "base", "doubling the values' rank gains something"),
                better("base", "value rank halved, MLP as it was", "the same, not refilled"),
                better("value rank doubled, MLP as it was", "base", "the same, not paid for"),
            ),
            gates=GATES,
        ),
        RegisteredClaim(
            id="N2",
            claim="Raising only the query/key rank is where the gain is",
            source="N, 2",
            family="N",
            conditions=(FOUR_DIMENSIONS,),
            tests=(
                better("query/key rank doubled", "base"),
                better("query/key rank doubled", "value rank doubled"),
            ),
            gates=GATES,
            supersedes="rank moved the logits' temperature and the rotary frequencies with it",
            restated="with a learned logit scale, and the same 4 dimensions rotated at every rank",
        ),
    ),
    arms=arms(),
    grid=RateGrid(first=MUON_RATES),
    sources=(TINYSTORIES,),
)
SMOKE = smaller(DESKTOP, {arm.variant: "w16-h2-r8-L1" for arm in DESKTOP.arms})
STUDY = registered_study("value-rank", __doc__, DESKTOP, SMOKE)
