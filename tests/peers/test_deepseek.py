"""transformers' DeepSeek-V2 and V3 attention (MLA) = headwise's with a latent, in float32, without YaRN.

DeepSeek orders a head as (content, rotated) and turns neighbouring pairs; headwise orders it as (rotated, content) and
turns pairs half the rotated part apart. Copying reorders rows. Decoding, headwise attends to the cached latent itself.
transformers 5.22 caches the latent and the one rotary key too,
so both caches are kv_latent + rope_rank numbers a token.
"""

import importlib
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from headwise.layers.attention import Attention
from headwise.layers.cache import KVCache
from helpers.copying import SINGLE, Tensors, cache_bytes, hold_equal, joined, load, same, scrambled, shape_of

BATCH, TOKENS, WIDTH, BASE = 2, 10, 48, 500.0
HEADS, CONTENT, ROTATED, VALUE, LATENT = 4, 12, 8, 10, 16
KINDS = ("V2", "V3", "V3 in halves")  # the last: V3 with weights that were reordered already


class Peer:
    """One attention layer of the given kind, and how to run it."""

    def __init__(self, kind: str, q_latent: int | None, bias: bool = False) -> None:
        version = kind[:2].lower()
        module = importlib.import_module(f"transformers.models.deepseek_{version}.modeling_deepseek_{version}")
        config_class = getattr(module, f"Deepseek{kind[:2]}Config")
        self.config = config_class(
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            q_lora_rank=q_latent,
            kv_lora_rank=LATENT,
            qk_nope_head_dim=CONTENT,
            qk_rope_head_dim=ROTATED,
            v_head_dim=VALUE,
            attention_bias=bias,
            rope_parameters={"rope_type": "default", "rope_theta": BASE},
            attn_implementation="sdpa",
            **({"rope_interleave": False} if kind == "V3 in halves" else {}),
        )
        self.layer = scrambled(getattr(module, f"Deepseek{kind[:2]}Attention")(self.config, 0))
        self.rotary: Any = getattr(module, f"Deepseek{kind[:2]}RotaryEmbedding")(self.config)
        self.translate = partial(translate, neighbours=kind != "V3 in halves")

    def run(self, x: Tensor, start: int = 0, cache: DynamicCache | None = None) -> Tensor:
        turned = self.rotary(x, torch.arange(start, start + x.shape[1])[None])
        return self.layer(x, position_embeddings=turned, attention_mask=None, past_key_values=cache)[0]


def translate(tensors: Tensors, neighbours: bool) -> Tensors:
    pairs = torch.arange(ROTATED).view(-1, 2).mT.flatten() if neighbours else torch.arange(ROTATED)
    head = torch.cat([CONTENT + pairs, torch.arange(CONTENT)])

    def reordered(query: Tensor) -> Tensor:
        return query.unflatten(0, (HEADS, -1))[:, head].flatten(0, 1)

    latent = torch.cat([torch.arange(LATENT), LATENT + pairs])
    ours = {name: t[latent] if name.startswith("kv_a_proj") else t for name, t in tensors.items()}
    for name in ("q_proj.weight", "q_b_proj.weight"):
        ours |= {name: reordered(ours[name])} if name in ours else {}
    query = "q_proj" if "q_proj.weight" in ours else "q_a_proj"
    names = {"kv_a_layernorm": "kv_latent_norm", "kv_b_proj": "kv_up"}
    names |= {"q_a_layernorm": "query_latent_norm", "q_b_proj": "query_up"} if query == "q_a_proj" else {}
    return {
        **joined(ours, (query, "kv_a_proj_with_mqa"), "input"),
        **joined(ours, ("o_proj",), "output"),
        **{f"{target}.weight": ours[f"{name}.weight"] for name, target in names.items()},
    }


def our_layer(peer: Peer, path: str, bias: bool = False) -> Attention:
    shape = shape_of(
        peer.config,
        qk_rank=CONTENT + ROTATED,
        v_rank=VALUE,
        kv_latent=LATENT,
        q_latent=peer.config.q_lora_rank or 0,
        rope_rank=ROTATED,
    )
    return Attention(shape, causal=True, rope_base=BASE, input_bias=bias, output_bias=bias, path=path)


@pytest.mark.parametrize(("q_latent", "bias"), [(None, False), (24, False), (24, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_attention(path, kind, q_latent, bias):
    peer = Peer(kind, q_latent, bias)
    x = torch.randn(BATCH, TOKENS, WIDTH)
    hold_equal(our_layer(peer, path, bias), peer.layer, peer.translate, [x], SINGLE, run_peer=peer.run)


def test_inputs_so_small_that_the_eps_of_norms_shows(path):
    peer = Peer("V3", 24)
    x = 0.005 * torch.randn(BATCH, TOKENS, WIDTH)
    hold_equal(our_layer(peer, path), peer.layer, peer.translate, [x], SINGLE, run_peer=peer.run)


@pytest.mark.parametrize("prompt", [1, 5])
@pytest.mark.parametrize("q_latent", [None, 24])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_decoding_from_the_latent(path, kind, q_latent, prompt):
    peer = Peer(kind, q_latent)
    layer = our_layer(peer, path)
    load(layer, peer.layer, peer.translate)
    assert layer.shape.absorbs(1, TOKENS)
    x = torch.randn(BATCH, TOKENS, WIDTH)
    whole = peer.run(x)
    ours, theirs = KVCache(), DynamicCache(config=peer.config)
    done = 0
    for step in (x[:, :prompt], *x[:, prompt:].split(1, dim=1)):
        output, expected = layer(step, cache=ours), peer.run(step, done, theirs)
        same(output, expected, SINGLE)
        same(output, whole[:, done : done + step.shape[1]], SINGLE)
        done += step.shape[1]
        assert ours.nbytes == cache_bytes(theirs) == BATCH * done * (LATENT + ROTATED) * 4
    same(ours.kept[0], theirs.layers[0].keys[:, 0], SINGLE, "latent")


@torch.no_grad()
def test_several_tokens_after_the_cache(path):
    """Longer steps expand the latent, shorter ones absorb the expansion; both are the peer's attention."""
    peer = Peer("V3", 24)
    layer = our_layer(peer, path)
    load(layer, peer.layer, peer.translate)
    x = torch.randn(BATCH, 40, WIDTH)
    steps = (3, 20, 2, 15)
    cache, outputs, done, absorbed = KVCache(), [], 0, []
    for new in steps:
        absorbed.append(layer.shape.absorbs(new, done + new))
        outputs.append(layer(x[:, done : done + new], cache=cache))
        done += new
    assert set(absorbed) == {True, False}
    same(torch.cat(outputs, dim=1), peer.run(x), SINGLE)


def test_number_of_parameters():
    peer = Peer("V2", 24)
    count = [sum(p.numel() for p in module.parameters()) for module in (our_layer(peer, "fast"), peer.layer)]
    assert count[0] == count[1]
