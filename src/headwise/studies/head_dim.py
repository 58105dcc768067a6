"""Head dim (registered): the same width cut into fewer and larger heads, down to one.

Source: the note on what the rank paper means for nanochat, points 2 and 5.
Claims: N1, N5.
Task: the next byte of TinyStories, by a nanochat-style decoder of 2 layers, its logit scale learned and the same 4
dimensions of every head rotated, so that neither temperature nor frequencies move with the head dim.
Grid: heads × head dim = width, so parameters, FLOPs and cache are equal. Width 128 in windows of 64 bytes: 16, 8, 4, 2
and 1 heads. Width 256 in windows of 256 bytes: 4 heads of 64, 2 of 128, 1 of 256: the note's sizes, 128 to 256, though
not its 14 heads. Every variant's learning rate is chosen on validation.
Margins: N1: at width 128 at most 0.5 % more bits per byte for each doubling of the head dim, as the slope over all
five; and heads of 256 leave at most 1 % more than heads of 128. Every doubling is shown by itself: a slope may hold
where its last step, to one head, does not. N5: the same, with at most 1 % more training FLOPs and cache bytes, and at
most 5 % more training seconds (runs are done in an order that the variant does not decide).
Gates: the model beats a 5-gram in the same windows; heads of 8 are worse than heads of 32, else nothing could have
differed; rates are inside.
Power: at an SD of 0.6 to 1.3 % of paired log ratios, 5 seeds of five variants know the slope to 0.1 to 0.2 % (standard
error), and 4 seeds see effects of twice the margin between two sizes with a power of 0.85 or more.
Command: headwise study run head-dim --preset desktop --data text=tinystories.txt.xz
"""

from headwise.ledger.claims import BITS, CACHE, FLOPS, SECONDS
from headwise.ledger.registration import Arm, Gates, RateGrid, RegisteredClaim, Registration, Test
from headwise.studies._recipes.registered import (
    FOUR_DIMENSIONS,
    MUON_RATES,
    STORIES_5GRAM,
    STORIES_5GRAM_256,
    TINYSTORIES,
    beats,
    registered_study,
    smaller,
    text_arm,
)

SIZES = {"w128": (8, 16, 32, 64, 128), "w256": (64, 128, 256)}
WIDTHS = {"w128": 128, "w256": 256}
CONTEXTS, BATCHES = {"w128": 64, "w256": 256}, {"w128": 32, "w256": 8}
STEPS, SEEDS = {"w128": 2500, "w256": 2000}, {"w128": 5, "w256": 4}


def named(size: int) -> str:
    return f"head dim {size}"


def arms() -> tuple[Arm, ...]:
    return tuple(
        text_arm(
            named(size), f"{stratum}-h{WIDTHS[stratum] // size}-L2", STEPS[stratum], SEEDS[stratum], FOUR_DIMENSIONS,
            BATCHES[stratum], CONTEXTS[stratum], stratum=stratum,
        )
        for stratum, sizes in SIZES.items()
        for size in sizes
    )  # fmt: skip


def slope(stratum: str) -> Test:
    """Per doubling of the head dim, by least squares over the sweep."""
    sizes = SIZES[stratum]
    away = [place - (len(sizes) - 1) / 2 for place in range(len(sizes))]
    spread = sum(one * one for one in away)
    weights = {f"{stratum}:{named(size)}": one / spread for size, one in zip(sizes, away, strict=True) if one}
    return Test(
        name=f"dose and response at width {WIDTHS[stratum]}", variant="head dim doubled",
        baseline=f"not; from {sizes[0]} to {sizes[-1]}", metric=BITS, weights=weights, direction="at most",
        threshold=0.005,
    )  # fmt: skip


def doubled(stratum: str, size: int, metric: str = BITS, field: str = "error", margin: float = 0.01) -> Test:
    return Test(
        name=f"{size} to {2 * size} at width {WIDTHS[stratum]}", variant=named(2 * size), baseline=named(size),
        metric=metric, field=field, direction="at most", threshold=margin,
        weights={f"{stratum}:{named(2 * size)}": 1.0, f"{stratum}:{named(size)}": -1.0},
    )  # fmt: skip


BITS_KEPT = (slope("w128"), doubled("w256", 128))
GATES = Gates(
    learned=(
        beats(STORIES_5GRAM, variant=named(32), stratum="w128"),
        beats(STORIES_5GRAM_256, variant=named(128), stratum="w256"),
    ),
    sensitive=(f"w128:{named(8)}", f"w128:{named(32)}"),
    rates=tuple(dict.fromkeys(named(size) for sizes in SIZES.values() for size in sizes)),
)
DESKTOP = Registration(
    study="head-dim",
    claims=(
        RegisteredClaim(
            id="N1",
            claim="Heads twice as large keep or improve a nanochat-style model at equal parameters",
            source="N, 5",
            family="N",
            conditions=(FOUR_DIMENSIONS,),
            tests=BITS_KEPT,
            also=(
                slope("w256"),
                *(doubled(stratum, size) for stratum, sizes in SIZES.items() for size in sizes[:-1]),
            ),
            gates=GATES,
            supersedes="one step, head dim 4 to 8, stood for 128 to 256, and rank moved rotary frequencies and the "
            "logits' temperature with it",
            restated="as dose and response of head dim, with one head in every sweep",
        ),
        RegisteredClaim(
            id="N5",
            claim="It holds per FLOP, per second and per cache byte, not only per parameter",
            source="reviewers of Q and L",
            family="N",
            conditions=(FOUR_DIMENSIONS,),
            tests=(
                *BITS_KEPT,
                doubled("w256", 128, FLOPS, "flops"),
                doubled("w256", 128, CACHE, "kv_bytes_per_token"),
                doubled("w256", 128, SECONDS, "seconds", 0.05),
            ),
            also=tuple(doubled("w128", size, SECONDS, "seconds", 0.05) for size in SIZES["w128"][:-1]),
            gates=GATES,
            supersedes="it took over what N1 was confounded with",
            restated="for what N1 is restated as; FLOPs and cache are the same, so seconds are what differs",
        ),
    ),
    arms=arms(),
    grid=RateGrid(first=MUON_RATES),
    sources=(TINYSTORIES,),
)
SMOKE = smaller(
    DESKTOP,
    {arm.name: f"w8-h{1 + number}-r4-L1" for number, arm in enumerate(DESKTOP.arms)},
    task={"context": 16},
)
STUDY = registered_study("head-dim", __doc__, DESKTOP, SMOKE)
