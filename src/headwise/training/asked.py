"""A model and its recipe as people ask for them, and the same in words: one way for `train` and `compare`.

What is not said stays as the task's usual model has it and as `USUAL` says. No torch here.
"""

import json
from collections.abc import Mapping
from typing import Any, TypedDict

from headwise.options import FACTS, PRESETS, STYLES, ModelOptions, preset
from headwise.spec import SpecError
from headwise.training.run import Recipe

USUAL: dict[str, Any] = {"warm_up": 0.1, "clip": 1.0}  # where a recipe asked for differs from Recipe's own defaults
_OF_THE_TASK = (*FACTS, "head", "segments", "pooler")  # what a family takes over from the task's usual model

_NORMS = {"layer": "LayerNorm", "rms": "RMSNorm", "unit": "norm with one scalar"}
_ACTIVATIONS = {"relu": "ReLU", "relu2": "ReLU²", "gelu": "GELU", "gelu-tanh": "GELU (tanh)", "silu": "SiLU"}
_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon for the matrices of the layers, AdamW for the rest"}


class RecipeSettings(TypedDict, total=False):
    """How models are trained, as `train` and `compare` take it."""

    optimizer: str  # adamw, or muon for the matrices of the layers ("adamw")
    weight_decay: float  # of matrices (0)
    warm_up: float  # part of the steps in which the learning rate rises (0.1)
    clip: float  # largest norm of the gradient, 0 for no clipping (1)
    betas: tuple[float, float]  # AdamW's averages (0.9, 0.95)
    schedule: str  # cosine, linear or constant ("cosine")
    final_learning_rate: float  # at the last step, as a part of the highest: 0.1 is 10 % (0)


RECIPE_NAMES = tuple(RecipeSettings.__annotations__)


def asked_recipe(settings: Mapping[str, Any], **own: Any) -> Recipe:
    """The recipe that settings ask for; None in one of them: the usual."""
    said = {name: settings[name] for name in RECIPE_NAMES if settings.get(name) is not None}
    return Recipe(**{**USUAL, **own, **said})


def asked_options(usual: ModelOptions, tokens: int, family: str, options: Mapping[str, Any]) -> ModelOptions:
    """The task's usual model or a family's, with the options that were given."""
    if decided := [name for name in options if name in FACTS]:
        raise SpecError(f"{decided[0]} follows from the data and cannot be an option; see the task's own options")
    if family:
        usual = _of_family(family, usual, tokens)
    return usual.replace(**options) if options else usual


def _of_family(name: str, usual: ModelOptions, tokens: int) -> ModelOptions:
    """A family's model with what the data decides, and the head that the task needs where it is of the same kind."""
    own = (PRESETS | STYLES).get(name, {})
    learned = own.get("positions") == "learned"
    taken = _OF_THE_TASK if own.get("family") == usual.family else FACTS
    facts = {field: getattr(usual, field) for field in taken}
    return preset(name, **facts | ({"context": usual.context or tokens} if learned else {}))


def read_options(pairs: list[str]) -> dict[str, Any]:
    """Options as they are written on the command line: `tied=true`, `norm=rms`."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in ModelOptions.model_fields:
            there = ", ".join(name for name in ModelOptions.model_fields if name not in FACTS)
            raise SpecError(f"cannot read the option '{pair}'; write key=value, with one of {there}")
        try:
            options[name] = json.loads(text)
        except json.JSONDecodeError:
            options[name] = text
    return options


def asked_task(text: str, **options: Any) -> Any:
    """A task as it is written, with further options of its own; those that are None or empty were not given."""
    from headwise.tasks import parse

    return parse(text, **{name: value for name, value in options.items() if value})


# ---- in words ------------------------------------------------------------------------------------------------------


def model_in_words(options: ModelOptions) -> str:
    """What kind of model: the family it is of, how it differs from that, and what it is made of."""
    family, changes = _nearest(options)
    name = f"{family}-style" if family else options.family
    differs = f" with {', '.join(changes)}" if changes else ""
    norm = _NORMS.get(options.norm.removesuffix("-plain"), "no norm")
    parts = [f"{norm} ({options.norm_place}-norm)", f"{options.positions} positions"]
    parts += ["QK norm"] if options.qk_norm != "none" else []
    gated = "gated " if options.mlp_kind == "gated" else ""
    parts += [f"{gated}MLP with {_ACTIVATIONS[options.activation]}"]
    parts += ["tied embeddings" if options.tied else "untied embeddings"] if options.vocab else []
    parts += [f"{options.vocab:,} tokens"] if options.vocab else []
    parts += [f"dropout {options.dropout:g}"] if options.dropout else []
    return f"{name}{differs}: {', '.join(parts)}; initialised as {options.init}"


def _nearest(options: ModelOptions) -> tuple[str, list[str]]:
    """The family with the fewest differences, and these; none where half the options differ."""
    best: tuple[str, list[str]] = "", []
    for name, own in (PRESETS | STYLES).items():
        known = {field: own.get(field, info.default) for field, info in ModelOptions.model_fields.items()}
        changes = [
            f"{field}={_written(value)}"
            for field, value in options.model_dump().items()
            if field not in _OF_THE_TASK and value != known[field]
        ]
        if known["family"] == options.family and (not best[0] or len(changes) < len(best[1])):
            best = name, changes
    return best


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def recipe_in_words(recipe: Recipe, rate: str = "", tokens: int = 0) -> str:
    """How it is trained; `rate` is written in the place of the recipe's learning rate."""
    of_tokens = f" × {tokens:,} tokens" if tokens else ""
    end = f"{recipe.final_learning_rate:.0%} of it" if recipe.final_learning_rate else "0"
    falls = {"constant": "constant"}.get(recipe.schedule, f"{recipe.schedule} to {end}")
    parts = [
        f"{_OPTIMIZERS[recipe.optimizer]} (betas {recipe.betas[0]:g}, {recipe.betas[1]:g})",
        f"learning rate {rate or f'{recipe.learning_rate:g}'}, {recipe.warm_up:.0%} warm-up, then {falls}",
        f"weight decay {recipe.weight_decay:g}",
        f"gradients clipped at {recipe.clip:g}" if recipe.clip else "no gradient clipping",
        f"batch of {recipe.batch}{of_tokens}",
    ]
    return "; ".join(parts)
