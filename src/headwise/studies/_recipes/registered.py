"""What registered studies share, written out: options, recipes, conditions, the data they name."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from headwise.cost import parameters
from headwise.ledger.claims import BITS
from headwise.ledger.preset import Preset
from headwise.ledger.registration import Arm, Data, Learned, Registration, Test
from headwise.ledger.study import Study
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row
from headwise.training.run import Recipe

TINYSTORIES = Data(
    task="text",
    about="22,128 deduplicated TinyStories, shuffled, as one text of 18.1 MB (.txt or .txt.xz)",
    digest="c71d227151b7d443",
    train=16_345_454,
)
BOOKS = Data(
    task="text",
    about="84 English books of Project Gutenberg as one text of 40.3 MB (.txt or .txt.xz)",
    digest="24524b12876b58c0",
    train=36_325_060,
)
CIFAR_IMAGES = 9000  # for training
# On pixels, its regularisation chosen on validation: `headwise tasks images:FILE,side=32,patch=4 --baselines`
CIFAR_LOGISTIC = ("logistic regression", 0.6093)


def cifar(tokens: int) -> Data:
    """As models with so many tokens of an image read it."""
    return Data(
        task="images",
        about="CIFAR-10, the first 1,000 training images of each class and all 10,000 of the test set, as a zip of "
        "JPEGs",
        digest="a8ca20d590089d4a",
        train=CIFAR_IMAGES * tokens,
        split="of the training images a tenth, by a hash of their pixels, for validation; the published test set",
    )


# Of the test part in windows of 64 bytes, learned from the whole training part: `headwise tasks text:FILE,context=64`
STORIES_5GRAM = ("5-gram, Kneser-Ney", 1.53959)
STORIES_3GRAM = ("3-gram, Kneser-Ney", 2.40441)
STORIES_5GRAM_256 = ("5-gram, Kneser-Ney", 1.54744)  # in windows of 256: context=256
BOOKS_3GRAM = ("3-gram, Kneser-Ney", 2.91131)
BOOKS_5GRAM = ("5-gram, Kneser-Ney", 2.09280)


def decoder(**changes: Any) -> ModelOptions:
    """A nanochat-style decoder of bytes with nanochat's own initialisation; nothing is left to a default."""
    written: dict[str, Any] = {
        "family": "decoder",
        "norm": "rms-plain",
        "norm_place": "pre",
        "residual": True,
        "norm_eps": 1e-6,
        "mlp_kind": "plain",
        "activation": "relu2",
        "bias": "none",
        "positions": "rotary",
        "rope_base": 10_000.0,
        "qk_norm": "rms-plain",
        "logit_scale": False,
        "output_scale": 1.0,
        "dropout": 0.0,
        "init": "nanochat",
        "vocab": 256,
        "context": 64,
        "embedding_norm": True,
        "final_norm": True,
        "tied": False,
        "softcap": 15.0,
        "head": "lm",
    }
    return ModelOptions(**{**written, **changes})


def adamw(batch: int) -> Recipe:
    return Recipe(
        optimizer="adamw", learning_rate=0.01, betas=(0.9, 0.95), weight_decay=0.0, schedule="cosine", warm_up=0.1,
        final_learning_rate=0.0, clip=0.0, batch=batch,
    )  # fmt: skip


def muon(batch: int) -> Recipe:
    """nanochat's own. In as many steps AdamW neither finds the look-up of recall nor beats a 5-gram on text."""
    return adamw(batch).replace(optimizer="muon", momentum=0.95)


MUON_RATES = (0.01, 0.02, 0.04)


# Rank is confounded with positions (a rotary head of rank 4 has two frequencies) and with the logits' temperature
# (normalised queries and keys cap them at √r): so each is crossed, and a claim must survive all of them.
CONDITIONS: dict[str, dict[str, Any]] = {
    "rotary, fixed scale": {"positions": "rotary", "logit_scale": False},
    "rotary, learned scale": {"positions": "rotary", "logit_scale": True},
    "learned positions, fixed scale": {"positions": "learned", "logit_scale": False},
    "learned positions, learned scale": {"positions": "learned", "logit_scale": True},
    "rotary on 4 dimensions, learned scale": {"positions": "rotary", "logit_scale": True},
}
FOUR_DIMENSIONS = "rotary on 4 dimensions, learned scale"


def one_turn(context: int) -> float:
    """The base of rotary positions on 4 dimensions: the slower of their two frequencies turns once in a window.

    At the usual 10,000 it turns a tenth of that: in two pilots runs were then 2 and 5 % worse, and seeds 5 % apart.
    """
    return float(round((context / (2 * math.pi)) ** 2))


def with_positions(shape: str, condition: str) -> str:
    """A shape under a condition: in one of them the same four dimensions of every head are rotated."""
    return str(ModelShape.parse(f"{shape}-p4")) if condition == FOUR_DIMENSIONS else shape


def text_arm(
    variant: str, shape: str, steps: int, seeds: int, condition: str, batch: int = 32, context: int = 64, **more: Any
) -> Arm:
    """A decoder on text in windows of so many bytes."""
    options = decoder(context=context, **CONDITIONS.get(condition, {}))
    if condition == FOUR_DIMENSIONS:
        options = options.replace(rope_base=one_turn(context))
    return Arm(
        variant=variant,
        condition=condition,
        task={"name": "text", "context": context},
        shape=with_positions(shape, condition),
        options=options,
        recipe=muon(batch),
        steps=steps,
        seeds=seeds,
        **more,
    )


def keeps(variant: str, baseline: str, margin: float, metric: str = BITS, **more: Any) -> Test:
    return Test(
        name="keeps", variant=variant, baseline=baseline, metric=metric, weights={variant: 1.0, baseline: -1.0},
        direction="at most", threshold=margin, **more,
    )  # fmt: skip


def better(variant: str, baseline: str, name: str = "", metric: str = BITS, **more: Any) -> Test:
    """A variant has less error than another."""
    return Test(
        name=name or f"{variant} vs {baseline}", variant=variant, baseline=baseline, metric=metric,
        weights={variant: 1.0, baseline: -1.0}, direction="at most", **more,
    )  # fmt: skip


def credit(thin: str = "thin", base: str = "base", control: str = "control", metric: str = BITS, **more: Any) -> Test:
    """Heads restore at least half of what the layers were worth."""
    return Test(
        name="credit to heads", variant=thin, baseline=f"halfway between {base} and {control}", metric=metric,
        weights={thin: 1.0, base: -0.5, control: -0.5}, direction="at most", **more,
    )  # fmt: skip


def beats(baseline: tuple[str, float], **more: Any) -> Learned:
    return Learned(baseline=baseline[0], value=baseline[1], **more)


def refilled(shape: str, like: str, options: ModelOptions) -> str:
    """A shape whose MLP takes what is missing of another's parameters, or gives it back."""
    asked, wanted = ModelShape.parse(shape), parameters(ModelShape.parse(like), options)["total"]
    short, mlp = wanted - parameters(asked, options)["total"], asked.mlps[0]
    of_one = parameters(ModelShape.parse(f"{shape}-m{mlp + 1}"), options)["total"] - (wanted - short)
    return f"{shape}-m{mlp + round(short / of_one)}"


def slope_weights(sizes: dict[str, int], seeds: dict[str, int], variant: str, base: str) -> dict[str, float]:
    """Of b in log(variant/base) = a + b log₁₀ N, least squares over sizes weighted by their seeds."""
    logs = {name: math.log10(size) for name, size in sizes.items()}
    total = sum(seeds[name] for name in sizes)
    centre = sum(seeds[name] * logs[name] for name in sizes) / total
    spread = sum(seeds[name] * (logs[name] - centre) ** 2 for name in sizes)
    weights = {name: round(seeds[name] * (logs[name] - centre) / spread, 9) for name in sizes}
    return _opposed(weights, variant, base)


def beyond_weights(
    sizes: dict[str, int], seeds: dict[str, int], last: str, variant: str, base: str
) -> dict[str, float]:
    """Of what the largest size has more than the line through the others predicts for it."""
    logs = {name: math.log10(size) for name, size in sizes.items()}
    rest = [name for name in sizes if name != last]
    total = sum(seeds[name] for name in rest)
    centre = sum(seeds[name] * logs[name] for name in rest) / total
    spread = sum(seeds[name] * (logs[name] - centre) ** 2 for name in rest)
    ahead = logs[last] - centre
    weights = {name: -round(seeds[name] * (1 / total + ahead * (logs[name] - centre) / spread), 9) for name in rest}
    return _opposed({**weights, last: 1.0}, variant, base)


def _opposed(weights: dict[str, float], variant: str, base: str) -> dict[str, float]:
    pairs: Iterable[tuple[str, float]] = (
        (f"{name}:{side}", sign * weight)
        for name, weight in weights.items()
        for side, sign in ((variant, 1), (base, -1))
    )
    return dict(pairs)


# ---- the study -----------------------------------------------------------------------------------------------------


def registered_study(
    name: str, about: str | None, desktop: Registration, smoke: Registration, keep_weights: bool = False
) -> Study:
    """A study whose presets are registrations; smoke decides nothing."""
    return Study(name, about or "", {"smoke": smoke, "desktop": desktop}, _cells, _chart, (), keep_weights)


def _cells(preset: Preset) -> list[Cell]:
    assert isinstance(preset, Registration)
    return preset.cells()


def _chart(rows: list[Row], preset: str) -> Any:
    """Every variant's error over its parameters, by stratum and condition."""
    from headwise.charts.curves import frontier

    named = [
        Row({**row.cell, "arm": ", ".join(word for word in row.cell.values() if word)}, row.seed, row.metrics, row.key)
        for row in rows
    ]
    return frontier(named, "arm", "Registered variants", ["learning rates chosen on validation"], "error")


def smaller(
    registration: Registration,
    shapes: dict[str, str],
    task: Mapping[str, Any] = MappingProxyType({}),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Registration:
    """For tests: two steps, two seeds, one learning rate, shapes by variant; on whatever data there is."""
    arms = tuple(
        arm.replace(
            steps=2,
            seeds=2,
            evaluations=2,
            shape=with_positions(shapes.get(arm.name, shapes.get(arm.variant, arm.shape)), arm.condition),
            recipe=arm.recipe.replace(batch=8),
            task={**arm.task, **task},
            options=arm.options.replace(**options),
        )
        for arm in registration.arms
    )
    grid = registration.grid.replace(first=(0.01,), most=1, seeds=(1000,))
    return registration.replace(arms=arms, grid=grid, sources=(), looks=())
