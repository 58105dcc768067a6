"""transformers' Gemma 2 = headwise's decoder: bounded logits, scaled embeddings, norms on both sides of every part.

Every layer sees all tokens here. Norm weights are stored as what is added to 1.
"""

import pytest
import torch
from transformers import DynamicCache, Gemma2Config, Gemma2ForCausalLM

from headwise.checkpoints.readers.llama import LlamaReader
from headwise.models import build
from headwise.options import preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from helpers.copying import SINGLE, Tensors, hold_equal, llama_model, load, same, scrambled, take

BATCH, TOKENS, VOCAB, WIDTH = 2, 12, 31, 32
SHAPE = ModelShape.parse("w32-h4-r16-g2-L2-m48")


def around_one(tensors: Tensors) -> Tensors:
    """A norm multiplies by 1 + weight. Gradients know nothing of the 1."""
    return {name: t + 1 if "norm" in name else t for name, t in llama_model(tensors).items()}


def models(path: str):
    config = Gemma2Config(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=1.5,  # far less than usual, so that it shows
        final_logit_softcapping=3.0,
        rms_norm_eps=0.01,
        sliding_window=64,
        attn_implementation="eager",
    )
    peer = scrambled(Gemma2ForCausalLM(config))
    found = LlamaReader.described(config.to_dict())
    assert (found.options.attention_softcap, found.options.embedding_scale) == (1.5, WIDTH**0.5)
    assert str(found.shape) == str(SHAPE)
    return take(build(found.shape, found.options), path), peer


def test_model(path):
    model, peer = models(path)
    tokens = torch.randint(1, VOCAB, (BATCH, TOKENS))  # 0 is padding, whose row of the table has no gradient there
    hold_equal(
        model,
        peer,
        llama_model,
        [tokens],
        SINGLE,
        run_peer=lambda tokens: peer(tokens).logits,
        translate_weights=around_one,
    )


@torch.no_grad()
def test_decoding(path):
    model, peer = models(path)
    load(model, peer, around_one)
    tokens = torch.randint(VOCAB, (BATCH, TOKENS))
    caches, cache = model.new_caches(), DynamicCache(config=peer.config)
    for step in (tokens[:, :5], *tokens[:, 5:].split(1, dim=1)):
        same(model(step, caches), peer(step, past_key_values=cache).logits, SINGLE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": "yarn:factor=4"}, "needs the first context"),
        ({"rope_scaling": "llama3:factor=4,context=64,slow=4"}, "fast is 4, but must be above slow, 4"),
        ({"rope_scaling": "yarn:4"}, "cannot read rope scaling 'yarn:4'; write linear:factor=2"),
        ({"rope_scaling": "ntk:factor=4"}, "'linear', 'llama3' or 'yarn'"),
        ({"rope_scaling": "linear:factor=2", "positions": "learned", "context": 8}, "stretches rotary positions"),
        ({"embedding_scale": 2.0, "family": "encoder"}, "embedding_scale is a decoder's"),
        ({"attention_softcap": -1.0}, "attention_softcap is -1.0"),
    ],
)
def test_options_that_cannot_be_are_one_sentence(changes, message):
    with pytest.raises(SpecError, match=message):
        preset("llama", vocab=VOCAB, **changes)


def test_an_option_that_is_not_used_is_not_part_of_a_key():
    said = preset("llama", vocab=VOCAB).model_dump()
    assert not said.keys() & {"rope_scaling", "attention_softcap", "embedding_scale"}
    assert preset("llama", vocab=VOCAB, attention_softcap=30.0).model_dump()["attention_softcap"] == 30.0
