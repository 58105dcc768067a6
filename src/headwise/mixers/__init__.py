"""The mixers: one file each, named as in `options.mixer`, with its `Mixer` (rules and costs) and its torch module."""

from typing import Any

from headwise.layers.attention import Attention
from headwise.mixer import ATTENTION, Mixer
from headwise.options import ModelOptions
from headwise.shape import AttentionShape


def make_attention(
    shape: AttentionShape, options: ModelOptions, kind: type[Attention] = Attention, **more: Any
) -> Attention:
    """A layer with a model's options; `more` is what only its kind has, with `device` and `dtype`."""
    return kind(
        shape,
        causal=options.causal,
        rope_base=options.rope_base if options.positions == "rotary" else None,
        rope_scaling=options.scaling,
        qk_norm=options.qk_norm,
        norm_eps=options.norm_eps,
        hardmax=options.hardmax,
        logit_scale=options.logit_scale,
        softcap=options.attention_softcap,
        input_bias=options.bias != "none",
        output_bias=options.bias == "all",
        dropout=options.dropout,
        output_scale=options.output_scale,
        **more,
    )


def make_layer(
    mixer: Mixer, shape: AttentionShape, options: ModelOptions, number: int = 0, **factory: Any
) -> Attention:
    """What mixes the tokens of block `number`. Whoever measures a layer asks its `mixer` what applies to it."""
    if mixer == ATTENTION:
        return make_attention(shape, options, **factory)
    layer: Attention = mixer.layer(shape, options, number, **factory)
    layer.mixer = str(mixer)
    return layer
