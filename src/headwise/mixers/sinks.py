"""Attention sinks: each head has one learned logit for looking at nothing, as in GPT-OSS (arXiv:2508.10925).

    weight of key s = exp(logit_s) / (exp(sink) + Σ exp(logit))

GPT-OSS is `sinks-128,sinks`: every second layer has a window.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.mixer import HEAD_PROBES, MATRIX_PROBES
from headwise.mixers import make_attention
from headwise.mixers._softmax import SoftmaxMixer, WeighedAttention, factory_of, refuse
from headwise.options import ModelOptions
from headwise.shape import AttentionShape


@dataclass(frozen=True)
class Sinks(SoftmaxMixer):
    """Weights sum to less than 1 over keys, so probes of patterns do not apply."""

    name = "sinks"
    summary = "heads may look at nothing"
    causal = True
    probes = HEAD_PROBES | MATRIX_PROBES
    tools = frozenset({"inspect"})

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        return super().parameters(shape, options) | {"mixing": shape.heads}

    def check(self, shape: AttentionShape, options: ModelOptions) -> None:
        refuse(self, shape, options, latents=False)

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        return super().saved(shape, options, tokens, fused=False)

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, SinkAttention, window=self.window or None, **factory)


class SinkAttention(WeighedAttention):
    """Sinks begin at 0: as much as a key of no account."""

    def __init__(self, shape: AttentionShape, **options: Any) -> None:
        factory = factory_of(options)
        super().__init__(shape, **options)
        self.sinks = nn.Parameter(torch.zeros(shape.heads, **factory))

    def weigh(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        logits = logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)
        sinks = self.sinks.view(-1, 1, 1).expand(*logits.shape[:-1], 1)
        return torch.cat([logits, sinks], dim=-1).softmax(-1)[..., :-1]


MIXER = Sinks
