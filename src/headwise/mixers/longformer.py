"""Windows and global tokens, as Longformer has them (arXiv:2004.05150): `longformer-W-G`.

The first G tokens are seen by all. They themselves look at all tokens, by queries, keys and values of their own
projections; the others see those less than W away, and the first G, by the usual ones.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.layers.attention import Attention, _split_heads
from headwise.layers.functional import plain_attention
from headwise.mixer import MATRIX_PROBES
from headwise.mixers import make_attention
from headwise.mixers._softmax import SoftmaxMixer, WholeSequence, WindowedAttention, factory_of, refuse
from headwise.options import ModelOptions
from headwise.shape import AttentionShape, qkv_rows
from headwise.spec import SpecError


@dataclass(frozen=True)
class Longformer(SoftmaxMixer):
    """Two kinds of heads in one layer, so that probes of single heads do not apply."""

    first: int = 1

    name = "longformer"
    summary = "windows, and some tokens that see all and are seen by all"
    probes = MATRIX_PROBES

    def check(self, shape: AttentionShape, options: ModelOptions) -> None:
        refuse(self, shape, options)
        if self.window < 1 or self.first < 1:
            raise SpecError(f"mixer '{self}' needs a window and global tokens, both 1 or more, as in longformer-64-1")
        if options.qk_norm != "none" or options.logit_scale or options.positions == "rotary":
            raise SpecError(f"mixer '{self}' has neither norms nor scales of queries and keys, nor rotary positions")

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        rows = sum(qkv_rows(shape.heads, shape.kv_heads, shape.qk_rank, shape.v_rank))
        return super().parameters(shape, options) | {"mixing": rows * (shape.width + (options.bias != "none"))}

    def pairs(self, options: ModelOptions, queries: int, keys: int, cached: bool = False, first: int = 0) -> int:
        return super().pairs(options, queries, keys, cached, self.first)

    def products(
        self, shape: AttentionShape, options: ModelOptions, queries: int, keys: int, cached: bool = False
    ) -> int:
        first = min(self.first, queries)
        queries_rows, *rest = qkv_rows(shape.heads, shape.kv_heads, shape.qk_rank, shape.v_rank)
        own = shape.width * (first * queries_rows + queries * sum(rest))
        seen = first * keys * shape.heads * (shape.qk_rank + shape.v_rank)
        return super().products(shape, options, queries, keys, cached) + own + seen

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        keys_values = shape.heads * (shape.qk_rank + shape.v_rank)
        own = keys_values + self.first * shape.heads
        return super().saved(shape, options, tokens, fused) + own

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, LongformerAttention, window=self.window, first=self.first, **factory)


class LongformerAttention(WholeSequence, WindowedAttention):
    """Both ways, on whole sequences."""

    def __init__(self, shape: AttentionShape, *, first: int, **options: Any) -> None:
        factory = factory_of(options)
        super().__init__(shape, **options)
        self.first = first
        self.global_sections = qkv_rows(shape.heads, shape.kv_heads, shape.qk_rank, shape.v_rank)
        bias = bool(options.get("input_bias"))
        self.global_input = nn.Linear(shape.width, sum(self.global_sections), bias=bias, **factory)
        self.reset_parameters()

    def mix(self, x: Tensor, padding: Tensor | None, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Weights are those of the local heads."""
        query, key, value = self._project(x, None, None)
        queries = self._queries(query, None)
        keys, values = self._keys_values(key, value, None, None)
        allowed = self._allowed(queries, keys, 0, None, padding)
        heads, weights = self._attend(queries, keys, values, allowed, None, 0, need_weights)
        heads = torch.cat([self._global(x, padding), heads[:, :, self.first :]], dim=2)
        return self._out(self._joined(heads, x)), weights

    def _allowed(
        self, queries: Tensor, keys: Tensor, start: int, mask: Tensor | None, padding: Tensor | None
    ) -> Tensor | None:
        real = None if padding is None else padding[:, None, None, :]
        if self._blocks(queries, keys, start):
            return real
        near = self._near(queries, keys, start)
        return near if real is None else real & near

    def _near(self, queries: Tensor, keys: Tensor, start: int) -> Tensor:
        key = torch.arange(keys.shape[-2], device=keys.device)
        return super()._near(queries, keys, start) | (key < self.first)

    def _global(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """(B, H, G, V): what the first tokens find in all."""
        sizes, weight, bias = self.global_sections, self.global_input.weight, self.global_input.bias
        query, *others = weight.split(sizes)
        biases = [None] * 3 if bias is None else list(bias.split(sizes))
        queries = nn.functional.linear(x[:, : self.first], query, biases[0])
        keys, values = (nn.functional.linear(x, w, b) for w, b in zip(others, biases[1:], strict=True))
        queries = _split_heads(queries, self.shape.heads)
        keys, values = (_split_heads(one, self.shape.kv_heads) for one in (keys, values))
        real = None if padding is None else padding[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        return plain_attention(queries, keys, values, self._scale, real, None, dropout)[0]


MIXER = Longformer
