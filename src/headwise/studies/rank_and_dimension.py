"""Rank and dimension (registered): what low rank loses in more dimensions, whether there is a threshold, and depth.

Paper: Amsel, Yehudai, Bruna, "Quality over Quantity in Attention Layers" (arXiv 2407.16153), Figure 1 and appendix.
Claims: Q12, Q15, Q16.
Task: the farthest of 16 points on the sphere, in 16 and 32 dimensions, by the paper's encoder with its own
initialisation and a learned scale of the logits, so that temperature does not move with rank.
Grid: 2 heads whose values fill the width, at every rank; queries and keys of 1/8 to 8/8 of the dimension, one layer. In
16 dimensions also two layers at half and at full rank, with probes. Learning rates are chosen on validation.
Scale: Q12 is judged as the share lost of what full rank gains over the best linear mixture, as N3 and N4 are: absolute
errors grow with the dimension whatever rank does, and as ratios they reverse. The ratio is shown beside it.
Q15: below full rank two joined lines predict the log error of a rank that was left out better than a power law in
1 − rank/dimension does; a level that the curve crosses proves nothing.
Q16: a second layer leaves at least 9 % fewer errors at half the rank, and from its first to its last layer attention
gets sharper, and less spread, by more than at full rank.
Gates: full rank has at most a quarter of the best linear mixture's error; half the rank is worse; rates are inside.
Power: below full rank errors differ between seeds by 0.2 %, at full rank by 1.3 %: 5 seeds see differences of 2 %.
Command: headwise study run rank-and-dimension --preset desktop
"""

from headwise.ledger.claims import ERROR
from headwise.ledger.registration import Arm, Gates, Learned, RateGrid, RegisteredClaim, Registration, Scale, Test
from headwise.options import ModelOptions
from headwise.studies._recipes.registered import registered_study, smaller
from headwise.training.run import ProbeName, Recipe

POINTS, BATCH, STEPS, SEEDS, PARTS = 16, 128, 5000, 5, 8
DIMS = {"d16": 16, "d32": 32}
FULL, HALF = "full rank", "half rank"
NAMES = {part: f"{part}/{PARTS} rank" for part in range(1, PARTS)} | {PARTS // 2: HALF, PARTS: FULL}
DEEPER = {f"{name}, 2 layers": part for part, name in NAMES.items() if name in (HALF, FULL)}
PROBES: tuple[ProbeName, ...] = ("sharpness", "attention-entropy", "qk-rank")
# A quarter of the best linear mixture's error: `headwise tasks nearest-neighbor,dim=16,points=16`, and dim=32
MIXTURE = {"d16": 0.76873 / 4, "d32": 0.85032 / 4}
OPTIONS = ModelOptions(
    family="encoder", norm="unit", norm_place="post", residual=True, norm_eps=1e-6, mlp_kind="plain",
    activation="relu", bias="all", positions="none", qk_norm="none", logit_scale=True, output_scale=1.0, dropout=0.0,
    init="torch", embedding_norm=False, final_norm=False, head="none",
)  # fmt: skip
RECIPE = Recipe(
    optimizer="adamw", learning_rate=0.01, betas=(0.9, 0.95), weight_decay=0.0, schedule="cosine", warm_up=0.3,
    final_learning_rate=0.0, clip=0.0, batch=BATCH,
)  # fmt: skip


def shape(stratum: str, part: int, depth: int = 1) -> str:
    dim = DIMS[stratum]
    return f"w{dim}-h2-r{dim * part // PARTS}-v{dim // 2}-L{depth}-m{4 * dim}"


def arm(stratum: str, variant: str, part: int, depth: int = 1) -> Arm:
    return Arm(
        variant=variant, stratum=stratum, options=OPTIONS, recipe=RECIPE, steps=STEPS, seeds=SEEDS,
        task={"name": "nearest-neighbor", "dim": DIMS[stratum], "points": POINTS}, shape=shape(stratum, part, depth),
        probes=PROBES if depth > 1 else (),
    )  # fmt: skip


ARMS = (
    *(arm(stratum, name, part) for stratum in DIMS for part, name in NAMES.items()),
    *(arm("d16", name, part, 2) for name, part in DEEPER.items()),
)


def gap(scale: Scale, name: str) -> Test:
    """Half against full rank, in 32 dimensions against 16."""
    weights = {f"d32:{HALF}": 1.0, f"d32:{FULL}": -1.0, f"d16:{HALF}": -1.0, f"d16:{FULL}": 1.0}
    metric = "share of the gain lost" if scale == "gain" else ERROR
    return Test(
        name=name, variant=f"{HALF} against {FULL}, 32 dimensions", baseline="16 dimensions", metric=metric,
        scale=scale, weights=weights, direction="at least", base=FULL,
    )  # fmt: skip


def threshold(stratum: str) -> Test:
    doses = {f"{stratum}:{name}": part / PARTS for part, name in NAMES.items() if part < PARTS}
    return Test(
        name=f"a change point in {DIMS[stratum]} dimensions", variant="two lines", scale="change point",
        baseline=f"a power law; {DIMS[stratum]} dimensions", metric="log ratio of squared misses", weights={},
        doses=doses, direction="at most",
    )  # fmt: skip


def more_than_at_full_rank(probe: ProbeName, change: str) -> Test:
    """From layer to layer, at half the rank against full rank."""
    half, full = DEEPER
    name = f"{probe} of the {change}"
    first, last = f"{probe}.layer0", f"{probe}.layer1"
    field = f"{first}/{last}" if change.startswith("first") else f"{last}/{first}"
    return Test(
        name=name, variant=half, baseline=full, metric=name, field=field, direction="at least",
        weights={f"d16:{half}": 1.0, f"d16:{full}": -1.0},
    )  # fmt: skip


def second_layer(*names: str, threshold: float = 0.0) -> Test:
    """What a second layer does for the first of these ranks; against what it does for the other, if there is one."""
    signs = dict(zip(names, (1.0, -1.0), strict=False))
    weights = {f"d16:{name}, 2 layers": sign for name, sign in signs.items()}
    weights |= {f"d16:{name}": -sign for name, sign in signs.items()}
    return Test(
        name=f"a second layer at {' against '.join(names)}", variant=f"2 layers, {names[0]}", metric=ERROR,
        baseline="1 layer" if len(names) == 1 else f"the same at {names[1]}", weights=weights, direction="at most",
        threshold=threshold,
    )  # fmt: skip


def gates(*rates: str, strata: tuple[str, ...] = tuple(DIMS)) -> Gates:
    return Gates(
        learned=tuple(
            Learned(
                variant=FULL, stratum=stratum, baseline="a quarter of the best linear mixture", value=MIXTURE[stratum]
            )
            for stratum in strata
        ),
        sensitive=(f"d16:{HALF}", f"d16:{FULL}"),
        rates=rates,
    )


DESKTOP = Registration(
    study="rank-and-dimension",
    claims=(
        RegisteredClaim(
            id="Q12",
            claim="The gap grows with the dimension d",
            source="Q, appendix",
            family="Q",
            tests=(gap("gain", "share of the gain lost"),),
            also=(gap("log", "as a ratio of errors"),),
            gates=gates(HALF, FULL),
            supersedes="the scale decided the sign: absolute errors grew, relative ones did not",
            restated="as the share lost of what full rank gains",
        ),
        RegisteredClaim(
            id="Q15",
            claim="There is a threshold rank where the error drops",
            source="a question on Q, Fig. 1",
            family="Q",
            tests=tuple(threshold(stratum) for stratum in DIMS),
            gates=gates(*NAMES.values()),
            supersedes="any falling curve crosses a threshold",
            restated="a change point must predict ranks that are left out better than a power law; that it moves with "
            "N, d and depth is not asked before there is one",
        ),
        RegisteredClaim(
            id="Q16",
            claim="Trained attention (sharpness, entropy, effective rank) shows how depth compensates for rank",
            source="a question on Q, Fig. 1",
            family="Q",
            tests=(
                second_layer(HALF, threshold=round(1 / 1.1 - 1, 9)),
                more_than_at_full_rank("sharpness", "last layer over the first"),
                more_than_at_full_rank("attention-entropy", "first layer over the last"),
            ),
            also=(
                second_layer(HALF, FULL),
                more_than_at_full_rank("qk-rank", "first layer over the last"),
            ),
            gates=gates(HALF, FULL, *DEEPER, strata=("d16",)),
            supersedes="its directions were chosen on pilots, and its learning rate was not tuned",
            restated="the pattern must be stronger at half the rank than at full rank",
        ),
    ),
    arms=ARMS,
    grid=RateGrid(first=(0.004, 0.008, 0.016, 0.032)),
)
SMOKE = smaller(DESKTOP, {})
STUDY = registered_study("rank-and-dimension", __doc__, DESKTOP, SMOKE)
