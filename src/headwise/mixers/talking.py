"""Talking heads: heads exchange their logits before the softmax and their weights after it (arXiv:2003.02436).

logits' = P logits        weights' = Q softmax(logits')        with P and Q of heads × heads, at every pair of tokens
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.mixer import HEAD_PROBES, MATRIX_PROBES
from headwise.mixers import make_attention
from headwise.mixers._softmax import SoftmaxMixer, WeighedAttention, factory_of, masked_softmax, refuse
from headwise.options import ModelOptions
from headwise.shape import AttentionShape


@dataclass(frozen=True)
class Talking(SoftmaxMixer):
    """Its weights do not sum to 1 over keys, so probes of patterns do not apply."""

    name = "talking"
    summary = "heads exchange logits and weights"
    causal = True
    probes = HEAD_PROBES | MATRIX_PROBES
    tools = frozenset({"inspect"})

    def check(self, shape: AttentionShape, options: ModelOptions) -> None:
        refuse(self, shape, options, latents=False)

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        return super().parameters(shape, options) | {"mixing": 2 * shape.heads**2}

    def products(
        self, shape: AttentionShape, options: ModelOptions, queries: int, keys: int, cached: bool = False
    ) -> int:
        keys_seen = min(keys, self.window or keys) if cached else keys
        mixed = 2 * shape.heads**2 * self.pairs(options, queries, keys_seen, cached)
        return super().products(shape, options, queries, keys, cached) + mixed

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        met = self.pairs(options, tokens, tokens) // tokens
        return super().saved(shape, options, tokens, fused=False) + 2 * met * shape.heads

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, TalkingHeads, window=self.window or None, **factory)


class TalkingHeads(WeighedAttention):
    """Both matrices begin as the identity with some noise: plain attention, nearly."""

    def __init__(self, shape: AttentionShape, **options: Any) -> None:
        factory = factory_of(options)
        super().__init__(shape, **options)
        self.before = nn.Parameter(torch.empty(shape.heads, shape.heads, **factory))
        self.after = nn.Parameter(torch.empty(shape.heads, shape.heads, **factory))
        with torch.no_grad():
            for matrix in (self.before, self.after):
                nn.init.normal_(matrix, std=0.02).diagonal().add_(1.0)

    def weigh(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        return _exchange(self.after, masked_softmax(_exchange(self.before, logits), allowed))


def _exchange(matrix: Tensor, x: Tensor) -> Tensor:
    """(H, H) and (B, H, T, S): as one product, which a counter sees."""
    return (matrix @ x.flatten(2)).view_as(x)


MIXER = Talking
