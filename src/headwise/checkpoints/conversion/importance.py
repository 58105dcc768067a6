"""What heads and layers are worth to the loss, measured on text: those that are worth least go.

A head is scored to second order: with a gate of 1 on what it adds to the output, the mean over blocks of text of the
squared derivative of the loss by that gate (the Fisher information, a layer's heads at once in one pass back). A layer
is scored by the loss of the model without it.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.checkpoints.conversion.text import BATCH

OUTPUTS = ("o_proj", "dense", "out_proj")


@dataclass(frozen=True)
class Importance:
    """Of a layer, how much the loss grows without it, relative; of a head, its share of its layer's information."""

    layer: int
    head: int | None
    score: float


def head_scores(model: Any, blocks: Tensor, heads: int) -> Tensor:
    """(layers, heads)"""
    layers = model.base_model.layers
    scores = torch.zeros(len(layers), heads, dtype=torch.float64)
    for some in blocks.split(BATCH):
        gates = [torch.ones(len(some), 1, heads, 1, requires_grad=True) for _ in layers]
        hooks = [
            _output(layer.self_attn).register_forward_pre_hook(
                lambda _, args, gate=gate: ((args[0].unflatten(-1, (heads, -1)) * gate).flatten(-2),)
            )
            for layer, gate in zip(layers, gates, strict=True)
        ]
        try:
            with torch.enable_grad():
                logits = model(some, use_cache=False).logits[:, :-1].float()
                losses = F.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten(), reduction="none")
                found = torch.autograd.grad(losses.view(len(some), -1).mean(1).sum(), gates)
        finally:
            for hook in hooks:
                hook.remove()
        scores += torch.stack([one.double().square().sum(0).flatten() for one in found])
    return scores / len(blocks)


def _output(attention: Any) -> Any:
    return next(getattr(attention, name) for name in OUTPUTS if hasattr(attention, name))


def head_rows(scores: Tensor) -> list[Importance]:
    shares = scores / scores.sum(1, keepdim=True).clamp(min=1e-300)
    return [Importance(i, h, float(one)) for i, row in enumerate(shares) for h, one in enumerate(row)]
