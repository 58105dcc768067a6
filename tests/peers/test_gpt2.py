"""transformers' GPT-2 = headwise's `preset("gpt2")`, in float64: logits, gradients, and the tokens it generates.

GPT-2 keeps its matrices transposed.
"""

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from headwise.models import build
from headwise.options import preset
from headwise.shape import ModelShape
from helpers.copying import EXACT, cache_bytes, hold_equal, load, same, scrambled, take
from helpers.translations import gpt2_model

BATCH, TOKENS, VOCAB, CONTEXT = 2, 10, 61, 24


def models(path: str):
    """Ours and the peer."""
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    )
    options = preset("gpt2", vocab=VOCAB, context=CONTEXT)
    model = build(ModelShape.parse("w32-h4-L2"), options, dtype=torch.float64)
    return take(model, path), scrambled(GPT2LMHeadModel(config), torch.float64)


def test_model(path):
    model, peer = models(path)
    tokens = torch.randint(VOCAB, (BATCH, TOKENS))
    hold_equal(model, peer, gpt2_model, [tokens], EXACT, run_peer=lambda tokens: peer(tokens).logits)


@torch.no_grad()
def test_decoding_and_its_cache(path):
    model, peer = models(path)
    load(model, peer, gpt2_model)
    caches, cache = model.new_caches(), DynamicCache(config=peer.config)
    for step in torch.randint(VOCAB, (BATCH, TOKENS)).split(1, dim=1):
        same(model(step, caches), peer(step, past_key_values=cache).logits, EXACT)
        assert sum(c.nbytes for c in caches) == cache_bytes(cache)


def test_greedy_generation(path):
    model, peer = models(path)
    peer.transformer.wpe.weight.data *= 8  # else one token follows itself for ever
    load(model, peer, gpt2_model)
    prompt = torch.randint(VOCAB, (4, 5))
    expected = peer.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=CONTEXT - 5, do_sample=False
    )
    assert expected.shape == (4, CONTEXT)
    assert len(expected[:, 5:].unique()) > 4
    assert torch.equal(model.generate(prompt, CONTEXT - 5), expected)
