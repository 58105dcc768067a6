"""Attention within squares of an image's tokens, which must stand in a square: shared by `squares` and `swin`."""

from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.layers.functional import fast_attention, plain_attention
from headwise.mixer import ATTENTION, Mixer
from headwise.mixers._softmax import WholeSequence, refuse
from headwise.options import ModelOptions
from headwise.shape import AttentionShape
from headwise.spec import SpecError


@dataclass(frozen=True)
class GridMixer(Mixer):
    """`size` tokens across a square; the grid is padded to whole squares, and a small one is one square."""

    size: int
    shift: int = 0

    grid = True

    def check(self, shape: AttentionShape, options: ModelOptions) -> None:
        refuse(self, shape, options)
        if self.size < 1 or self.shift >= self.size:
            raise SpecError(f"mixer '{self}' needs a size of 1 or more, and a shift below it")
        if options.qk_norm != "none" or options.logit_scale or options.positions == "rotary":
            raise SpecError(f"mixer '{self}' has no qk_norm, logit_scale or rotary positions")

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        return ATTENTION.parameters(shape, options)

    def products(
        self, shape: AttentionShape, options: ModelOptions, queries: int, keys: int, cached: bool = False
    ) -> int:
        across, size = squares(queries, self.size)
        pairs = across**2 * size**4
        return queries * ATTENTION.projections(shape) + pairs * shape.heads * (shape.qk_rank + shape.v_rank)

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        _, size = squares(tokens, self.size)
        return ATTENTION.saved(shape, options, size**2, fused)


def squares(tokens: int, size: int) -> tuple[int, int]:
    """How many squares stand side by side, and the tokens across one."""
    side = isqrt(tokens)
    if side**2 != tokens:
        raise SpecError(f"{tokens} tokens do not stand in a square, as a mixer of squares needs")
    size = min(size, side)
    return -(-side // size), size


class GridAttention(WholeSequence):
    """Each token looks at its square; with a shift squares lie across the usual ones, and wrap around no edge."""

    def __init__(self, shape: AttentionShape, *, size: int, shift: int = 0, **options: Any) -> None:
        super().__init__(shape, **options)
        self.size, self.shift = size, shift

    def bias(self, size: int) -> Tensor | None:
        """(H, size², size²): what is added to logits, if anything."""
        return None

    def mix(self, x: Tensor, padding: Tensor | None, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Weights are those within squares: (B · squares, H, size², size²)."""
        if padding is not None:
            raise SpecError("squares are cut from a whole image, of which nothing is left out")
        tokens = x.shape[1]
        across, size = squares(tokens, self.size)
        shift = self.shift if across > 1 else 0
        counts = self.shape.heads, self.shape.kv_heads, self.shape.kv_heads
        parts = self._project(x, None, None)
        query, key, value = (
            _cut(part, isqrt(tokens), across, size, shift).unflatten(-1, (count, -1)).transpose(1, 2)
            for part, count in zip(parts, counts, strict=True)
        )
        allowed = _together(isqrt(tokens), across, size, shift, x.device)
        allowed = None if allowed is None else allowed.repeat(len(x), 1, 1, 1)
        bias, weights = self.bias(size), None
        if bias is not None or self.path == "plain" or need_weights:
            dropout = self.dropout if self.training else 0.0
            heads, weights = plain_attention(query, key, value, self._scale, allowed, bias, dropout)
        else:
            heads = fast_attention(
                query, key, value, self._scale, allowed, False, self.dropout if self.training else 0.0
            )
        joined = _uncut(heads.transpose(1, 2).flatten(2), isqrt(tokens), across, size, shift)
        return self._out(joined), weights


def _cut(x: Tensor, side: int, across: int, size: int, shift: int) -> Tensor:
    """(B, side², C) to (B · squares, size², C)."""
    rest = across * size - side
    grid = F.pad(x.unflatten(1, (side, side)), (0, 0, 0, rest, 0, rest))
    grid = grid.roll((-shift, -shift), (1, 2)) if shift else grid
    grid = grid.unflatten(2, (across, size)).unflatten(1, (across, size))
    return grid.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def _uncut(x: Tensor, side: int, across: int, size: int, shift: int) -> Tensor:
    grid = x.unflatten(0, (-1, across, across)).unflatten(3, (size, size)).transpose(2, 3)
    grid = grid.flatten(3, 4).flatten(1, 2)
    grid = grid.roll((shift, shift), (1, 2)) if shift else grid
    return grid[:, :side, :side].flatten(1, 2)


def _together(side: int, across: int, size: int, shift: int, device: torch.device) -> Tensor | None:
    """(squares, 1, size², size²): tokens of one square that neither padding nor a wrapped edge divides."""
    whole = across * size
    if whole == side and not shift:
        return None
    places = (torch.arange(whole, device=device) + shift) % whole
    wrapped = (
        torch.arange(whole, device=device) >= whole - shift if shift else torch.zeros_like(places, dtype=torch.bool)
    )
    real = places < side
    kind = (wrapped.long()[:, None] * 2 + wrapped.long()) * 2 + (real[:, None] & real).long()
    kinds = _cut(kind.flatten()[None, :, None], whole, across, size, 0)[..., 0]
    return (kinds[:, :, None] == kinds[:, None, :])[:, None]
