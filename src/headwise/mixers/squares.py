"""Attention within squares of an image's tokens, as DaViT's spatial blocks have it (arXiv:2204.03645): `squares-7`."""

from dataclasses import dataclass
from typing import Any

from headwise.layers.attention import Attention
from headwise.mixer import HEAD_PROBES
from headwise.mixers import make_attention
from headwise.mixers._grid import GridAttention, GridMixer
from headwise.options import ModelOptions
from headwise.shape import AttentionShape


@dataclass(frozen=True)
class Squares(GridMixer):
    """`squares-7-3` moves the squares by 3."""

    name = "squares"
    summary = "a token looks at its square of an image"
    probes = HEAD_PROBES

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, GridAttention, size=self.size, shift=self.shift, **factory)


MIXER = Squares
