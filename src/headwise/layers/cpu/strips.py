"""Attention layers of real models on a processor: any length, causal or padded, normed, rotary, with shared keys.

Torch's fused kernel wants products that are larger than a head of rank 16 or 32, computes what a causal mask hides, and
needs queries and keys normed, scaled and turned before it, each a pass over memory and an operation for autograd. Here
one function goes from tokens to tokens: the products with weights are torch's (`linear.py`), and all that lies between
them is one kernel (`strip_attention.cpp`), whose backward pass makes weights again from queries and keys. Kept for it
are the projected queries, keys and values, the heads' outputs, and two numbers per query.

Letters: B batch, T tokens, W width, H heads, G key/value heads, R qk_rank, V v_rank, P rotated dimensions.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.layers.cpu.compiled import StripSize, call, library
from headwise.layers.cpu.linear import by_weight, times
from headwise.layers.functional import angles
from headwise.shape import AttentionShape

REALS = {torch.float32: "float", torch.float64: "double"}
LARGEST_RANK = 256  # columns of queries must stay in the first cache
VECTOR = 16  # numbers; on some processors a vector holds fewer, but never more


def strip_size(shape: AttentionShape, dtype: torch.dtype = torch.float32) -> StripSize | None:
    """The kernel of a layer's heads, if their ranks are such that there is one."""
    latent = shape.kv_latent or shape.q_latent
    if latent or dtype not in REALS or max(shape.qk_rank, shape.v_rank) > LARGEST_RANK:
        return None
    return StripSize(real=REALS[dtype], qk_rank=shape.qk_rank, v_rank=shape.v_rank)


@dataclass(frozen=True)
class Between:
    """What a layer does between its projections, apart from learned numbers."""

    size: StripSize
    heads: int
    kv_heads: int
    scale: float
    causal: bool = False
    eps: float = -1.0  # of the norms of queries and keys; negative without them
    rotated: int = 0
    rope_base: float = 0.0

    def numbers(self, qkv: Tensor) -> tuple[int | float, ...]:
        counts = *qkv.shape[:2], self.heads, self.kv_heads, int(self.causal), self.rotated // 2
        return *counts, self.eps, self.scale

    def turns(self, qkv: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not self.rotated:
            return None, None
        return _turns(qkv.shape[1], self.rotated, self.rope_base, qkv.dtype)


@cache
@torch.inference_mode(False)
def _turns(tokens: int, rotated: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines as the kernel reads them: (P/2, T), padded to whole vectors."""
    parts = angles(torch.arange(tokens), rotated, base, dtype)
    cos, sin = (F.pad(part.to(dtype), (0, 0, 0, -tokens % VECTOR)).mT.contiguous() for part in parts)
    return cos, sin


class StripAttention(torch.autograd.Function):
    """A layer of self-attention from tokens to tokens: (B, T, W) give (B, T, W).

    `weight` (HR + GR + GV, W) and `bias` make queries, keys and values; `output` (W, HV) and `constant` (W) what comes
    out. `query_norm` and `key_norm` (R) are weights of norms, `logit_scale` (H) multiplies queries; each may be None.
    `allowed` (B, T) is true for real keys.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output: Tensor,
        constant: Tensor | None,
        query_norm: Tensor | None,
        key_norm: Tensor | None,
        logit_scale: Tensor | None,
        allowed: Tensor | None,
        between: Between,
    ) -> Tensor:
        batch, tokens, width = x.shape
        x = x.reshape(-1, width)
        qkv = times(x, weight, bias).view(batch, tokens, -1)
        allowed = None if allowed is None else allowed.contiguous()
        heads = x.new_empty(batch, tokens, output.shape[1])
        largest, inverse = x.new_empty(2, batch, between.heads, tokens)
        learned = query_norm, key_norm, logit_scale
        tensors = qkv, *between.turns(qkv), *learned, allowed, heads, largest, inverse
        call(library(between.size).forward, tensors, *between.numbers(qkv))
        ctx.save_for_backward(x, weight, output, qkv, *learned, allowed, heads, largest, inverse)
        ctx.between = between
        return times(heads.flatten(0, 1), output, constant).view(batch, tokens, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, output, qkv, *learned, allowed, heads, largest, inverse = ctx.saved_tensors
        between: Between = ctx.between
        asked = ctx.needs_input_grad
        gradient = gradient.reshape(-1, gradient.shape[-1])
        by_heads, by_qkv = times(gradient, output.mT), torch.empty_like(qkv)
        sums = [None if one is None else torch.zeros_like(one) for one in learned]
        tensors = qkv, *between.turns(qkv), *learned, allowed, heads, largest, inverse, by_heads, by_qkv, *sums
        call(library(between.size).backward, tensors, *between.numbers(qkv))
        by_qkv = by_qkv.flatten(0, 1)
        return (
            times(by_qkv, weight.mT).view(*qkv.shape[:2], -1) if asked[0] else None,
            by_weight(by_qkv, x) if asked[1] else None,
            by_qkv.sum(0) if asked[2] else None,
            by_weight(gradient, heads.flatten(0, 1)) if asked[3] else None,
            gradient.sum(0) if asked[4] else None,
            *sums,
            None,
            None,
        )
