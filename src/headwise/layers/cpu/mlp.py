"""The MLP on a processor: two products with an activation between them, derivatives by hand.

Up to a width of 128 one compiled kernel (`tiled_mlp.cpp`) makes some hidden units of some tokens, activates them and
multiplies them on while a cache holds them, and the backward pass makes activations again from what they were made of:
the hidden units, four times as many numbers as there are tokens, go through memory once instead of four to eight times.

Letters: W width, M hidden units.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.layers.cpu.compiled import MLPSize, call, library
from headwise.layers.cpu.tiled import REALS, fits, into

PANEL = 32  # hidden units that stand together


def mlp_size(width: int, activation: str, gated: bool, dtype: torch.dtype = torch.float32) -> MLPSize | None:
    """The kernel of an MLP, if its size is one that kernels are for."""
    if not fits(width, dtype):
        return None
    return MLPSize(real=REALS[dtype], width=width, activation=activation.upper().replace("-", "_"), gated=gated)


def panels(weight: Tensor) -> Tensor:
    """(W, M) as (M / PANEL, W, PANEL)."""
    return weight.unflatten(1, (-1, PANEL)).movedim(1, 0).contiguous()


def panelled(w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, gated: bool) -> tuple[Tensor, ...]:
    """What `TiledMLP` takes, from the weights (M or 2M, W) and (W, M): units of 0 are added until panels are full."""
    width, hidden = w2.shape
    lacking = -hidden % PANEL
    b1 = w1.new_zeros(len(w1)) if b1 is None else b1
    b2 = w2.new_zeros(width) if b2 is None else b2
    if lacking:
        parts = 2 if gated else 1
        w1 = F.pad(w1.view(parts, hidden, width), (0, 0, 0, lacking)).flatten(0, 1)
        b1, w2 = F.pad(b1.view(parts, hidden), (0, lacking)).flatten(), F.pad(w2, (0, lacking))
    return panels(w1.mT), b1, panels(w2), b2, w1.detach().contiguous(), w2.detach().mT.contiguous()


class TiledMLP(torch.autograd.Function):
    """act(x W₁ᵀ + b₁) W₂ᵀ + b₂: (..., W) give (..., W); gated, the second half of W₁ multiplies the activated first.

    A `residual`, if given, is added. `first` and `second` are W₁ᵀ and W₂ in panels; the kernel also wants W₁ and W₂ᵀ
    as they are. `sums`, if given, are what the derivatives of first, b₁, second and b₂ are added to.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        first: Tensor,
        b1: Tensor,
        second: Tensor,
        b2: Tensor,
        w1: Tensor,
        w2t: Tensor,
        size: MLPSize,
        sums: list[Tensor | None] | None,
    ) -> Tensor:
        x = x.contiguous()
        residual = None if residual is None else residual.contiguous()
        count = x.shape[:-1].numel()
        kept = x.new_empty(len(first), count, PANEL) if any(ctx.needs_input_grad) else None
        result = torch.empty_like(x)
        call(library(size).forward, (x, residual, first, b1, w2t, b2, kept, result), count, len(second))
        ctx.save_for_backward(x, first, b1, second, b2, w1, kept)
        ctx.size, ctx.sums = size, sums
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, first, b1, second, b2, w1, kept = ctx.saved_tensors
        sums = into(ctx.sums, first, b1, second, b2)
        by_x, outer = torch.empty_like(x), gradient.contiguous()
        given = x, outer, kept, w1, second, by_x, *sums
        call(library(ctx.size).backward, given, x.shape[:-1].numel(), len(second))
        by_residual = outer if ctx.needs_input_grad[1] else None
        return by_x, by_residual, *(sums if ctx.sums is None else [None] * 4), None, None, None, None
