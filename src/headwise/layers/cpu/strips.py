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
from headwise.options import RopeScaling
from headwise.shape import AttentionShape

REALS = {torch.float32: "float", torch.float64: "double"}
LARGEST_RANK = 256  # columns of queries must stay in the first cache
VECTOR = 16  # numbers; on some processors a vector holds fewer, but never more


def strip_size(shape: AttentionShape, dtype: torch.dtype = torch.float32) -> StripSize | None:
    """The kernel of a layer's heads, if their ranks are such that there is one."""
    if dtype not in REALS or max(shape.qk_rank, shape.v_rank) > LARGEST_RANK:
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
    rope_scaling: RopeScaling | None = None

    def forward(self, qkv: Tensor, *learned_and_allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs of the heads (B, T, HV), and two numbers per query that the backward pass needs."""
        batch, tokens, _ = qkv.shape
        heads = qkv.new_empty(batch, tokens, self.heads * self.size.v_rank)
        largest, inverse = qkv.new_empty(2, batch, self.heads, tokens)
        given = qkv, *self._turns(qkv), *learned_and_allowed, heads, largest, inverse
        call(library(self.size).forward, given, *self._numbers(qkv))
        return heads, largest, inverse

    def backward(self, by_heads: Tensor, qkv: Tensor, *kept: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """Derivatives of queries, keys and values, and of the three learned; `kept` is what `forward` took and gave."""
        by_qkv = torch.empty_like(qkv)
        sums = [None if one is None else torch.zeros_like(one) for one in kept[:3]]
        given = qkv, *self._turns(qkv), *kept, by_heads, by_qkv, *sums
        call(library(self.size).backward, given, *self._numbers(qkv))
        return by_qkv, sums

    def _numbers(self, qkv: Tensor) -> tuple[int | float, ...]:
        counts = *qkv.shape[:2], self.heads, self.kv_heads, int(self.causal), self.rotated // 2
        return *counts, self.eps, self.scale

    def _turns(self, qkv: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not self.rotated:
            return None, None
        return _turns(qkv.shape[1], self.rotated, self.rope_base, qkv.dtype, self.rope_scaling)


@cache
@torch.inference_mode(False)
def _turns(
    tokens: int, rotated: int, base: float, dtype: torch.dtype, scaling: RopeScaling | None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines as the kernel reads them: (P/2, T), padded to whole vectors."""
    parts = angles(torch.arange(tokens), rotated, base, dtype, scaling)
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
        leading, x = x.shape[:2], x.reshape(-1, x.shape[-1])
        qkv = times(x, weight, bias).view(*leading, -1)
        given = query_norm, key_norm, logit_scale, None if allowed is None else allowed.contiguous()
        made = between.forward(qkv, *given)
        ctx.save_for_backward(x, weight, output, qkv, *given, *made)
        ctx.between = between
        return times(made[0].flatten(0, 1), output, constant).view(*leading, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, output, qkv, *kept = ctx.saved_tensors
        asked, heads = ctx.needs_input_grad, kept[4].flatten(0, 1)
        gradient = gradient.reshape(-1, gradient.shape[-1])
        by_qkv, sums = ctx.between.backward(times(gradient, output.mT), qkv, *kept)
        by_qkv = by_qkv.flatten(0, 1)
        return (
            times(by_qkv, weight.mT).view(*qkv.shape[:2], -1) if asked[0] else None,
            by_weight(by_qkv, x) if asked[1] else None,
            by_qkv.sum(0) if asked[2] else None,
            by_weight(gradient, heads) if asked[3] else None,
            gradient.sum(0) if asked[4] else None,
            *sums,
            None,
            None,
        )


class StripHeads(torch.autograd.Function):
    """Heads alone, of queries, keys and values that are made elsewhere: (B, T, HR + GR + GV) give (B, T, HV)."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, allowed: Tensor | None, between: Between) -> Tensor:
        given = None, None, None, None if allowed is None else allowed.contiguous()
        qkv = qkv.contiguous()
        made = between.forward(qkv, *given)
        ctx.save_for_backward(qkv, *given, *made)
        ctx.between = between
        return made[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.between.backward(gradient.contiguous(), *ctx.saved_tensors)[0], None, None
