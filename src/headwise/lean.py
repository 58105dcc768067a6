"""Training on a processor with derivatives written by hand: merged attention, the ReLU MLP, the unit norm.

A step on one core waits for memory, and for the many small operations that autograd makes of a few lines. Each
function here does in few passes what its plain twin in `attention` or `models.blocks` does in many, with the same
numbers. A bias that would be added to a large product is a column of its weight, for tokens that end in a 1: adding it,
and summing its derivative, would each read and write the product once more.

They have first derivatives only, on a processor, in the type of the weights: so a run's model uses them where the run's
execution allows (`train.build_model` sets `lean` on its layers), and a layer of its own does not.

Letters: B batch, T tokens, W width, H heads, R qk_rank, V v_rank.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class MergedAttention(torch.autograd.Function):
    """softmax(x M_h xᵀ) x E_h summed over heads, with M_h = scale · Q_hᵀK_h and E_h = output_scale · V_hᵀO_hᵀ.

    Less work than queries, keys and values where ranks are large. All heads of a token are rows of one product a
    sample. A key's bias moves all of a query's logits alike: softmax does not see it, and its derivative is 0.
    `apply(x, weight, bias, output, output_bias, heads, scale, output_scale)`: (B, T, W) give (B, T, W).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        output: Tensor,
        output_bias: Tensor,
        heads: tuple[int, int, int],
        scale: float,
        output_scale: float,
    ) -> Tensor:
        (batch, length, width), (h, _, v) = x.shape, heads
        tokens = _with_ones(x.reshape(-1, width))
        query, key, value = _by_head(_with_column(weight, bias), heads)
        made = output.mT.view(h, v, width)  # O_hᵀ
        logits = ((scale * key[..., :-1]).mT @ query).flatten(0, 1)  # M_hᵀ, and what a query's bias adds
        merged = ((output_scale * value[..., :-1]).mT @ made).flatten(0, 1)
        asked = (tokens @ logits.mT).view(batch, length * h, width)
        weights = torch.softmax(asked @ x.mT, -1)
        seen = (weights @ x).view(-1, h * width)
        constant = output_scale * torch.addmv(output_bias, output, value[..., -1].flatten())
        ctx.save_for_backward(x, tokens, query, key, value, output, logits, merged, asked, weights, seen)
        ctx.sizes = heads, scale, output_scale
        return torch.addmm(constant, seen, merged).view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, tokens, query, key, value, output, logits, merged, asked, weights, seen = ctx.saved_tensors
        ((h, r, v), scale, output_scale), width = ctx.sizes, x.shape[-1]
        outer = gradient.reshape(-1, width)
        by_merged = (seen.mT @ outer).view(h, width, width).mul_(output_scale)
        by_constant = outer.sum(0).mul_(output_scale)
        by_seen = (outer @ merged.mT).view_as(asked)
        by_weights = by_seen @ x.mT
        by_scores = torch._softmax_backward_data(by_weights, weights, -1, x.dtype)
        by_asked = by_scores @ x
        by_logits = (by_asked.view(-1, h * width).mT @ tokens).view(h, width, width + 1).mul_(scale)
        by_x = None
        if ctx.needs_input_grad[0]:
            by_x = torch.baddbmm(by_scores.mT @ asked, weights.mT, by_seen)
            by_x += (by_asked.view(-1, h * width) @ logits[:, :-1]).view_as(x)
        made = output.mT.view(h, v, width)
        by_rows = torch.zeros(2 * h * r + h * v, width + 1, dtype=x.dtype)
        by_query, by_key, by_value = _by_head(by_rows, (h, r, v))
        torch.bmm(key[..., :-1], by_logits, out=by_query)
        by_key[..., :-1] = query @ by_logits.mT
        by_value[..., :-1] = made @ by_merged.mT
        by_value[..., -1] = (output.mT @ by_constant).view(h, v)
        by_output = (value[..., :-1] @ by_merged).view(h * v, width).mT
        by_output = by_output + by_constant[:, None] * value[..., -1].flatten()
        return by_x, by_rows[:, :-1], by_rows[:, -1], by_output, by_constant, None, None, None


def _by_head(rows: Tensor, heads: tuple[int, int, int]) -> tuple[Tensor, ...]:
    """Rows of queries, keys and values, each as (H, R or V, ...)."""
    h, r, v = heads
    return tuple(part.unflatten(0, (h, -1)) for part in rows.split([h * r, h * r, h * v]))


class ReluMLP(torch.autograd.Function):
    """relu(x W₁ᵀ + b₁) W₂ᵀ + b₂ with one hidden tensor each way: training on a processor waits for memory.

    `apply(x, w1, b1, w2, b2)`, with both biases.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        tokens = _with_ones(x.reshape(-1, x.shape[-1]))
        hidden = (tokens @ _with_column(w1, b1).mT).relu_()
        ctx.save_for_backward(tokens, hidden, w1, w2)
        return torch.addmm(b2, hidden, w2.mT).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        tokens, hidden, w1, w2 = ctx.saved_tensors
        outer = gradient.reshape(-1, gradient.shape[-1])
        inner = outer @ w2
        torch.ops.aten.threshold_backward.grad_input(inner, hidden, 0, grad_input=inner)
        by_x = (inner @ w1).view(*gradient.shape[:-1], -1)
        first = inner.mT @ tokens
        return by_x, first[:, :-1], first[:, -1], outer.mT @ hidden, outer.sum(0)


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


def _with_column(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight, bias[:, None]], dim=1)
