"""Nanochat-style decoders on bytes of text, and on associative recall: sizes, and runs of them."""

from typing import Any

from headwise.ledger.study import Preset
from headwise.options import ModelOptions
from headwise.options import preset as options_preset
from headwise.shape import ModelShape
from headwise.spec import Spec
from headwise.studies._recipes.thinner import ThinnerPreset
from headwise.training.run import Recipe, Run


class TextTraining(Spec):
    """How a model is trained on text."""

    context: int
    batch: int
    steps: int


class TextPreset(TextTraining, Preset):
    """A decoder's width and depth, and its training; a study adds its heads."""

    width: int
    depth: int


class RecallTraining(Spec):
    """A decoder on associative recall, the task's sizes and its training."""

    width: int
    heads: int
    depth: int
    vocab: int
    pairs: int
    length: int
    batch: int
    steps: int


class LookUpPreset(TextPreset):
    """The same number of heads on text, and beside it a decoder on recall."""

    heads: int
    recall: RecallTraining


class ThinnerTextPreset(ThinnerPreset, TextTraining):
    """Depth for heads in a decoder on text."""


TEXT_SIZES = {
    "smoke": TextPreset(width=16, depth=1, context=8, batch=128, steps=5, rates=(0.01,)),
    "laptop": TextPreset(width=64, depth=2, context=64, batch=32, steps=500, rates=(0.003, 0.01, 0.03)),
    "paper": TextPreset(width=1792, depth=28, context=2048, batch=256, steps=20_000, rates=(0.0003, 0.001, 0.003)),
}
LOOK_UP = {
    "smoke": LookUpPreset.like(
        TEXT_SIZES["smoke"],
        heads=2,
        recall=RecallTraining(width=16, heads=2, depth=1, vocab=128, pairs=4, length=32, batch=256, steps=5),
    ),
    "laptop": LookUpPreset.like(
        TEXT_SIZES["laptop"],
        heads=4,
        recall=RecallTraining(width=32, heads=4, depth=2, vocab=32, pairs=12, length=64, batch=32, steps=800),
    ),
    "paper": LookUpPreset.like(
        TEXT_SIZES["paper"],
        heads=14,
        recall=RecallTraining(width=112, heads=14, depth=2, vocab=8192, pairs=64, length=512, batch=256, steps=100_000),
    ),
}
THINNER = {
    "smoke": ThinnerTextPreset(
        width=16, base=(2, 2), thin=((1, 4),), equal=(1,), context=8, batch=128, steps=3, rates=(0.01,)
    ),
    "laptop": ThinnerTextPreset(
        width=32, base=(6, 2), thin=((4, 4),), equal=(4, 2, 1), context=32, batch=32, steps=300,
        rates=(0.01, 0.03), seeds=5,
    ),
    "paper": ThinnerTextPreset(
        width=768, base=(12, 12), thin=((8, 24),), equal=(8, 4, 2, 1), context=512, batch=256, steps=20_000,
        rates=(0.0003, 0.001, 0.003),
    ),
}  # fmt: skip


def text_options(**changes: Any) -> ModelOptions:
    """A nanochat-style decoder that reads bytes, begun with unit variance."""
    return options_preset("nanochat", **{"init": "unit", "vocab": 256, **changes})


def text_run(training: TextTraining, shape: ModelShape, seed: int, **options: Any) -> Run:
    """A nanochat-style decoder on bytes of text."""
    return Run(
        task={"name": "text", "context": training.context},
        shape=str(shape),
        options=text_options(**options),
        recipe=Recipe(warm_up=0.1, batch=training.batch),
        steps=training.steps,
        seed=seed,
        evaluations=2,
    )


def recall_run(training: RecallTraining, shape: ModelShape, seed: int, **options: Any) -> Run:
    """A small decoder on associative recall, with Muon: AdamW does not reliably find the look-up in so few steps."""
    task = {"vocab": training.vocab, "pairs": training.pairs, "length": training.length}
    return Run(
        task={"name": "recall", **task},
        shape=str(shape),
        options=text_options(vocab=training.vocab, context=training.length, **options),
        recipe=Recipe(optimizer="muon", warm_up=0.1, batch=training.batch),
        steps=training.steps,
        seed=seed,
        evaluations=2,
    )
