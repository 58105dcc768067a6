"""Sliding windows: a token looks at the tokens nearest to it (arXiv:2004.05150, section 3.1).

`window-64` sees 64 tokens with itself where attention is causal, and less than 64 away on both sides where it is not.
The cache holds no more than the window. `window-512x5,attention` is Gemma 3's order of layers.
"""

from dataclasses import dataclass
from typing import Any

from headwise.layers.attention import Attention
from headwise.mixer import HEAD_PROBES, MATRIX_PROBES, PATTERN_PROBES
from headwise.mixers import make_attention
from headwise.mixers._softmax import SoftmaxMixer, WindowedAttention
from headwise.options import ModelOptions
from headwise.shape import AttentionShape
from headwise.spec import SpecError


@dataclass(frozen=True)
class Window(SoftmaxMixer):
    """The window in tokens is its number."""

    name = "window"
    summary = "a token looks at those near it; costs and cache are bounded by the window"
    causal = True
    probes = HEAD_PROBES | PATTERN_PROBES | MATRIX_PROBES
    tools = frozenset({"inspect", "truncate"})

    def check(self, shape: AttentionShape, options: ModelOptions) -> None:
        if self.window < 1:
            raise SpecError("a window needs its size in tokens, as in window-64")

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Attention:
        return make_attention(shape, options, WindowedAttention, window=self.window, **factory)


MIXER = Window
