"""transformers' Llama = headwise: the attention layer exactly (float64), the whole model as far as float32 goes.

Grouped queries and a head_dim that is not width / heads. Decoding token by token fills both caches with the same
numbers, so with the same bytes.
"""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from headwise.checkpoints.readers.llama import LlamaReader
from headwise.layers.attention import Attention
from headwise.models import build
from headwise.options import RopeScaling, preset
from headwise.shape import ModelShape
from helpers.copying import (
    EXACT,
    SINGLE,
    cache_bytes,
    hold_equal,
    llama_attention,
    llama_model,
    load,
    same,
    scrambled,
    shape_of,
    take,
)

BATCH, TOKENS, VOCAB, BASE = 2, 10, 61, 500.0
EPS = 0.01  # far larger than usual, so that float32 shows where it goes


def llama_config(**changes) -> LlamaConfig:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "attn_implementation": "sdpa",
    }
    return LlamaConfig(**{**sizes, **changes})


def tables(positions: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Llama's cosines and sines in float64; its own module makes them in float32."""
    powers = torch.arange(0, rank, 2, dtype=torch.float64) / rank
    angles = positions.double()[..., None] / BASE**powers
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "rank"), [(4, 2, 16), (4, 1, 6), (4, 4, 12), (6, 2, 32)])
def test_attention(path, heads, kv_heads, rank, bias):
    config = llama_config(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=rank, attention_bias=bias)
    peer = scrambled(LlamaAttention(config, 0), torch.float64)
    layer = Attention(
        shape_of(config),
        causal=True,
        rope_base=BASE,
        input_bias=bias,
        output_bias=bias,
        path=path,
        dtype=torch.float64,
    )
    turned = tables(torch.arange(TOKENS)[None], rank)
    x = torch.randn(BATCH, TOKENS, 48, dtype=torch.float64)
    hold_equal(layer, peer, llama_attention, [x], EXACT, run_peer=lambda x: peer(x, turned)[0])


def test_given_positions(path):
    """Positions of one's own, another for each sequence."""
    config = llama_config()
    peer = scrambled(LlamaAttention(config, 0), torch.float64)
    layer = Attention(shape_of(config), causal=True, rope_base=BASE, path=path, dtype=torch.float64)
    positions = torch.randint(0, 1000, (BATCH, TOKENS))
    x = torch.randn(BATCH, TOKENS, 48, dtype=torch.float64)
    hold_equal(
        layer,
        peer,
        llama_attention,
        [x],
        EXACT,
        run=lambda x: layer(x, positions=positions),
        run_peer=lambda x: peer(x, tables(positions, config.head_dim))[0],
    )


def models(path: str, tied: bool = False):
    """Ours and the peer."""
    peer = scrambled(LlamaForCausalLM(llama_config(tie_word_embeddings=tied)))
    options = preset("llama", vocab=VOCAB, norm_eps=EPS, rope_base=BASE, tied=tied)
    return take(build(ModelShape.parse("w48-h4-r16-g2-L2-m80"), options), path), peer


@pytest.mark.parametrize("tied", [False, True])
def test_model(path, tied):
    model, peer = models(path, tied)
    tokens = torch.randint(VOCAB, (BATCH, TOKENS))
    hold_equal(model, peer, llama_model, [tokens], SINGLE, run_peer=lambda tokens: peer(tokens).logits)


SCALED = {
    "linear:factor=3": {"rope_type": "linear", "factor": 3.0},
    "llama3:factor=4,context=64": {
        "rope_type": "llama3",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "yarn:factor=4,context=64,fast=4": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 4.0,
    },
    "yarn:factor=4,context=64,attention=1.3,whole=false": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
        "truncate": False,
    },
}


@pytest.mark.parametrize("scaling", SCALED)
def test_stretched_positions(path, scaling):
    """Of the whole model, and read back from the configuration."""
    config = llama_config(rope_parameters={**SCALED[scaling], "rope_theta": BASE}, max_position_embeddings=256)
    peer = scrambled(LlamaForCausalLM(config))
    options = preset("llama", vocab=VOCAB, norm_eps=EPS, rope_base=BASE, rope_scaling=scaling)
    model = take(build(ModelShape.parse("w48-h4-r16-g2-L2-m80"), options), path)
    tokens = torch.randint(VOCAB, (BATCH, 40))
    hold_equal(model, peer, llama_model, [tokens], SINGLE, run_peer=lambda tokens: peer(tokens).logits)
    read = LlamaReader.described(config.to_dict()).options
    assert RopeScaling.parse(read.rope_scaling).growth == pytest.approx(options.scaling.growth)
    assert build(model.shape, read.replace(context=0))(tokens).shape == (BATCH, 40, VOCAB)
    alone = build(model.shape, read.replace(context=0))
    alone.load_state_dict(model.state_dict())
    same(alone(tokens), model(tokens), SINGLE)


@torch.no_grad()
def test_decoding_and_its_cache(path):
    model, peer = models(path)
    load(model, peer, llama_model)
    tokens = torch.randint(VOCAB, (BATCH, TOKENS))
    caches, cache = model.new_caches(), DynamicCache(config=peer.config)
    whole = peer(tokens).logits
    done = 0
    for new in (4, 1, 1, 3, 1):  # a prompt, tokens one by one, and several at once
        step = tokens[:, done : done + new]
        done += new
        logits = model(step, caches)
        same(logits, peer(step, past_key_values=cache).logits, SINGLE)
        same(logits, whole[:, done - new : done], SINGLE)
        assert sum(c.nbytes for c in caches) == cache_bytes(cache) == BATCH * done * 2 * 2 * (16 + 16) * 4
    for ours, theirs in zip(caches, cache.layers, strict=True):
        keys, values = ours.kept
        same(keys, theirs.keys, SINGLE, "keys")
        same(values, theirs.values, SINGLE, "values")
