"""The papers' constructions as weights of the ordinary layer and models.

    construct({"name": "full-rank-head", "inverse_temperature": 100}, model, seed=0)

A construction fills a model's weights, and gives what is known about it in closed form as numbers by name. A run names
one as its `begin`, so that it is evaluated, stored and judged like anything trained.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from headwise.spec import SpecError

CONSTRUCTIONS: dict[str, Callable[..., dict[str, float]]] = {}


def construct(spec: dict[str, Any], model: nn.Module, seed: int) -> dict[str, float]:
    """Fill the weights of a model; what is known of the construction comes back."""
    options = dict(spec)
    name = str(options.pop("name", ""))
    if name not in CONSTRUCTIONS:
        raise SpecError(f"no construction '{name}'; there are {', '.join(CONSTRUCTIONS)}")
    return CONSTRUCTIONS[name](model, seed=seed, **options)
