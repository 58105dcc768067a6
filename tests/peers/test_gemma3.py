"""transformers' Gemma3 body = headwise's `Encoder` with sandwich norms, in float32, given the same vectors.

Its layers differ in window and rotary base, which headwise's layer has and `ModelOptions` does not, so they are set on
the layers here. Norm weights are stored as what is added to 1. Left out: its embedding, multiplied by √width.
"""

import pytest
import torch
from torch import nn
from transformers import Gemma3TextConfig, Gemma3TextModel

from headwise.layers.cache import KVCache
from headwise.models import Encoder
from headwise.options import preset
from headwise.shape import ModelShape
from helpers.copying import SINGLE, Tensors, each_layer, hold_equal, llama_layer, load, same, scrambled, take, under

BATCH, TOKENS, WIDTH = 2, 12, 32
EPS = 0.01  # far larger than usual, so that float32 shows where it goes
WINDOW, NEAR, FAR = 4, 100.0, 2000.0


def translate(tensors: Tensors) -> Tensors:
    ours = {"body.final_norm.weight": tensors["norm.weight"]}
    for block, layer in each_layer(tensors, "layers."):
        ours |= under(block, llama_layer(layer))
    return {name.removeprefix("body."): tensor for name, tensor in ours.items()}


def around_one(tensors: Tensors) -> Tensors:
    """The same for weights: a norm multiplies by 1 + weight. Gradients know nothing of the 1."""
    return {name: t + 1 if "norm" in name else t for name, t in translate(tensors).items()}


def used_part(peer: nn.Module) -> nn.Module:
    return nn.ModuleDict({"layers": peer.layers, "norm": peer.norm})


def bodies(path: str) -> tuple[Encoder, nn.Module]:
    config = Gemma3TextConfig(
        vocab_size=11,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        rms_norm_eps=EPS,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": NEAR},
            "full_attention": {"rope_type": "default", "rope_theta": FAR},
        },
    )
    peer = scrambled(Gemma3TextModel(config))
    options = preset(
        "llama", vocab=11, norm_eps=EPS, norm_place="sandwich", activation="gelu-tanh", qk_norm="rms", rope_base=FAR
    )
    body = take(Encoder(ModelShape.parse("w32-h4-r16-g2-L3-m48"), options), path)
    for number in (0, 2):
        body.blocks[number].attention.window, body.blocks[number].attention.rope_base = WINDOW, NEAR
    return body, peer


def test_body(path):
    body, peer = bodies(path)
    x = torch.randn(BATCH, TOKENS, WIDTH)
    hold_equal(
        body,
        used_part(peer),
        translate,
        [x],
        SINGLE,
        run_peer=lambda x: peer(inputs_embeds=x, use_cache=False).last_hidden_state,
        translate_weights=around_one,
    )


@pytest.mark.parametrize("prompt", [1, 7])
@torch.no_grad()
def test_decoding_past_the_window(path, prompt):
    """With a cache a window still looks no further back than without."""
    body, peer = bodies(path)
    load(body, used_part(peer), around_one)
    x = torch.randn(BATCH, TOKENS, WIDTH)
    expected = peer(inputs_embeds=x, use_cache=False).last_hidden_state
    caches = [KVCache() for _ in range(3)]
    steps = [x[:, :prompt], *x[:, prompt:].split(1, dim=1)]
    same(torch.cat([body(step, caches=caches) for step in steps], dim=1), expected, SINGLE)
