"""Predict the trade: can depth for heads be predicted before training, and does it persist to 1 B parameters?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), open questions.
Claims: L14, L15.
Task: the next byte of text, by a nanochat-style decoder.
Grid: a ladder of widths, on each rung a base and a thin shape (a third of the layers goes, heads double in the same
width); shapes around one rung that move depth, heads, rank and MLP apart; some of them for fewer steps; and the
variants of thinner-gpt, whose runs are shared. Each has its own learning rate, chosen on validation with a seed that is
not judged.
L14: shapes are paired by steps and parameters, and the two of each pair are assigned to different halves at random,
anew for each seed, so that the interval is over seeds and over which shapes were known; each half is predicted by the
scaling law (ledger/law.py) fitted to the other. It holds if the rank correlation lies above 0.7, and if the law errs
less than one that sees parameters and steps alone: else size was predicted, and not the trade.
L15: log bits per byte of the base minus those of the thin shape, a straight line in log parameters, extrapolated to 1 B
parameters and above 1/1.01 as in thinner-gpt. The interval is over rungs (their jackknife), since what bends the
line is the part of the loss that is specific to a rung; it does not know whether the line goes on.
Power: in simulations with the noise of thinner-gpt's pilots (0.4 %), L14 held in 4 of 4 where shape matters and each
shape had a deviation of 0.5 % from any law, in 2 of 4 with 1 %, and in none where size alone matters. L15 can detect
5 % at best, and about 25 % where each rung deviates by 1 %: large effects only, so its verdict says what more would
cost.
Command: headwise study run predict-the-trade --preset laptop (about 6 minutes on two cores, after thinner-gpt)
"""

import math
import random
from collections.abc import Sequence
from statistics import linear_regression, mean
from typing import Any

from headwise.cost import cost_of, parameters
from headwise.ledger.claims import BITS, Claim, Comparison, against
from headwise.ledger.law import (
    FEATURES,
    LEAST_POINTS,
    SIZE,
    LossPoint,
    features,
    fit,
    predicted_losses,
    rank_correlation,
    relative_error,
)
from headwise.ledger.study import Preset, Study
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import Spec
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.text import THINNER, TextTraining, ThinnerTextPreset, text_options, text_run
from headwise.studies._recipes.thinner import MARGIN, variants

CORRELATION = 0.7
LARGE = 10**9
LEAST_RUNGS = 3  # so that a line is left when one goes
TOKENS_PER_PARAMETER = 20
GPU = ("an H100 at 40 % of its 989 TFLOP/s", 0.4 * 989e12)


class Ladder(Spec):
    """Widths, the size of a base's head, and the depths of a base and of a thin shape."""

    widths: tuple[int, ...]
    head: int
    base: int
    thin: int


class Shorter(Spec):
    """Shapes that are also trained for fewer steps."""

    steps: int
    shapes: tuple[str, ...]


class TradePreset(TextTraining, Preset):
    """The ladder, the shapes around one rung, those trained for fewer steps, and the runs shared with thinner-gpt."""

    ladder: Ladder
    around: tuple[str, ...]
    shorter: Shorter
    thinner: ThinnerTextPreset


def _preset(name: str, **own: Any) -> TradePreset:
    """A preset that trains as thinner-gpt's of that name does."""
    thinner = THINNER[name]
    return TradePreset(context=thinner.context, batch=thinner.batch, thinner=thinner, **own)


PRESETS = {
    "smoke": _preset(
        "smoke",
        steps=3,
        ladder=Ladder(widths=(16, 32), head=8, base=3, thin=2),
        around=("w16-h1-L2", "w16-h4-r8-L2", "w16-h2-L2-m16", "w16-h2-L2-m128", "w24-h4-L2", "w16-h4-L3", "w24-h1",
                "w8-h1-L4"),
        shorter=Shorter(steps=1, shapes=("w16-h2-L2", "w24-h1")),
        rates=(0.01,),
    ),
    "laptop": _preset(
        "laptop",
        steps=150,
        ladder=Ladder(widths=(16, 32, 48, 64), head=16, base=3, thin=2),
        around=("w32-h2-L2", "w32-h2", "w32-h1-L2", "w32-h8-L2", "w32-h8-r8", "w32-h4-r16-L2", "w32-h2-L2-m32",
                "w32-h2-L2-m256", "w48-h3"),
        shorter=Shorter(steps=75, shapes=("w16-h1-L3", "w32-h2-L2", "w48-h3", "w64-h4-L2")),
        rates=(0.01, 0.03),
        seeds=4,
    ),
    "paper": _preset(
        "paper",
        steps=80_000,
        ladder=Ladder(widths=(256, 512, 1024, 1920), head=64, base=24, thin=16),
        around=("w512-h8-L16", "w512-h8-L8", "w512-h4-L16", "w512-h32-L16", "w512-h16-r64-L16", "w512-h8-L16-m512",
                "w512-h8-L16-m4096", "w1024-h16-L8"),
        shorter=Shorter(steps=20_000, shapes=("w256-h4-L24", "w512-h8-L24", "w1024-h32-L16")),
        rates=(0.0003, 0.001, 0.003),
    ),
}  # fmt: skip


def rung(ladder: Ladder, width: int) -> dict[str, ModelShape]:
    """The base and the thin shape of one width."""
    base = ModelShape.parse(f"w{width}-r{ladder.head}-L{ladder.base}")
    return {"base": base, "thin": ModelShape(width=width, heads=2 * base.layers[0].heads, depth=ladder.thin)}


def cells(preset: TradePreset) -> list[Cell]:
    shorter = preset.replace(steps=preset.shorter.steps)
    asked: list[tuple[dict[str, Any], ModelShape, TextTraining]] = [
        ({"part": "ladder", "width": width, "kind": kind}, shape, preset)
        for width in preset.ladder.widths
        for kind, shape in rung(preset.ladder, width).items()
    ]
    asked += [({"part": "around"}, ModelShape.parse(text), preset) for text in preset.around]
    asked += [({"part": "shorter"}, ModelShape.parse(text), shorter) for text in preset.shorter.shapes]
    shared = variants(preset.thinner, text_options())
    asked += [({"part": "thinner-gpt"}, shape, preset.thinner) for _, shape in shared]
    return [
        Cell({**place, "shape": str(shape), "steps": training.steps}, text_run(training, shape, seed))
        for place, shape, training in asked
        for seed in range(preset.seeds)
    ]


def points(rows: list[Row]) -> list[LossPoint]:
    """What the law is fitted to: the mean of the seeds of each shape and number of steps."""
    errors: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        errors.setdefault((row.cell["shape"], row.cell["steps"]), []).append(row.metrics["error"])
    return [LossPoint(ModelShape.parse(at), steps, mean(losses)) for (at, steps), losses in sorted(errors.items())]


def halved(known: list[LossPoint], seed: int) -> list[tuple[list[LossPoint], list[LossPoint]]]:
    """Which points are known, and which are to be predicted: a split, both ways."""
    chance = random.Random(seed)
    order = sorted(
        known, key=lambda point: [features(point.shape, point.steps)[name] for name in ("steps", "parameters")]
    )
    halves: tuple[list[LossPoint], list[LossPoint]] = ([], [])
    for pair in zip(order[::2], order[1::2], strict=False):
        for half, point in zip(halves, chance.sample(pair, 2), strict=True):
            half.append(point)
    halves[0].extend(order[len(order) - len(order) % 2 :])  # the odd one
    return [halves, (halves[1], halves[0])]


def out_of_half(known: list[LossPoint], seed: int, names: Sequence[str] = FEATURES) -> tuple[list[float], list[float]]:
    """Measured losses, and those that the law fitted to the other half predicts."""
    measured: list[float] = []
    predicted: list[float] = []
    for half, other in halved(known, seed):
        measured += [point.loss for point in other]
        predicted += predicted_losses(fit(half, names), other)
    return measured, predicted


def foreseen(rows: list[Row]) -> list[Comparison]:
    """L14: the order of shapes that were not trained, and whether it takes more than their size to say it."""
    correlations, gains = [], []
    for seed in sorted({row.seed for row in rows}):
        known = points([row for row in rows if row.seed == seed])
        if len(known) >= 2 * LEAST_POINTS:
            measured, predicted = out_of_half(known, seed)
            correlations.append(max(rank_correlation(measured, predicted), 0.01))  # a logarithm is taken of it
            by_size = relative_error(*out_of_half(known, seed, SIZE))
            gains.append(by_size / relative_error(measured, predicted))
    if not correlations:
        return []
    keys = tuple(row.key for row in rows)
    return [
        against(
            "rank correlation", "predicted and measured loss", "", correlations, at_least=CORRELATION, unit="value",
            keys=keys,
        ),
        against("prediction error", "law of size alone", "fitted law of the shape", gains, at_least=1.0, keys=keys),
    ]  # fmt: skip


def persists(rows: list[Row]) -> list[Comparison]:
    """L15: the thin shape's loss against the base's, extrapolated to 1 B parameters; a pseudo-value per rung."""
    ladder = cell(rows, part="ladder")
    line = trade(ladder)
    if len(line) < LEAST_RUNGS:
        return []
    whole, count = carried_on(line), len(line)
    parts = [carried_on(line[:i] + line[i + 1 :]) for i in range(count)]
    ratios = [math.exp((count - 1) * part - count * whole) for part in parts]
    flops, hours = price_of_one_pair()
    return [
        against(
            BITS,
            "thin",
            "base",
            ratios,
            at_most=1 + MARGIN,
            where="extrapolated to 1 B parameters on a straight line over sizes",
            note=f"a real pair of that size takes {flops:.1e} FLOPs, {hours:,.0f} hours of {GPU[0]}",
            keys=tuple(row.key for row in ladder),
        )
    ]


def carried_on(line: list[tuple[float, float]]) -> float:
    slope, level = linear_regression(*zip(*line, strict=True))
    return level + slope * math.log(LARGE)


def trade(rows: list[Row]) -> list[tuple[float, float]]:
    """Of each rung that has both: log parameters of the base's body, and log loss of base over thin, mean of seeds."""
    line = []
    for width in sorted({row.cell["width"] for row in rows}):
        base, thin = cell(rows, width=width, kind="base"), cell(rows, width=width, kind="thin")
        if base and thin:
            size = parameters(ModelShape.parse(base[0].cell["shape"]), ModelOptions())["body"]
            logs = [mean(math.log(row.metrics["error"]) for row in kind) for kind in (base, thin)]
            line.append((math.log(size), logs[0] - logs[1]))
    return line


def price_of_one_pair() -> tuple[float, float]:
    """FLOPs and GPU hours of the real run: the base and the thin shape of about 1 B parameters, once each."""
    ladder, context = PRESETS["paper"].ladder, PRESETS["paper"].context
    pair, options = rung(ladder, max(ladder.widths)), text_options()
    tokens = TOKENS_PER_PARAMETER * parameters(pair["base"], options)["body"]
    flops = tokens * sum(cost_of(shape, options, context=context).flops["train_per_token"] for shape in pair.values())
    return float(flops), flops / GPU[1] / 3600


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, across_seeds, curves

    known, marks = points(rows), list[Mark]()
    ladder = PRESETS[preset].ladder
    law = fit(known) if len(known) >= LEAST_POINTS else None
    for row_shape, errors in _by_shape(cell(rows, part="ladder")).items():
        shape = ModelShape.parse(row_shape)
        size = float(parameters(shape, ModelOptions())["body"])
        kind = "base" if shape.depth == ladder.base else "thin"
        at = across_seeds(errors, size, f"{kind} ({shape.depth} layers)", "by parameters of the body")
        marks.append(at)
        if law:
            marks.append({**at, "y": law.predict(shape, PRESETS[preset].steps).value, "kind": "theory"})
    if len(known) >= 2 * LEAST_POINTS:
        here: Mark = {"series": "all shapes", "panel": "by loss predicted from the other half"}
        for loss, guess in zip(*out_of_half(known, 0), strict=True):
            marks.append({**here, "x": guess, "y": loss, "kind": "scattered"})
        for end in (min(point.loss for point in known), max(point.loss for point in known)):
            marks.append({**here, "x": end, "y": end, "kind": "theory"})
    note = f"nanochat-style decoders on text, {PRESETS[preset].steps:,} steps on the ladder; dashed: the scaling law "
    note += "fitted to all shapes (left), and a perfect prediction (right); learning rates chosen on validation"
    return curves(marks, "The trade of depth for heads, predicted", [note], "", "bits per byte")


def _by_shape(rows: list[Row]) -> dict[str, list[float]]:
    losses: dict[str, list[float]] = {}
    for row in rows:
        losses.setdefault(row.cell["shape"], []).append(row.metrics["error"])
    return losses


CLAIMS = (
    Claim(
        "L14", "The trade of depth for heads can be predicted before training", "L, open question", "predict-the-trade",
        foreseen,
    ),
    Claim(
        "L15", "Fewer layers with more heads keep the loss toward 1 B parameters", "L, open question",
        "predict-the-trade", persists,
    ),
)  # fmt: skip
STUDY = Study("predict-the-trade", __doc__, PRESETS, cells, chart, CLAIMS)
