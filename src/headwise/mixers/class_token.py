"""Class attention: only the first token looks, at all; the others stay as they are (CaiT, arXiv:2103.17239).

XCiT ends with two such layers: `xcax12,class-tokenx2` in a model of 14.
"""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from headwise.layers.attention import Attention
from headwise.mixer import ATTENTION, HEAD_PROBES, Mixer
from headwise.mixers import make_attention
from headwise.mixers._softmax import WholeSequence, refuse
from headwise.options import ModelOptions
from headwise.shape import AttentionShape
from headwise.spec import SpecError


@dataclass(frozen=True)
class ClassToken(Mixer):
    """Adds to the first token and leaves the others; its patterns are one query's."""

    name = "class-token"
    summary = "only the first token looks at the others"
    probes = HEAD_PROBES

    def check(self, shape: AttentionShape, options: ModelOptions) -> None:
        refuse(self, shape, options)
        if options.positions == "rotary":
            raise SpecError(f"mixer '{self}' has no rotary positions: the class token has no place of its own")

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        return ATTENTION.parameters(shape, options)

    def products(
        self, shape: AttentionShape, options: ModelOptions, queries: int, keys: int, cached: bool = False
    ) -> int:
        own = shape.width * shape.heads * (shape.qk_rank + shape.v_rank)
        both = shape.width * shape.kv_heads * (shape.qk_rank + shape.v_rank)
        return own + keys * both + keys * shape.heads * (shape.qk_rank + shape.v_rank)

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        return shape.kv_heads * (shape.qk_rank + shape.v_rank)

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, ClassAttention, **factory)


class ClassAttention(WholeSequence):
    """Both ways, on whole sequences."""

    def mix(self, x: Tensor, padding: Tensor | None, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Nothing is added to any token but the first."""
        (one, first), *others = self.input_parts()
        queries = self._queries(F.linear(x[:, :1], one, first), None)
        key, value = (F.linear(x, weight, bias) for weight, bias in others)
        keys, values = self._keys_values(key, value, None, None)
        allowed = None if padding is None else padding[:, None, None, :]
        heads, weights = self._attend(queries, keys, values, allowed, None, keys.shape[-2] - 1, need_weights)
        return F.pad(self._out(self._joined(heads, x)), (0, 0, 0, x.shape[1] - 1)), weights


MIXER = ClassToken
