"""The MLP on a processor, wider than `mlp.py` is for: torch's two products, and one kernel for all between them.

There torch's products are as fast as ours, but what it does between them is a tenth of a step: the bias, the
activation, its slope and the bias's derivative each visit all hidden units in memory. Here each pass visits them once
(`wide_mlp.cpp`), and of the two tensors of hidden units that torch keeps, one is made again.

Letters: W width, M hidden units.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.layers.cpu.compiled import WideMLPSize, call, library
from headwise.layers.cpu.linear import by_weight, times
from headwise.layers.cpu.tiled import LARGEST_WIDTH, REALS, VECTOR


def wide_mlp_size(
    width: int, hidden: int, activation: str, gated: bool, dtype: torch.dtype = torch.float32
) -> WideMLPSize | None:
    """The kernel of an MLP, if its size is one that this is for."""
    if width <= LARGEST_WIDTH or hidden % VECTOR or dtype not in REALS:
        return None
    return WideMLPSize(real=REALS[dtype], activation=activation.upper().replace("-", "_"), gated=gated)


class WideMLP(torch.autograd.Function):
    """act(x W₁ᵀ + b₁) W₂ᵀ + b₂ + residual: (..., W) give (..., W); gated, the second half of W₁ multiplies the first.

    Biases and residual may be None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        w1: Tensor,
        b1: Tensor | None,
        w2: Tensor,
        b2: Tensor | None,
        size: WideMLPSize,
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        bias = w1.new_zeros(len(w1)) if b1 is None else b1
        sums = times(rows, w1)
        made = sums.new_empty(len(sums), w2.shape[1])
        call(library(size).forward, (sums, bias, made), *made.shape)
        output = times(made, w2, b2).view(x.shape)
        ctx.save_for_backward(rows, w1, bias, w2, sums)
        ctx.size, ctx.biased = size, (b1 is not None, b2 is not None)
        return output if residual is None else output.add_(residual)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, w1, bias, w2, sums = ctx.saved_tensors
        outer = gradient.reshape(rows.shape)
        by_made = times(outer, w2.mT)
        made, by_sums, by_bias = torch.empty_like(by_made), torch.empty_like(sums), torch.zeros_like(bias)
        call(library(ctx.size).backward, (sums, bias, by_made, made, by_sums, by_bias), *made.shape)
        by_w1, by_w2 = by_weight(by_sums, rows), by_weight(outer, made)
        by_x = times(by_sums, w1.mT).view(gradient.shape) if ctx.needs_input_grad[0] else None
        by_b1, by_b2 = (by_bias if ctx.biased[0] else None), (outer.sum(0) if ctx.biased[1] else None)
        by_residual = gradient if ctx.needs_input_grad[1] else None
        return by_x, by_residual, by_w1, by_b1, by_w2, by_b2, None
