"""transformers' Qwen3 = headwise with `qk_norm="rms"`: the attention layer and the whole model, in float32.

Every head's queries and keys are normalised before they are rotated; head_dim is not width / heads.
"""

import pytest
import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

from headwise.layers.attention import Attention
from headwise.models import build
from headwise.options import preset
from headwise.shape import ModelShape
from helpers.copying import (
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


def qwen_config(**changes) -> Qwen3Config:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "attn_implementation": "sdpa",
    }
    return Qwen3Config(**{**sizes, **changes})


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention(path, kv_heads):
    config = qwen_config(num_key_value_heads=kv_heads)
    peer = scrambled(Qwen3Attention(config, 0))
    layer = Attention(shape_of(config), causal=True, rope_base=BASE, qk_norm="rms", norm_eps=EPS, path=path)
    x = torch.randn(BATCH, TOKENS, 32)
    turned = Qwen3RotaryEmbedding(config)(x, torch.arange(TOKENS)[None])
    hold_equal(layer, peer, llama_attention, [x], SINGLE, run_peer=lambda x: peer(x, turned, None)[0])


def models(path: str, tied: bool = True):
    """Ours and the peer."""
    peer = scrambled(Qwen3ForCausalLM(qwen_config(tie_word_embeddings=tied)))
    options = preset("llama", vocab=VOCAB, norm_eps=EPS, rope_base=BASE, qk_norm="rms", tied=tied)
    return take(build(ModelShape.parse("w32-h4-r16-g2-L2-m48"), options), path), peer


@pytest.mark.parametrize("tied", [False, True])
def test_model(path, tied):
    model, peer = models(path, tied)
    tokens = torch.randint(VOCAB, (BATCH, TOKENS))
    hold_equal(model, peer, llama_model, [tokens], SINGLE, run_peer=lambda tokens: peer(tokens).logits)


@torch.no_grad()
def test_decoding_and_its_cache(path):
    model, peer = models(path)
    load(model, peer, llama_model)
    tokens = torch.randint(VOCAB, (BATCH, TOKENS))
    caches, cache = model.new_caches(), DynamicCache(config=peer.config)
    for step in tokens.split(1, dim=1):
        same(model(step, caches), peer(step, past_key_values=cache).logits, SINGLE)
        assert sum(c.nbytes for c in caches) == cache_bytes(cache)
    for ours, theirs in zip(caches, cache.layers, strict=True):
        same(ours.kept[0], theirs.keys, SINGLE, "keys")
        same(ours.kept[1], theirs.values, SINGLE, "values")
