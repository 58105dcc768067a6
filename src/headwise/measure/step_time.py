"""How long a training step takes here, measured block by block, so that a model may be too large for this machine.

A budget of time is met by steps, not by sizes: a shape whose step takes twice as long gets half the steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

from headwise.cost import counted_layers, parameter_counts, sequence_length
from headwise.known import Known, find
from headwise.models import Encoder
from headwise.options import ModelOptions
from headwise.search import candidates, starting_point
from headwise.shape import ModelShape
from headwise.shown import Shown

REPEATS = 5
MOST_TOKENS = 256
MOST_SHAPES = 64


def body_step_seconds(shape: ModelShape, options: ModelOptions, tokens: int) -> float:
    """Forward and backward of the body on one sequence: the sum of its blocks' medians."""
    layers = counted_layers(shape, options)
    return sum(
        times * _block_seconds(ModelShape.of([a], [mlp]), options.replace(mixer=str(mixer)), tokens)
        for (a, mlp, mixer), times in layers
    )


def _block_seconds(shape: ModelShape, options: ModelOptions, tokens: int) -> float:
    body = Encoder(shape, options)
    x = torch.randn(1, tokens, shape.width, requires_grad=True)
    seconds = []
    for _ in range(REPEATS + 1):  # the first one warms up
        start = perf_counter()
        body(x).sum().backward()
        seconds.append(perf_counter() - start)
    return median(seconds[1:])


@dataclass(frozen=True)
class EqualTimes(Shown):
    """Shapes with the time of their training step here, and the steps that fit the base's, as ratios to the base."""

    rows: tuple[dict[str, Any], ...]
    base: str

    @property
    def headline(self) -> str:
        return f"{len(self.rows)} shapes with the time of a training step, measured here on the body; base {self.base}"

    def as_dict(self) -> list[Any]:
        """What `headwise shapes --hold time --json` prints."""
        return self.records()

    def records(self) -> list[dict[str, Any]]:
        return list(self.rows)


def equal_time(
    base: ModelShape | str,
    options: ModelOptions | None = None,
    *,
    vary: Sequence[str] = ("heads",),
    context: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> EqualTimes:
    """Every combination of the axes with its step time, and its steps in the base's time, as ratios to the base."""
    known = find(base) if isinstance(base, str) else Known("", base)
    options, vary = options or known.options, tuple(vary)
    base = options.complete(known.shape)
    tokens = min(sequence_length(options, context), MOST_TOKENS)
    shapes = list(dict.fromkeys(c.shape for c in candidates(starting_point(base), vary, options, MOST_SHAPES)))
    seconds = []
    for done, shape in enumerate(shapes):
        on_progress(done, len(shapes))
        seconds.append(body_step_seconds(shape, options, tokens))
    on_progress(len(shapes), len(shapes))
    own = parameter_counts(base, options)["parameters_body"]
    rows = []
    for shape, time in zip(shapes, seconds, strict=True):
        counts = parameter_counts(shape, options)
        costs = {**counts, "difference": counts["parameters_body"] / own - 1}
        ratios = {"time": time / seconds[0], "steps": seconds[0] / time, "tokens": tokens}
        rows.append({"shape": str(shape), **shape.model_dump(), **costs, **ratios})
    order = sorted(rows, key=lambda row: (row["heads"], row["qk_rank"], row["v_rank"]))
    return EqualTimes(tuple(order), str(base))
