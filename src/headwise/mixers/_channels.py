"""What mixers have in common that compare channels instead of tokens: their cost is linear in tokens."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from headwise.layers.attention import _split_heads
from headwise.mixer import ATTENTION, Mixer
from headwise.mixers._softmax import WholeSequence, refuse
from headwise.options import ModelOptions
from headwise.shape import AttentionShape
from headwise.spec import SpecError


@dataclass(frozen=True)
class ChannelMixer(Mixer):
    """Costs of heads that mix their channels by weights of rank × rank. All tokens are seen at once."""

    def check(self, shape: AttentionShape, options: ModelOptions) -> None:
        refuse(self, shape, options)
        if shape.v_rank != shape.qk_rank:
            raise SpecError(f"mixer '{self}' weighs the channels of values by those of keys: leave v out of {shape}")
        if options.qk_norm != "none" or options.logit_scale or options.positions == "rotary":
            raise SpecError(f"mixer '{self}' compares channels: it has no qk_norm, logit_scale or rotary positions")

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        return ATTENTION.parameters(shape, options)

    def products(
        self, shape: AttentionShape, options: ModelOptions, queries: int, keys: int, cached: bool = False
    ) -> int:
        return queries * (ATTENTION.projections(shape) + 2 * shape.heads * shape.qk_rank**2)

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        return 6 * shape.heads * shape.qk_rank + 2 * shape.heads * shape.qk_rank**2 // tokens


class ChannelAttention(WholeSequence):
    """Heads whose weights say how much of each channel of the values goes into each: one path, of matrix products."""

    def mix(self, x: Tensor, padding: Tensor | None, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Weights are those of channels: (B, H, R, R)."""
        counts = self.shape.heads, self.shape.kv_heads, self.shape.kv_heads
        parts = zip(self._project(x, None, None), counts, strict=True)
        query, key, value = (_split_heads(part, count) for part, count in parts)
        if self.shape.group > 1:
            key, value = (part.repeat_interleave(self.shape.group, dim=1) for part in (key, value))
        if padding is not None:
            query, key = (part * padding[:, None, :, None] for part in (query, key))
        weights = self.weigh(query, key)
        weights = F.dropout(weights, self.dropout) if self.dropout and self.training else weights
        return self._out(self._joined((weights @ value.mT).mT, x)), weights

    def weigh(self, query: Tensor, key: Tensor) -> Tensor:
        """(B, H, T, R) twice to (B, H, R, R)."""
        raise NotImplementedError
