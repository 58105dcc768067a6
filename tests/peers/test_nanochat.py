"""transformers' NanoChat = headwise's `preset("nanochat")`, in float32: logits, gradients, decoding and cache.

NanoChat turns heads the other way round and normalises them after turning. The first is headwise's rotation with the
two halves of each head exchanged, which copying does; the second changes nothing, for a rotation keeps lengths.
"""

import torch
from transformers import DynamicCache, NanoChatConfig, NanoChatForCausalLM

from headwise.models import build
from headwise.options import preset
from headwise.shape import ModelShape
from helpers.copying import (
    SINGLE,
    Tensors,
    cache_bytes,
    hold_equal,
    load,
    same,
    scrambled,
    take,
)
from helpers.translations import nanochat_model

BATCH, TOKENS, VOCAB, RANK, BASE = 2, 10, 61, 8, 500.0
EPS = 0.01  # far larger than usual, so that float32 shows where it goes


def translate(tensors: Tensors) -> Tensors:
    return nanochat_model(tensors, RANK)


def models(path: str):
    """Ours and the peer; a softcap so low that it bends the logits."""
    config = NanoChatConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
        final_logit_softcapping=2.0,
        pad_token_id=None,
    )
    options = preset("nanochat", vocab=VOCAB, norm_eps=EPS, rope_base=BASE, softcap=2.0)
    return take(build(ModelShape.parse("w32-h4-g2-L2"), options), path), scrambled(NanoChatForCausalLM(config))


def test_model(path):
    model, peer = models(path)
    tokens = torch.randint(VOCAB, (BATCH, TOKENS))
    hold_equal(model, peer, translate, [tokens], SINGLE, run_peer=lambda tokens: peer(tokens).logits)


@torch.no_grad()
def test_decoding_and_its_cache(path):
    model, peer = models(path)
    load(model, peer, translate)
    caches, cache = model.new_caches(), DynamicCache(config=peer.config)
    for step in torch.randint(VOCAB, (BATCH, TOKENS)).split(1, dim=1):
        same(model(step, caches), peer(step, past_key_values=cache).logits, SINGLE)
        assert sum(c.nbytes for c in caches) == cache_bytes(cache)
