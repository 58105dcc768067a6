"""What a comparison asks: a task or somebody's own trainer, the base, the variants, and how much time there is.

`ask` and `ask_command` make a question of what people write; `chosen_variants` gives the shapes that it is about.
No torch here.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from headwise.comparison.command import WORD, command_task
from headwise.known import find
from headwise.options import ModelOptions
from headwise.search import AXES, candidates, equal_cost, starting_point
from headwise.shape import ModelShape
from headwise.spec import JsonSpec, SpecError
from headwise.training.asked import asked_options, asked_task
from headwise.training.run import Execution, Recipe

HOLDS = ("params", "flops", "kv", "time")
RATES = (0.002, 0.004, 0.008, 0.016, 0.032)  # learning rates
BATCH = 16
MOST_SEEDS = 1000
MOST_VARIANTS = 6  # that are proposed, with the base
AROUND = 4.0  # proposed sizes are within this factor of the base's


class Question(JsonSpec):
    """What is asked. Zero steps or seeds: as many as fit the budget."""

    task: dict[str, Any] = Field(description="name and options of the task, or of somebody's own trainer")
    options: ModelOptions = Field(description="the models' options")
    tokens: int = Field(ge=0, description="of one sample; 0 where that is not known")
    held_out: tuple[int, int] = Field(description="samples that are evaluated: validation, test")
    base: str = Field(description="what the variants are compared with")
    arms: tuple[str, ...] = Field(default=(), description="shapes to compare; none: shapes of equal cost")
    hold: str = Field(default="params", description="what is equal in all variants")
    vary: tuple[str, ...] = Field(default=("heads",), description="axes along which variants are proposed")
    budget: float = Field(default=0.0, ge=0, description="seconds; 0 where steps and seeds are given")
    steps: int = Field(default=0, ge=0, description="training steps of the finalists")
    seeds: int = Field(default=0, ge=0, le=MOST_SEEDS, description="of each finalist")
    rates: tuple[float, ...] = Field(default=RATES, description="learning rates to choose from")
    recipe: Recipe = Field(default_factory=Recipe, description="how models are trained, but for the learning rate")
    shorter: bool = Field(default=True, description="whether runs of fewer steps can be had")
    execution: Execution = Field(default_factory=Execution, description="what was resolved for this machine")

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()[:16]


# ---- as people write it --------------------------------------------------------------------------------------------


def ask(
    task: str,
    base: str = "",
    *,
    own: Mapping[str, Any] | None = None,
    family: str = "",
    options: Mapping[str, Any] | None = None,
    device: str = "auto",
    precision: str = "auto",
    **settings: Any,
) -> Question:
    """A question about one of headwise's tasks; without a base, about the task's usual shape.

    `own` are further options of the task; `family` and `options` say what the models are in place of what the task
    usually has.
    """
    from headwise.sweep.resolve import resolve
    from headwise.training.evaluation import TEST_SAMPLES, VALIDATION_SAMPLES

    asked, execution = asked_task(task, **own or {}), resolve(device, precision)
    held_out = min(VALIDATION_SAMPLES, asked.samples("validation") or VALIDATION_SAMPLES)
    model = asked_options(asked.default_options(), asked.tokens, family, options or {})
    about: dict[str, Any] = {"options": model, "tokens": asked.tokens_in(model), "execution": execution}
    about |= {"held_out": (held_out, asked.samples("test") or TEST_SAMPLES)}
    return Question(
        task=asked.spec(), base=str(model.complete(find(base or asked.usual_shape).shape)), **about, **settings
    )


def ask_command(command: str, metric_json: str, metric: str, base: str, **settings: Any) -> Question:
    """A question about somebody's own trainer."""
    task, words = command_task(command, metric_json, metric), set(WORD.findall(command))
    if not base:
        raise SpecError("--command needs a --base: the shape that your model has now")
    if settings["hold"] == "time":
        raise SpecError("time cannot be held in a trainer of your own: hold params, flops or kv, or give --arms")
    if "lr" in words and not settings["rates"]:
        raise SpecError("the command asks for {lr}: give --lr, as in --lr 0.0003,0.001,0.003")
    if "steps" in words and not settings["steps"]:
        raise SpecError("the command asks for {steps}: give --steps, the length of a full run")
    settings |= {"rates": settings["rates"] if "lr" in words else RATES[:1], "steps": settings["steps"] or 1}
    about: dict[str, Any] = {"options": ModelOptions(), "tokens": 0, "held_out": (0, 0), "shorter": "steps" in words}
    return Question(task=task, base=str(find(base).shape), **about, **settings)


def read_budget(text: str) -> float:
    """'90s', '30m', '2h' or '1h30m' in seconds; a bare number is minutes."""
    units = {"s": 1, "m": 60, "h": 3600}
    if not re.fullmatch(r"(\d+(\.\d+)?[smh])+|\d+(\.\d+)?", text):
        raise SpecError(f"cannot read the budget '{text}'; write 90s, 30m, 2h or 1h30m")
    parts = re.findall(r"([\d.]+)([smh]?)", text)
    return sum(float(number) * units[unit or "m"] for number, unit in parts)


def allowed(budget: str, steps: int, seeds: int) -> float:
    """Seconds a question has; where it fixes steps and seeds, the budget has no say and is not part of it."""
    seconds = read_budget(budget)
    return 0.0 if steps and seeds else seconds


def read_rates(rates: str | Sequence[float]) -> tuple[float, ...]:
    """Learning rates to choose from, in order: numbers, or text as in 0.001,0.003,0.01."""
    try:
        parts = rates.split(",") if isinstance(rates, str) and rates else rates
        grid = tuple(sorted(float(part) for part in parts))
    except ValueError:
        raise SpecError(f"cannot read '{rates}' as learning rates; write them as in 0.001,0.003,0.01") from None
    if any(rate <= 0 for rate in grid) or len(set(grid)) < len(grid):
        raise SpecError(f"learning rates are positive and different from each other, not {rates}")
    return grid


# ---- variants ------------------------------------------------------------------------------------------------------


def chosen_variants(question: Question) -> list[str]:
    """The base, then the given shapes or those that are proposed."""
    base, complete = find(question.base).shape, question.options.complete
    if question.hold not in HOLDS:
        raise SpecError(f"cannot hold '{question.hold}'; there are {', '.join(HOLDS)}")
    given = [complete(find(text).shape) for text in question.arms] if question.arms else _proposed(question, base)
    variants = list(dict.fromkeys(map(str, (base, *given))))
    if len(variants) < 2:
        raise SpecError(
            f"nothing to compare {base} with: give --arms, or other axes to --vary (there are {', '.join(AXES)})"
        )
    return variants


def _proposed(question: Question, base: ModelShape) -> list[ModelShape]:
    """Shapes of equal cost around the base; of many, those that lie farthest from each other."""
    vary = question.vary
    if "rope_rank" in vary and question.tokens and question.options.positions != "rotary":
        problem = "rope_rank is the part of a head that turns, but positions here are not rotary"
        raise SpecError(
            f"{problem}: leave it out of --vary, or give a family whose positions are, as in --family llama"
        )
    if question.hold == "time":
        shapes = [candidate.shape for candidate in candidates(starting_point(base), vary, question.options)]
    else:
        settings: dict[str, Any] = {"hold": question.hold, "vary": vary, "context": question.tokens}
        shapes = [row.shape for row in equal_cost(base, question.options, **settings)]
    places = {str(shape): _place(shape) for shape in shapes}
    own = _place(base)
    near = [shape for shape in shapes if _distance(places[str(shape)], own) <= math.log2(AROUND) and shape != base]
    chosen = [base]
    while near and len(chosen) < MOST_VARIANTS:
        gaps = {str(s): min(_distance(places[str(s)], places.get(str(c), own)) for c in chosen) for s in near}
        chosen.append(max(near, key=lambda shape: gaps[str(shape)]))
        near.remove(chosen[-1])
    return sorted(chosen, key=lambda shape: places.get(str(shape), own))


def _place(shape: ModelShape) -> tuple[float, ...]:
    """Sizes as powers of two; of latents and rotations, how much smaller they are than what they stand for."""
    layer = shape.layers[0]
    sizes = (layer.heads, layer.qk_rank, layer.v_rank, layer.kv_heads, shape.depth, shape.mlps[0])
    keys_and_values = layer.kv_heads * (layer.qk_rank + layer.v_rank)
    parts = ((layer.kv_latent, keys_and_values), (layer.q_latent, layer.heads * layer.qk_rank))
    ratios = [part / whole if part else 1 for part, whole in (*parts, (layer.rope_rank, layer.qk_rank))]
    return tuple(math.log2(size) for size in (*(max(1, size) for size in sizes), *ratios))


def _distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
