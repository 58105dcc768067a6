"""Cross-covariance attention: channels look at channels, as in XCiT (arXiv:2106.09681).

    A = softmax(τ Q̂ᵀ K̂)        output = (A Vᵀ)ᵀ        Q̂ and K̂: each channel of unit length over the tokens

τ is learned for each head. In XCiT a depthwise 3 × 3 convolution lets neighbouring patches meet: see models/styled.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.mixer import MATRIX_PROBES
from headwise.mixers import make_attention
from headwise.mixers._channels import ChannelAttention, ChannelMixer
from headwise.mixers._softmax import factory_of
from headwise.options import ModelOptions
from headwise.shape import AttentionShape


@dataclass(frozen=True)
class CrossCovariance(ChannelMixer):
    """QᵀK over tokens is no matrix of weights alone, so probes of heads do not apply."""

    name = "xca"
    summary = "channels look at channels, by their covariance over tokens"
    probes = MATRIX_PROBES

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        return super().parameters(shape, options) | {"mixing": shape.heads}

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, CrossCovarianceAttention, **factory)


class CrossCovarianceAttention(ChannelAttention):
    """τ begins at 1."""

    def __init__(self, shape: AttentionShape, **options: Any) -> None:
        super().__init__(shape, **options)
        self.temperature = nn.Parameter(torch.ones(shape.heads, **factory_of(options)))

    def weigh(self, query: Tensor, key: Tensor) -> Tensor:
        covariance = F.normalize(query, dim=-2).mT @ F.normalize(key, dim=-2)
        return (covariance * self.temperature.view(-1, 1, 1)).softmax(-1)


MIXER = CrossCovariance
