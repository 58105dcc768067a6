"""Thin windows (registered): depth, heads and windows, crossed on text; what windows reach through layers on look-up.

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), whose limitations
name windowed attention.
Claims: L19, L20, L21, L23.
Tasks: the next byte of TinyStories in samples of 64 bytes, and multi-query associative recall with 4 pairs in 24
tokens, by the same decoder of width 32: rotary on the same 4 dimensions of every head, a learned scale of the logits.
Windows are of 8 tokens.
Grid: text: base 4 layers × 2 heads of 16; thin 2 × 4 of 8; control 2 × 2 of 16; each with windows and without. Recall:
base and control without windows; with them the base, whose four layers reach 28 tokens together, and the same with
twice the heads. Learning rates are chosen on validation for each.
Margins: L19: 1 % more bits per byte. L20 and L21 are differences of two differences, as shares of what the base gains
over a constant predictor: any. L23: 5 % of that gain.
Gates: text: the base beats a 3-gram, and for L19 the control is worse than the base; recall: three quarters of the
base's seeds solve it; rates are inside.
Power: paired log ratios on text have an SD of 0.6 to 1.3 %: 3 seeds see 3 %.
Command: headwise study run thin-windows --preset desktop --data text=tinystories.txt.xz (about 8 minutes of one core)
"""

from typing import Any

from headwise.ledger.claims import BITS
from headwise.ledger.registration import (
    Arm,
    Gates,
    Learned,
    RateGrid,
    RegisteredClaim,
    Registration,
    Saving,
    Test,
)
from headwise.options import ModelOptions
from headwise.studies._recipes.registered import (
    CONDITIONS,
    FOUR_DIMENSIONS,
    STORIES_3GRAM,
    TINYSTORIES,
    beats,
    decoder,
    muon,
    one_turn,
    registered_study,
    smaller,
    with_positions,
)

SHAPES = {"base": "w32-h2-L4", "thin": "w32-h4-L2", "control": "w32-h2-L2"}
LOOK_UP = {"base": "w32-h2-L4", "control": "w32-h2-L2", "windows": "w32-h2-L4", "windows, twice the heads": "w32-h4-L4"}
MIXERS = {"windows": "window-8", "no windows": "attention"}
TEXT: dict[str, Any] = {"name": "text", "context": 64}
RECALL: dict[str, Any] = {"name": "recall", "vocab": 32, "pairs": 4, "length": 24}
LOST = "share of the gain lost"


def options(vocab: int, context: int, mixer: str) -> ModelOptions:
    told = {**CONDITIONS[FOUR_DIMENSIONS], "rope_base": one_turn(context)}
    return decoder(vocab=vocab, context=context, mixer=mixer, **told)


def text_arm(windows: str, variant: str) -> Arm:
    return Arm(
        variant=variant, stratum=windows, task=TEXT, shape=with_positions(SHAPES[variant], FOUR_DIMENSIONS),
        options=options(256, TEXT["context"], MIXERS[windows]), recipe=muon(16), steps=450, seeds=3,
    )  # fmt: skip


def recall_arm(variant: str) -> Arm:
    mixer = MIXERS["windows" if variant.startswith("windows") else "no windows"]
    return Arm(
        variant=variant, condition="recall", task=RECALL, shape=with_positions(LOOK_UP[variant], FOUR_DIMENSIONS),
        options=options(RECALL["vocab"], RECALL["length"], mixer), recipe=muon(32), steps=300, seeds=4,
        rate="like windows" if "," in variant else "",
    )  # fmt: skip


def difference(windows: str, variant: str, baseline: str, sign: float = 1.0) -> dict[str, float]:
    return {f"{windows}:{variant}": sign, f"{windows}:{baseline}": -sign}


def with_windows(name: str, variant: str, baseline: str, weights: dict[str, float], margin: float = 0.0) -> Test:
    return Test(
        name=name, variant=variant, baseline=baseline, metric=BITS, weights=weights, direction="at most",
        threshold=margin,
    )  # fmt: skip


def against_none(variant: str, baseline: str) -> dict[str, float]:
    """What a change does with windows, less what it does without."""
    return difference("windows", variant, baseline) | difference("no windows", variant, baseline, -1.0)


LEARNED = tuple(beats(STORIES_3GRAM, stratum=windows) for windows in MIXERS)
HALFWAY = {"windows:thin": 1.0, "windows:base": -0.5, "windows:control": -0.5}
L19 = RegisteredClaim(
    id="L19",
    claim="The trade of depth for heads holds for windowed attention",
    source="L, limitations",
    family="L",
    tests=(with_windows("keeps", "thin", "base; windows", difference("windows", "thin", "base"), 0.01),),
    saving=Saving(variant="thin", baseline="base", part=0.25, stratum="windows"),
    also=(
        with_windows("credit to heads", "thin", "halfway between base and control; windows", HALFWAY),
        with_windows("finer heads", "thin", "control; windows", difference("windows", "thin", "control")),
    ),
    gates=Gates(learned=LEARNED, sensitive=("windows:control", "windows:base"), rates=tuple(SHAPES)),
)
L20 = RegisteredClaim(
    id="L20",
    claim="Windows need depth: fewer layers cost more where a token sees only a window",
    source="a question on L, limitations",
    family="L",
    tests=(
        Test(
            name="two layers against four", variant="control vs base with windows", baseline="without", metric=LOST,
            scale="gain", weights=against_none("control", "base"), direction="at least",
        ),
    ),
    gates=Gates(learned=LEARNED, rates=tuple(SHAPES)),
)  # fmt: skip
L21 = RegisteredClaim(
    id="L21",
    claim="Finer heads gain no less where a token sees only a window",
    source="a question on L, limitations",
    family="L",
    tests=(
        Test(
            name="four heads against two", variant="thin vs control with windows", baseline="without", metric=LOST,
            scale="gain", weights=against_none("thin", "control"), direction="at most",
        ),
    ),
    gates=Gates(learned=LEARNED, rates=tuple(SHAPES)),
)  # fmt: skip
L23 = RegisteredClaim(
    id="L23",
    claim="Four layers of windows look up as well as two that see all",
    source="a question on L, limitations",
    family="L",
    conditions=("recall",),
    tests=(
        Test(
            name="four layers of windows", variant="windows", baseline="control", metric=LOST, scale="gain",
            weights={"windows": 1.0, "control": -1.0}, direction="at most", threshold=0.05,
        ),
    ),
    also=(
        Test(
            name="twice the heads", variant="windows, twice the heads", baseline="windows", metric=LOST,
            scale="gain", weights={"windows, twice the heads": 1.0, "windows": -1.0}, direction="at most",
        ),
    ),
    gates=Gates(
        learned=(Learned(baseline="solved", value=0.05, solved=0.75, half=0.0),),
        rates=("control", "windows"),
    ),
)  # fmt: skip
DESKTOP = Registration(
    study="thin-windows",
    claims=(L19, L20, L21, L23),
    arms=(
        *(text_arm(windows, variant) for windows in MIXERS for variant in SHAPES),
        *(recall_arm(variant) for variant in LOOK_UP),
    ),
    grid=RateGrid(first=(0.02, 0.04, 0.08), most=5, seeds=(1000,)),
    sources=(TINYSTORIES,),
)
SMOKE = smaller(DESKTOP, {})
STUDY = registered_study("thin-windows", __doc__, DESKTOP, SMOKE)
