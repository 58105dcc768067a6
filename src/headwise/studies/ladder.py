"""The ladder (registered): does the trade of depth for heads change with size, and can the next size be predicted?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), open questions.
Claims: L14, L15.
Task: the next byte of 84 books, by nanochat-style decoders; 10 bytes per parameter of the base, so all are
under-trained: what is compared is a shape at the same budget, not its limit.
Grid: widths 32, 48, 64, 96 and 128 (0.09 to 1.2 M parameters): 6 layers × 4 heads; twice the heads; 4 layers × 8 heads
(thin); 4 × 4 (control). The logit scale is learned and the same 4 dimensions of every head are rotated, so that neither
moves with the rank. Learning rates are chosen at widths 32 to 64, and extrapolated in log N from there.
Law: log(variant/base) = a + b log₁₀ N, by least squares over sizes weighted by seeds. L15: thin gets worse against the
base by at most 1 % per tenfold parameters. L14: at width 128 each variant lies within 1.5 % of what the line through
the smaller sizes predicts for it.
Gates: the bases beat a 3-gram; rates are inside their grids where they are chosen.
Power: with 6, 6, 5, 3 and 2 seeds at an SD of 1 % the slope has a standard error of 0.5 % per decade.
Command: headwise study run ladder --preset desktop --data text=books.txt.xz
"""

from headwise.cost import parameters
from headwise.ledger.claims import BITS
from headwise.ledger.registration import Arm, Gates, RateGrid, RegisteredClaim, Registration, Test
from headwise.shape import ModelShape
from headwise.studies._recipes.registered import (
    BOOKS,
    BOOKS_3GRAM,
    MUON_RATES,
    beats,
    beyond_weights,
    decoder,
    muon,
    one_turn,
    registered_study,
    slope_weights,
    smaller,
)

SEEDS = {32: 6, 48: 6, 64: 5, 96: 3, 128: 2}
TUNED = (32, 48, 64)
VARIANTS = {"base": "h4-p4-L6", "twice the heads": "h8-p4-L6", "thin": "h8-p4-L4", "control": "h4-p4-L4"}
BATCH, CONTEXT, BYTES_PER_PARAMETER = 32, 64, 10
WITHIN = 0.015
OPTIONS = decoder(logit_scale=True, rope_base=one_turn(CONTEXT))
SIZES = {f"w{width}": parameters(ModelShape.parse(f"w{width}-h4-L6"), OPTIONS)["total"] for width in SEEDS}
BY_NAME = {f"w{width}": seeds for width, seeds in SEEDS.items()}


def arms() -> tuple[Arm, ...]:
    found = []
    for width, seeds in SEEDS.items():
        steps = round(BYTES_PER_PARAMETER * SIZES[f"w{width}"] / (BATCH * CONTEXT))
        found += [
            Arm(
                variant=name, stratum=f"w{width}", task={"name": "text", "context": CONTEXT},
                shape=f"w{width}-{letters}", options=OPTIONS, recipe=muon(BATCH), steps=steps, seeds=seeds,
                rate="" if width in TUNED else "law",
            )
            for name, letters in VARIANTS.items()
        ]  # fmt: skip
    return tuple(found)


def slope(variant: str, threshold: float) -> Test:
    return Test(
        name=f"slope of {variant}", variant=variant, baseline="base, per tenfold parameters", metric=BITS,
        weights=slope_weights(SIZES, BY_NAME, variant, "base"), direction="at most", threshold=threshold,
    )  # fmt: skip


def predicted(variant: str) -> tuple[Test, ...]:
    """Within the margin of the line, from either side."""
    upper = Test(
        name=f"{variant} at most", variant=f"{variant}/base at width 128", baseline="as smaller sizes predict it",
        metric=BITS, weights=beyond_weights(SIZES, BY_NAME, "w128", variant, "base"), direction="at most",
        threshold=WITHIN,
    )  # fmt: skip
    lower = upper.replace(name=f"{variant} at least", direction="at least", threshold=round(1 / (1 + WITHIN) - 1, 9))
    return upper, lower


GATES = Gates(
    learned=tuple(beats(BOOKS_3GRAM, stratum=name) for name in SIZES),
    rates=tuple(VARIANTS),
)
OTHERS = ("twice the heads", "thin", "control")
DESKTOP = Registration(
    study="ladder",
    claims=(
        RegisteredClaim(
            id="L15",
            claim="Fewer layers with more heads do not lose ground with size (toward 1 B parameters)",
            source="L, open question",
            family="L",
            tests=(slope("thin", 0.01),),
            also=(slope("control", 0.0), slope("twice the heads", 0.0)),
            gates=GATES,
            supersedes="a straight line was carried over three decades from four sizes trained for 150 steps",
            restated="as the slope of log(thin/base) per tenfold parameters, over the sizes that were trained",
        ),
        RegisteredClaim(
            id="L14",
            claim="The trade of depth for heads can be predicted before training",
            source="L, open question",
            family="L",
            tests=tuple(test for name in OTHERS for test in predicted(name)),
            gates=GATES,
            supersedes="its law was fitted to half of the shapes, chosen afterwards, at 150 steps",
            restated="the largest size's ratios are predicted from the smaller ones before it is run",
        ),
    ),
    arms=arms(),
    grid=RateGrid(first=MUON_RATES),
    sources=(BOOKS,),
)
SMOKE = smaller(DESKTOP, {arm.name: f"w{8 * (1 + i // 4)}-h{1 + i % 2}-L1" for i, arm in enumerate(DESKTOP.arms)})
STUDY = registered_study("ladder", __doc__, DESKTOP, SMOKE)
