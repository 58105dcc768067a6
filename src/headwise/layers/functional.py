"""Attention as functions of tensors, the plain way and through torch's kernels, and rotary embeddings.

Letters: B batch, T queries, S keys, H heads, G key/value heads, R qk_rank, V v_rank.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.options import RopeScaling
from headwise.spec import SpecError

LONG = 256  # keys, from which a processor's kernel gains more by values that stand together than a copy takes


def plain_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    hardmax: bool = False,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(scale · QKᵀ) V as it is written, with its weights; a softcap c bounds logits, c · tanh(logit / c).

    (B, H, T, R), (B, G, S, R) and (B, G, S, V) give (B, H, T, V) and (B, H, T, S).

    Products rather than einsum: with a rank of 1 einsum multiplies elementwise, which no counter sees as a product.
    """
    group = queries.shape[1] // keys.shape[1]
    if group > 1:
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    logits = scale * (queries @ keys.mT)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -math.inf)
    masked = allowed is not None or bias is not None
    blind = (logits == -math.inf).all(-1, keepdim=True) if masked else None
    if blind is not None:  # no NaN from a query that may look nowhere, nor from its gradient
        logits = logits.masked_fill(blind, 0.0)
    weights = F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype) if hardmax else logits.softmax(-1)
    if blind is not None:
        weights = weights.masked_fill(blind, 0.0)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights @ values, weights


def fast_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """The same through torch's fused kernels, whichever fits."""
    v_rank = values.shape[-1]
    shared = queries.shape[1] != keys.shape[1]
    if shared and queries.shape[-2] == 1 and (mask is None or mask.dim() < 3 or mask.shape[-3] == 1):
        # one query per head: heads that share keys are as good as queries of one head, and nothing is repeated for them
        queries = queries.view(*keys.shape[:2], -1, queries.shape[-1])
        return fast_attention(queries, keys, values, scale, mask, False, dropout).flatten(1, 2)[:, :, None]
    if not queries.is_cuda and not torch.compiler.is_compiling() and values.shape[-2] >= LONG:
        values = values.contiguous()
    if queries.is_cuda:
        queries, keys, values = pad_ranks(queries), pad_ranks(keys), pad_ranks(values)
    heads = F.scaled_dot_product_attention(
        queries, keys, values, mask, dropout, is_causal=causal, scale=scale, enable_gqa=shared
    )
    return heads[..., :v_rank]


def pad_ranks(heads: Tensor, multiple: int = 8) -> Tensor:
    """Zeros up to the next multiple: CUDA's fused kernels refuse other ranks, and zeros change no product."""
    return F.pad(heads, (0, -heads.shape[-1] % multiple))


def angles(
    positions: Tensor, rotated: int, base: float, dtype: torch.dtype, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position · base^(-2i/rotated) for `turn`: of (T,) or (B, T), (T, P/2) or (B, 1, T, P/2)."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    powers = torch.arange(0, rotated, 2, device=positions.device, dtype=exact) / rotated
    turning = base**-powers
    turning = turning if scaling is None else stretched(turning, base, scaling)
    angle = positions.to(exact)[..., None] * turning
    angle = angle if positions.dim() == 1 else angle[:, None]
    if scaling is None or scaling.growth == 1.0:
        return angle.cos(), angle.sin()
    return angle.cos() * scaling.growth, angle.sin() * scaling.growth


def stretched(turning: Tensor, base: float, scaling: RopeScaling) -> Tensor:
    """(P/2) radians per token as a longer context turns them."""
    if scaling.kind == "linear":
        return turning / scaling.factor
    if scaling.kind == "llama3":
        turns = scaling.context * turning / (2 * math.pi)  # within the first context
        stays = ((turns - scaling.slow) / (scaling.turns - scaling.slow)).clamp(0, 1)
        return turning * (stays + (1 - stays) / scaling.factor)
    if base <= 1:
        raise SpecError(f"rope scaling 'yarn' is of frequencies that fall, and a base of {base:g} gives none")
    low, high = (_pair(turns, base, len(turning), scaling) for turns in (scaling.turns, scaling.slow))
    low, high = (math.floor(low), math.ceil(high)) if scaling.whole else (low, high)
    low, high = max(low, 0.0), min(high, 2 * len(turning) - 1.0)
    ramp = (torch.arange(len(turning), device=turning.device, dtype=turning.dtype) - low) / ((high - low) or 0.001)
    ramp = ramp.clamp(0, 1)
    return turning * (1 - ramp + ramp / scaling.factor)


def _pair(turns: float, base: float, pairs: int, scaling: RopeScaling) -> float:
    """Which pair turns so often within the first context."""
    return pairs * math.log(scaling.context / (turns * 2 * math.pi)) / math.log(base)


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pair (i, i + P/2) of (B, H, T, R) by angles with these cosines and sines, (..., T, P/2); the rest pass."""
    half = cos.shape[-1]
    first, second, rest = heads.split([half, half, heads.shape[-1] - 2 * half], dim=-1)
    turned = torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)
    return torch.cat([*(part.to(heads.dtype) for part in turned), rest], dim=-1)


def weight_of(linear: Any) -> Tensor:
    """The matrix that a linear layer applies, with what stands around it (LoRA)."""
    if isinstance(linear, nn.Linear):
        return linear.weight
    one = torch.eye(linear.in_features, device=linear.weight.device, dtype=linear.weight.dtype)
    applied: Tensor = linear(one)
    return applied.mT


def distance(queries: Tensor, keys: Tensor, start: int) -> Tensor:
    """(T, S): how far each query stands behind each key; the first query stands at `start`."""
    places = torch.arange(start, start + queries.shape[-2], device=keys.device)
    return places[:, None] - torch.arange(keys.shape[-2], device=keys.device)


def join(allowed: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """One mask for the fused kernel, which takes either truth values or numbers of the queries' type."""
    if bias is None:
        return allowed
    return bias.to(dtype) if allowed is None else torch.where(allowed, bias.to(dtype), -math.inf)
