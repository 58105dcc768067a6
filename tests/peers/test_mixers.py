"""Mixers = the layers they are named after: outputs and gradients of every input and weight.

DiffLlama, Mistral, GPT-OSS, Qwen3-Next, Longformer and Florence-2 (whose vision tower is DaViT) from transformers,
talking heads from x-transformers. What no library here has (XCA, class attention) is a plain loop over the formula.
"""

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    DiffLlamaConfig,
    Florence2VisionConfig,
    GptOssConfig,
    LongformerConfig,
    MistralConfig,
    Qwen3NextConfig,
)
from transformers.masking_utils import create_sliding_window_causal_mask
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding
from transformers.models.florence2.modeling_florence2 import Florence2VisionChannelAttention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.mistral.modeling_mistral import MistralAttention, MistralRotaryEmbedding
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRotaryEmbedding
from x_transformers.x_transformers import Attention as XAttention

from headwise.mixer import find_mixer
from headwise.mixers import make_layer
from headwise.options import ModelOptions
from headwise.shape import AttentionShape
from helpers.copying import EXACT, SINGLE, hold_equal, joined, llama_attention, scrambled, shape_of

BATCH, TOKENS = 2, 12
BASE, EPS = 500.0, 0.01
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": EPS,
    "attn_implementation": "eager",
}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": BASE}}


def layer(word, shape, number=0, dtype=torch.float32, **options):
    shape = AttentionShape.parse(shape) if isinstance(shape, str) else shape
    return make_layer(find_mixer(word), shape, ModelOptions(**options), number, dtype=dtype)


def causal_layer(word, shape, number=0, **options):
    given = {"family": "decoder", "vocab": 9, "positions": "rotary", "rope_base": BASE, "norm_eps": EPS}
    return layer(word, shape, number, **given | options)


def causal_mask(window=TOKENS):
    behind = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    return torch.where((behind >= 0) & (behind < window), 0.0, -torch.inf)[None, None]


@pytest.mark.parametrize("number", [0, 3])
def test_differential_attention_is_diffllamas(number):
    config = DiffLlamaConfig(**SIZES, **ROPE)
    peer = scrambled(DiffLlamaAttention(config, number))
    x = torch.randn(BATCH, TOKENS, 32)
    turned = DiffLlamaRotaryEmbedding(config)(x, torch.arange(TOKENS)[None])

    def translate(tensors):
        factors = torch.stack([tensors[f"lambda_{name}"] for name in ("q1", "k1", "q2", "k2")])
        return llama_attention(tensors) | {"factors": factors}

    hold_equal(
        causal_layer("differential", shape_of(config), number),
        peer,
        translate,
        [x],
        SINGLE,
        run_peer=lambda x: peer(x, turned, causal_mask())[0],
    )


@pytest.mark.parametrize("window", [3, 5, TOKENS])
def test_windows_are_mistrals(window):
    """With the mask that transformers itself makes; of 3 tokens in blocks, of all not."""
    config = MistralConfig(**SIZES, **ROPE, sliding_window=window)
    peer = scrambled(MistralAttention(config, 0))
    x, places = torch.randn(BATCH, TOKENS, 32), torch.arange(TOKENS)
    turned = MistralRotaryEmbedding(config)(x, places[None])
    mask = create_sliding_window_causal_mask(
        config=config, inputs_embeds=x, attention_mask=None, past_key_values=None, position_ids=places[None]
    )
    hold_equal(
        causal_layer(f"window-{window}", shape_of(config)),
        peer,
        llama_attention,
        [x],
        SINGLE,
        run_peer=lambda x: peer(x, turned, mask)[0],
    )


@pytest.mark.parametrize("window", [0, 5])
def test_sinks_are_gpt_osss(window):
    config = GptOssConfig(**SIZES, **ROPE)
    peer = scrambled(GptOssAttention(config, 0))
    x = torch.randn(BATCH, TOKENS, 32)
    turned = GptOssRotaryEmbedding(config)(x, torch.arange(TOKENS)[None])
    word = f"sinks-{window}" if window else "sinks"
    hold_equal(
        causal_layer(word, shape_of(config), bias="all"),
        peer,
        lambda tensors: llama_attention(tensors) | {"sinks": tensors["sinks"]},
        [x],
        SINGLE,
        run_peer=lambda x: peer(x, turned, causal_mask(window or TOKENS))[0],
    )


def test_gates_are_qwen3_nexts():
    """Its norms multiply by 1 + weight, and it rotates a quarter of each head."""
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 0.25}}
    config = Qwen3NextConfig(**SIZES | {"head_dim": 16}, **rope)
    peer = scrambled(Qwen3NextAttention(config, 0))
    x = torch.randn(BATCH, TOKENS, 32)
    turned = Qwen3NextRotaryEmbedding(config)(x, torch.arange(TOKENS)[None])

    def translate(tensors, shift=0.0):
        query, gate = tensors["q_proj.weight"].unflatten(0, (4, 2, 16)).unbind(1)
        ours = llama_attention(tensors | {"q_proj.weight": query.flatten(0, 1)})
        ours |= {name: tensor + shift for name, tensor in ours.items() if "norm" in name}
        return ours | {"gate.weight": gate.flatten(0, 1)}

    hold_equal(
        causal_layer("gated", shape_of(config, rope_rank=4), qk_norm="rms"),
        peer,
        translate,
        [x],
        SINGLE,
        run_peer=lambda x: peer(x, turned, causal_mask())[0],
        translate_weights=lambda tensors: translate(tensors, 1.0),
    )


@pytest.mark.parametrize(("tokens", "first"), [(24, 1), (24, 3), (8, 2)])
def test_windows_and_global_tokens_are_longformers(tokens, first):
    """In blocks, and where the sequence is too short for them."""
    config = LongformerConfig(
        hidden_size=32, num_attention_heads=4, attention_window=[4], num_hidden_layers=1, attention_probs_dropout_prob=0
    )
    peer = scrambled(LongformerSelfAttention(config, 0), torch.float64)
    is_global = (torch.arange(tokens) < first).expand(BATCH, -1)
    mask = torch.where(is_global, 10_000.0, 0.0).double()

    def run_peer(x):
        return peer(x, mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0, is_global_attn=True)[0]

    def translate(tensors):
        own = joined(tensors, ("query", "key", "value"), "input")
        return own | joined(tensors, [f"{name}_global" for name in ("query", "key", "value")], "global_input")

    ours = layer(f"longformer-3-{first}", "w32-h4", dtype=torch.float64, bias="qkv")
    ours.output = torch.nn.Identity()
    x = torch.randn(BATCH, tokens, 32, dtype=torch.float64)
    ours._times = lambda linear, x: x if linear is ours.output else linear(x)
    hold_equal(ours, peer, translate, [x], SINGLE, run_peer=run_peer)


@pytest.mark.parametrize("causal", [False, True])
def test_talking_heads_are_x_transformers(causal):
    peer = scrambled(
        XAttention(32, heads=4, dim_head=8, causal=causal, pre_talking_heads=True, post_talking_heads=True)
    )
    family = {"family": "decoder", "vocab": 9} if causal else {}

    def translate(tensors, kept=0.0):
        """It adds what heads exchange before the softmax to what they have."""
        ours = joined(tensors, ("to_q", "to_k", "to_v"), "input") | joined(tensors, ("to_out",), "output")
        matrices = {"before": "pre_softmax_talking_heads", "after": "post_softmax_talking_heads"}
        ours |= {name: tensors[f"attend.{theirs}.weight"][..., 0, 0] for name, theirs in matrices.items()}
        return ours | {"before": ours["before"] + kept * torch.eye(4)}

    hold_equal(
        layer("talking", "w32-h4", **family),
        peer,
        translate,
        [torch.randn(BATCH, TOKENS, 32)],
        SINGLE,
        translate_weights=lambda tensors: translate(tensors, 1.0),
    )


def test_channel_groups_are_those_of_florence_2():
    """Florence-2 scales by tokens, DaViT by the rank of a group: queries carry the difference."""
    config = Florence2VisionConfig(embed_dim=[32], num_groups=[4], qkv_bias=True, attn_implementation="eager")
    peer = scrambled(Florence2VisionChannelAttention(config, 0), torch.float64)
    scales = torch.ones(96, dtype=torch.float64)
    scales[:32] = (8 / TOKENS) ** 0.5

    def translate(tensors, scales=scales):
        ours = {f"input.{kind}": tensors[f"qkv.{kind}"] for kind in ("weight", "bias")}
        ours = {name: tensor * (scales if tensor.dim() == 1 else scales[:, None]) for name, tensor in ours.items()}
        return ours | joined(tensors, ("proj",), "output")

    hold_equal(
        layer("channels", "w32-h4", dtype=torch.float64, bias="all"),
        peer,
        lambda tensors: translate(tensors, 1 / scales),
        [torch.randn(BATCH, TOKENS, 32, dtype=torch.float64)],
        EXACT,
        translate_weights=translate,
    )


# ---- formulas, a number at a time ----------------------------------------------------------------------------------


@torch.no_grad()
def test_cross_covariance_attention_is_xcits_formula():
    ours = layer("xca", "w12-h3", dtype=torch.float64, bias="all")
    ours.temperature.uniform_(0.5, 2.0)
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    query, key, value = F.linear(x[0], ours.input.weight, ours.input.bias).split(12, dim=1)
    found = torch.zeros(7, 12, dtype=torch.float64)
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        q, k, v = query[:, part], key[:, part], value[:, part]
        for i in range(4):
            unit = q[:, i] / q[:, i].norm()
            logits = [ours.temperature[head] * (k[:, j] / k[:, j].norm()) @ unit for j in range(4)]
            weights = torch.stack(logits).softmax(0)
            for j in range(4):
                found[:, 4 * head + i] += weights[j] * v[:, j]
    torch.testing.assert_close(ours(x)[0], F.linear(found, ours.output.weight, ours.output.bias))


@torch.no_grad()
def test_channel_groups_are_davits_formula():
    ours = layer("channels", "w8-h2", dtype=torch.float64, bias="all")
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    query, key, value = F.linear(x[0], ours.input.weight, ours.input.bias).split(8, dim=1)
    found = torch.zeros(5, 8, dtype=torch.float64)
    for group in range(2):
        for i in range(4 * group, 4 * group + 4):
            logits = [query[:, i] @ key[:, j] / 4**0.5 for j in range(4 * group, 4 * group + 4)]
            for j, weight in enumerate(torch.stack(logits).softmax(0)):
                found[:, i] += weight * value[:, 4 * group + j]
    torch.testing.assert_close(ours(x)[0], F.linear(found, ours.output.weight, ours.output.bias))


@torch.no_grad()
def test_class_attention_is_caits_formula():
    ours = layer("class-token", "w12-h3", dtype=torch.float64, bias="all")
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    query, key, value = F.linear(x[0], ours.input.weight, ours.input.bias).split(12, dim=1)
    found = []
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        weights = torch.stack([query[0, part] @ key[t, part] / 4**0.5 for t in range(7)]).softmax(0)
        found.append(sum(weights[t] * value[t, part] for t in range(7)))
    output = F.linear(torch.cat(found), ours.output.weight, ours.output.bias)
    torch.testing.assert_close(ours(x)[0, 0], output)
    assert not ours(x)[0, 1:].any()
