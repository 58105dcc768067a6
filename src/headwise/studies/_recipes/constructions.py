"""Runs that train nothing: weights written down by a construction, and measured."""

from typing import Any

from headwise.theory.needs import needed
from headwise.training.run import Run


def constructed(begin: dict[str, Any], dim: int, heads: int = 1, rank: int = 1, seed: int = 0) -> Run:
    """A run that trains nothing: a construction's weights in the model it needs, measured."""
    shape, options, task = needed(begin, dim, heads, rank)
    return Run(task=task, shape=shape, options=options, begin=begin, steps=0, seed=seed)
