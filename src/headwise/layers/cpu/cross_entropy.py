"""The output projection with cross-entropy, some tokens at a time: their logits never leave the cache.

A batch of logits is as large as all activations of a small model together, and torch's way writes and reads it eight
times: logits, softcap, softmax, and the derivative of each. Here the logits of some tokens are made, turned into
derivatives where they stand (`cross_entropy.cpp`), and multiplied on at once, so that the forward pass has all
derivatives and the backward pass only hands them on.

Letters: N tokens, W width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.layers.cpu.compiled import CrossEntropySize, call, library
from headwise.layers.cpu.linear import by_weight, times
from headwise.layers.cpu.tiled import REALS

LOGITS, FEWEST_TOKENS = 2**17, 32  # at a time: what a second cache holds


def cross_entropy_size(softcap: float, dtype: torch.dtype = torch.float32) -> CrossEntropySize | None:
    """The kernel for logits of a type, if there is one."""
    return CrossEntropySize(real=REALS[dtype], capped=softcap > 0) if dtype in REALS else None


class FusedCrossEntropy(torch.autograd.Function):
    """Σ weight · cross-entropy of x tableᵀ + bias: (N, W), (V, W), (V), labels (N) and weights (N) give a number."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        weights: Tensor,
        softcap: float,
        size: CrossEntropySize,
    ) -> Tensor:
        x, labels, weights = x.contiguous(), labels.contiguous(), weights.to(x.dtype).contiguous()
        loss = torch.zeros((), dtype=torch.float64)
        by_x, by_table = torch.empty_like(x), torch.zeros_like(table)
        by_bias = None if bias is None else torch.zeros_like(bias)
        rows = max(FEWEST_TOKENS, LOGITS // len(table))
        for part, wanted, weight, into in zip(*(one.split(rows) for one in (x, labels, weights, by_x)), strict=True):
            logits = times(part, table, bias)
            call(library(size).cross_entropy, (logits, wanted, weight, loss), *logits.shape, softcap)
            into.copy_(times(logits, table.mT))
            by_table += by_weight(logits, part)
            if by_bias is not None:
                by_bias += logits.sum(0)
        ctx.save_for_backward(by_x, by_table, by_bias)
        return loss.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        by_x, by_table, by_bias = ctx.saved_tensors
        by_bias = None if by_bias is None else gradient * by_bias
        return gradient * by_x, gradient * by_table, by_bias, None, None, None, None
