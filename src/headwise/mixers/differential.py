"""Differential attention: the weights of one head less those of another, over the values of both (arXiv:2410.05258).

    pair i = (softmax(logits_i) − λ softmax(logits_{i+H/2})) [V_i, V_{i+H/2}]
    λ = exp(a₁·b₁) − exp(a₂·b₂) + λ₀,    λ₀ = 0.8 − 0.6 exp(−0.3 · layer)

Each pair passes an RMS norm without weights and a factor 1 − λ₀. Heads are paired as transformers' DiffLlama does.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.mixer import MATRIX_PROBES
from headwise.mixers import make_attention
from headwise.mixers._softmax import SoftmaxMixer, WeighedAttention, factory_of, refuse
from headwise.options import ModelOptions
from headwise.shape import AttentionShape
from headwise.spec import SpecError


@dataclass(frozen=True)
class Differential(SoftmaxMixer):
    """A head by itself has no meaning here, so only what goes in and out is measured."""

    name = "differential"
    summary = "the weights of one head less those of another"
    causal = True
    probes = MATRIX_PROBES

    def check(self, shape: AttentionShape, options: ModelOptions) -> None:
        refuse(self, shape, options)
        if shape.heads % 2:
            raise SpecError(f"mixer '{self}' pairs heads, and {shape} has {shape.heads}: use an even number")

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        return super().parameters(shape, options) | {"mixing": 4 * shape.qk_rank}

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        met = self.pairs(options, tokens, tokens) // tokens
        kept = shape.heads * (2 * shape.v_rank + met // 2)
        return super().saved(shape, options, tokens, fused=False) + kept

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(
            shape, options, DifferentialAttention, number=number, window=self.window or None, **factory
        )


class DifferentialAttention(WeighedAttention):
    """Layer `number` counts from 0."""

    def __init__(self, shape: AttentionShape, *, number: int = 0, norm_eps: float = 1e-6, **options: Any) -> None:
        factory = factory_of(options)
        super().__init__(shape, norm_eps=norm_eps, **options)
        self.eps, self.start = norm_eps, 0.8 - 0.6 * math.exp(-0.3 * number)
        self.factors = nn.Parameter(0.1 * torch.randn(4, shape.qk_rank, **factory))  # a₁, b₁, a₂, b₂

    def _read(self, weights: Tensor, values: Tensor) -> Tensor:
        first, second = weights.chunk(2, dim=1)
        factor = (self.factors[0] * self.factors[1]).sum().exp() - (self.factors[2] * self.factors[3]).sum().exp()
        pairs = (first - (factor + self.start) * second) @ torch.cat(values.chunk(2, dim=1), dim=-1)
        return (1 - self.start) * F.rms_norm(pairs, pairs.shape[-1:], eps=self.eps)


MIXER = Differential
