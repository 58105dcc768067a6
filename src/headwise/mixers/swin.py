"""Squares with a learned bias for each distance, as in Swin (arXiv:2103.14030): `swin-7,swin-7-3` alternate."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.mixer import HEAD_PROBES
from headwise.mixers import make_attention
from headwise.mixers._grid import GridAttention, GridMixer
from headwise.mixers._softmax import factory_of
from headwise.options import ModelOptions
from headwise.shape import AttentionShape


@dataclass(frozen=True)
class Swin(GridMixer):
    """Size of a square, and how far squares are moved."""

    name = "swin"
    summary = "a token looks at its square of an image, with a bias for each distance"
    probes = HEAD_PROBES

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        return super().parameters(shape, options) | {"mixing": (2 * self.size - 1) ** 2 * shape.heads}

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, SwinAttention, size=self.size, shift=self.shift, **factory)


class SwinAttention(GridAttention):
    """The table of biases begins near 0."""

    def __init__(self, shape: AttentionShape, *, size: int, **options: Any) -> None:
        super().__init__(shape, size=size, **options)
        self.distances = nn.Parameter(torch.empty((2 * size - 1) ** 2, shape.heads, **factory_of(options)))
        nn.init.normal_(self.distances, std=0.02)

    def bias(self, size: int) -> Tensor:
        places = torch.arange(size, device=self.distances.device)
        apart = places[:, None] - places + self.size - 1
        row = apart[:, None, :, None] * (2 * self.size - 1) + apart[None, :, None, :]
        return self.distances[row.flatten(0, 1).flatten(1)].permute(2, 0, 1)


MIXER = Swin
