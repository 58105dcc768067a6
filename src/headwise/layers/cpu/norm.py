"""Norms on a processor, each token in one visit, derivatives by hand; where wanted with the addition before the norm.

Torch makes an RMS norm of half a dozen operations, each of which reads and writes every token; and in a block each norm
stands behind an addition to the residual stream, which is one more. Here a token is read once (`tiled_norm.cpp`).

Letters: W width.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.layers.cpu.compiled import NormSize, call, library
from headwise.layers.cpu.tiled import REALS, VECTOR

LARGEST_NORM = 4096  # wide enough; each width is compiled on its own

NormKind = Literal["unit", "rms", "layer"]


def norm_size(kind: NormKind, width: int, dtype: torch.dtype = torch.float32) -> NormSize | None:
    """The kernel of a norm, if its width is one that kernels are for."""
    if width % VECTOR or width > LARGEST_NORM or dtype not in REALS:
        return None
    return NormSize(real=REALS[dtype], width=width, kind=kind.upper())


class TiledNorm(torch.autograd.Function):
    """The norm over the last dimension of x, or of x + added: `apply(x, added, weight, bias, eps, size)`.

    Gives what was normed and the norm: where nothing is added, the first is x itself.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        added: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        size: NormSize,
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        added = None if added is None else added.contiguous()
        total = x if added is None else torch.empty_like(x)
        result, inverse = torch.empty_like(x), x.new_empty(x.shape[:-1])
        mean = torch.empty_like(inverse) if size.kind == "LAYER" else None
        given = x, added, weight, bias, total, result, mean, inverse
        call(library(size).forward, given, inverse.numel(), eps)
        ctx.save_for_backward(total, weight, bias, mean, inverse)
        ctx.eps, ctx.size = eps, size
        ctx.set_materialize_grads(False)
        return total, result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_sum: Tensor | None, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        if gradient is None:
            return by_sum, by_sum, None, None, None, None
        by_sum = None if by_sum is None else by_sum.contiguous()
        by_x = torch.empty_like(x)
        by_weight, by_bias = (None if one is None else torch.zeros_like(one) for one in (weight, bias))
        given = x, gradient.contiguous(), by_sum, weight, mean, inverse, by_x, by_weight, by_bias
        call(library(ctx.size).backward, given, inverse.numel(), ctx.eps)
        return by_x, by_x if ctx.needs_input_grad[1] else None, by_weight, by_bias, None, None
