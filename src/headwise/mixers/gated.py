"""Gated attention: what each head found is multiplied by a gate that the token itself sets (arXiv:2505.06708).

output = O (heads ⊙ σ(G x))        with G of heads·v_rank × width, as in Qwen3-Next
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.mixer import HEAD_PROBES, MATRIX_PROBES, PATTERN_PROBES
from headwise.mixers import make_attention
from headwise.mixers._softmax import SoftmaxMixer, WindowedAttention, factory_of
from headwise.options import ModelOptions
from headwise.shape import AttentionShape


@dataclass(frozen=True)
class Gated(SoftmaxMixer):
    """The gate is one more projection of the tokens, with a bias where the others have one."""

    name = "gated"
    summary = "each token gates what its heads found"
    causal = True
    probes = HEAD_PROBES | PATTERN_PROBES | MATRIX_PROBES
    tools = frozenset({"inspect"})

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        gates = shape.heads * shape.v_rank
        return super().parameters(shape, options) | {"mixing": gates * (shape.width + (options.bias != "none"))}

    def products(
        self, shape: AttentionShape, options: ModelOptions, queries: int, keys: int, cached: bool = False
    ) -> int:
        gates = queries * shape.width * shape.heads * shape.v_rank
        return super().products(shape, options, queries, keys, cached) + gates

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        return super().saved(shape, options, tokens, fused) + 2 * shape.heads * shape.v_rank

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, GatedAttention, window=self.window or None, **factory)


class GatedAttention(WindowedAttention):
    """Gates begin at ½ on average."""

    def __init__(self, shape: AttentionShape, **options: Any) -> None:
        factory = factory_of(options)
        super().__init__(shape, **options)
        bias = bool(options.get("input_bias"))
        self.gate = nn.Linear(shape.width, shape.heads * shape.v_rank, bias=bias, **factory)
        self.reset_parameters()

    def _joined(self, heads: Tensor, x: Tensor) -> Tensor:
        return super()._joined(heads, x) * self._times(self.gate, x).sigmoid()


MIXER = Gated
