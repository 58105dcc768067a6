"""One training loop, a function. It never asks which task or model it serves."""

import math
from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor, nn

from headwise.spec import Spec

Batch = tuple[Tensor, Tensor]


class Recipe(Spec):
    """How a model is trained: AdamW, a linear warm-up, then a cosine down to zero."""

    steps: int = Field(default=2000, gt=0, description="optimiser steps")
    batch: int = Field(default=128, gt=0, description="samples a step")
    learning_rate: float = Field(default=0.01, gt=0, description="at the end of the warm-up")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="AdamW's averages")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's")
    warm_up: float = Field(default=0.05, ge=0, le=1, description="part of the steps")


def schedule(step: int, recipe: Recipe) -> float:
    """The learning rate of a step as a part of the highest."""
    rising = max(1, round(recipe.warm_up * recipe.steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, recipe.steps - rising)))


def train(
    model: nn.Module,
    draw: Callable[[int], Batch],
    loss: Callable[[Tensor, Tensor], Tensor],
    recipe: Recipe,
    on_step: Callable[[int], None] = lambda step: None,
) -> nn.Module:
    """Train in place: `draw(i)` gives batch i, `on_step(i)` hears that step i is done."""
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, recipe))
    for step in range(recipe.steps):
        inputs, labels = draw(step)
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()
        rates.step()
        on_step(step)
    return model
