"""Channel-group attention: in each group of channels, channels look at channels, as in DaViT (arXiv:2204.03645).

A = softmax(Qᵀ K / √rank)        output = (A Vᵀ)ᵀ        a head is a group
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headwise.layers.attention import Attention
from headwise.mixer import MATRIX_PROBES
from headwise.mixers import make_attention
from headwise.mixers._channels import ChannelAttention, ChannelMixer
from headwise.options import ModelOptions
from headwise.shape import AttentionShape


@dataclass(frozen=True)
class Channels(ChannelMixer):
    """QᵀK over tokens is no matrix of weights alone, so probes of heads do not apply."""

    name = "channels"
    summary = "channels look at channels within their group"
    probes = MATRIX_PROBES

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, ChannelGroups, **factory)


class ChannelGroups(ChannelAttention):
    """Nothing is learned beside the projections."""

    def weigh(self, query: Tensor, key: Tensor) -> Tensor:
        return (self._scale * query.mT @ key).softmax(-1)


MIXER = Channels
