"""How far a run is, and how a checkpoint takes it back there."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.training.optim import FlatOptimizer
from headwise.training.resume import Contents


@dataclass
class Progress:
    """What a checkpoint holds beside tensors."""

    step: int = 0
    bad_steps: int = 0
    losses: float = 0.0  # their sum since the last evaluation, and how many they are
    summed: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, str, float]] = field(default_factory=list)
    probes: list[tuple[int, str, float]] = field(default_factory=list)
    known: dict[str, float] = field(default_factory=dict)  # what a construction says of itself


def state(optimizer: FlatOptimizer) -> dict[str, Tensor]:
    """The tensors of a checkpoint: all that a later step depends on."""
    return {**optimizer.state(), "random": torch.get_rng_state()}


def restore(saved: Contents | None, optimizer: FlatOptimizer) -> Progress:
    """Go on from a checkpoint, or from the beginning where there is none."""
    if saved is None:
        return Progress()
    tensors, facts = saved
    torch.set_rng_state(tensors.pop("random"))
    optimizer.load(tensors)
    facts |= {name: [tuple(row) for row in facts[name]] for name in ("curve", "probes")}
    return Progress(**facts)
