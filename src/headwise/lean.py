"""Training on a processor with derivatives written by hand: merged attention, the ReLU MLP, the unit norm.

A step on one core waits for memory, and for the many small operations that autograd makes of a few lines. Each
function here does in few passes what its plain twin in `attention` or `models.blocks` does in many, with the same
numbers. A bias that would be added to a large product is one more row of its weight, for tokens that end in a 1: adding
it, and summing its derivative, would each read and write the product once more.

They have first derivatives only, on a processor, in the type of the weights: so a run's model uses them where the run's
execution allows (`train.build_model` sets `lean` on its layers), and a layer of its own does not.

Letters: B batch, T tokens, W width, H heads, R qk_rank, V v_rank.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class MergedAttention(torch.autograd.Function):
    """softmax(x M_h xᵀ) x E_h summed over heads: `apply(x, logits, outputs, constant)`, (B, T, W) give (B, T, W).

    `logits` (W+1, H·W) are the M_h, and below them what each head adds to queries; `outputs` (W, H·W) are the E_hᵀ. All
    heads of a token are rows of one product a sample.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Tensor, outputs: Tensor, constant: Tensor) -> Tensor:
        batch, _, width = x.shape
        tokens = _with_ones(x.reshape(-1, width))
        asked = (tokens @ logits).view(batch, -1, width)
        weights = torch.softmax(asked @ x.mT, -1)
        seen = (weights @ x).view(len(tokens), -1)
        kept = [asked] if ctx.needs_input_grad[0] else []
        ctx.save_for_backward(x, tokens, logits, outputs, weights, seen, *kept)
        return torch.addmm(constant, seen, outputs.mT).view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, tokens, logits, outputs, weights, seen, *asked = ctx.saved_tensors
        batch, _, width = x.shape
        outer = gradient.reshape(-1, width)
        by_seen = (outer @ outputs).view(batch, -1, width)
        by_scores = torch._softmax_backward_data(by_seen @ x.mT, weights, -1, x.dtype)
        by_asked = by_scores @ x
        rows = by_asked.view(len(tokens), -1)
        by_x = None
        if ctx.needs_input_grad[0]:
            by_x = torch.baddbmm(weights.mT @ by_seen, by_scores.mT, asked[0])
            by_x.view_as(outer).addmm_(rows, logits[:-1].mT)
        return by_x, tokens.mT @ rows, outer.mT @ seen, outer.sum(0)


def merge(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, query_bias: Tensor, value_bias: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What `MergedAttention` takes, from (H, R, W), (H, R, W), (H, V, W), (H, W, V), (H, R) and (H, V).

    A key's bias moves all of a query's logits alike: softmax does not see it.
    """
    logits = torch.cat([query, query_bias[..., None]], dim=-1).mT @ (key * scale)
    constant = (output @ value_bias[..., None]).sum(0).flatten()
    return _side_by_side(logits), _side_by_side(output @ value), constant


def _side_by_side(matrices: Tensor) -> Tensor:
    """(H, A, B) as (A, H·B)."""
    return matrices.movedim(0, 1).flatten(1)


class ReluMLP(torch.autograd.Function):
    """relu(x W₁ᵀ + b₁) W₂ᵀ + b₂ with one hidden tensor each way: `apply(x, first, w2, b2)`.

    `first` (W+1, M) is W₁ᵀ above b₁: its derivative is a product that reads the hidden tensor in its own order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        tokens = _with_ones(x.reshape(-1, x.shape[-1]))
        hidden = (tokens @ first).relu_()
        ctx.save_for_backward(tokens, hidden, first, w2)
        return torch.addmm(b2, hidden, w2.mT).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        tokens, hidden, first, w2 = ctx.saved_tensors
        outer = gradient.reshape(-1, gradient.shape[-1])
        inner = outer @ w2
        torch.ops.aten.threshold_backward.grad_input(inner, hidden, 0, grad_input=inner)
        by_x = (inner @ first[:-1].mT).view(*gradient.shape[:-1], -1)
        return by_x, tokens.mT @ inner, outer.mT @ hidden, outer.sum(0)


class UnitLength(torch.autograd.Function):
    """scale · x / max(|x|, eps), over the last dimension: `apply(x, scale, eps)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = length.clamp_min(eps).reciprocal()
        ctx.save_for_backward(x, scale, inverse, length > eps)
        return x * (inverse * scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, inverse, longer = ctx.saved_tensors
        along = (gradient * x).sum(-1, keepdim=True) * inverse
        by_x = gradient * (inverse * scale)
        by_x.addcmul_(x, along * longer * inverse.square() * -scale)
        return by_x, along.sum(), None


def _with_ones(x: Tensor) -> Tensor:
    """Each row with a 1 at its end."""
    return F.pad(x, (0, 1), value=1.0)


class Held:
    """What is made of weights once for several calls: from `hold` to `release`, which hands gradients on to them."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] | None = None  # what was made, and a leaf of the same values

    def hold(self) -> None:
        self.pairs = []

    def get(self, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if self.pairs is None:
            return make()
        self.pairs = self.pairs or [(made, made.detach().requires_grad_()) for made in make()]
        return tuple(leaf for _, leaf in self.pairs)

    def release(self) -> None:
        used = [(made, leaf.grad) for made, leaf in self.pairs or [] if leaf.grad is not None]
        self.pairs = None
        if used:
            torch.autograd.backward([made for made, _ in used], [gradient for _, gradient in used])
