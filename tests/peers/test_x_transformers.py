"""x-transformers' `Attention` = headwise's, with heads, ranks and key/value heads all free of the width.

Exact where x-transformers uses torch's kernel (`flash`); its own product takes the softmax in float32. Its query head
h reads key/value head h mod G, headwise's reads h // (H/G), and its rotation turns neighbouring pairs rather than
halves: copying reorders heads and rows. Its latents have no norm, so they are not headwise's.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from x_transformers.x_transformers import Attention as Peer
from x_transformers.x_transformers import RotaryEmbedding

from headwise.layers.attention import Attention
from headwise.shape import AttentionShape
from helpers.copying import EXACT, SINGLE, Tensors, hold_equal, scrambled

BATCH, TOKENS, WIDTH = 3, 9, 32
SHAPES = ("w32-h4-r12-v20", "w32-h4-r12-v20-g2", "w32-h6-r5-v3-g3", "w32-h4-r16-v8-g1", "w32-h2-r1-v48")
KINDS = {"flash": (True, torch.float64, EXACT), "own product": (False, torch.float32, SINGLE)}


def translation(shape: AttentionShape, rotated: int = 0) -> Callable[[Tensors], Tensors]:
    pairs = torch.arange(rotated).view(-1, 2).mT.flatten() if rotated else torch.arange(0)
    rows = torch.cat([pairs, torch.arange(rotated, shape.qk_rank)])

    def grouped(heads: Tensor) -> Tensor:
        """Heads in the order that puts those of one key/value head together."""
        return heads.unflatten(0, (shape.group, shape.kv_heads)).transpose(0, 1).flatten(0, 1)

    def translate(tensors: Tensors) -> Tensors:
        query = grouped(tensors["to_q.weight"].unflatten(0, (shape.heads, -1)))[:, rows].flatten(0, 1)
        key = tensors["to_k.weight"].unflatten(0, (shape.kv_heads, -1))[:, rows].flatten(0, 1)
        output = grouped(tensors["to_out.weight"].mT.unflatten(0, (shape.heads, -1))).flatten(0, 1).mT
        return {"input.weight": torch.cat([query, key, tensors["to_v.weight"]]), "output.weight": output}

    return translate


def pair(text: str, kind: str, path: str, causal: bool, window: int | None = None, base: float | None = None):
    """Ours, the peer, and their type."""
    shape = AttentionShape.parse(text)
    flash, dtype, tolerance = KINDS[kind]
    peer = Peer(
        dim=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        dim_head=shape.qk_rank,
        value_dim_head=shape.v_rank,
        causal=causal,
        flash=flash,
        max_attend_past=None if window is None else window - 1,
    )
    layer = Attention(shape, causal=causal, window=window, rope_base=base, path=path, dtype=dtype)
    return layer, scrambled(peer, dtype), dtype, tolerance


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", SHAPES)
def test_attention(path, text, kind, causal):
    layer, peer, dtype, tolerance = pair(text, kind, path, causal)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=dtype)
    hold_equal(layer, peer, translation(layer.shape), [x], tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_masks(path, kind, causal):
    """Padding and pairs; the second sequence has no real token, and all its queries get 0."""
    layer, peer, dtype, tolerance = pair(SHAPES[1], kind, path, causal)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=dtype)
    real = torch.arange(TOKENS) < torch.tensor([[TOKENS], [0], [5]])
    allowed = torch.rand(TOKENS, TOKENS) < 0.5
    allowed[:, 0] = True
    hold_equal(
        layer,
        peer,
        translation(layer.shape),
        [x],
        tolerance,
        run=lambda x: layer(x, padding=real, mask=allowed),
        run_peer=lambda x: peer(x, context=x, context_mask=real, attn_mask=allowed),  # `mask` also hides queries
    )
    assert not layer(x, padding=real)[1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_cross_attention(path, kind):
    layer, peer, dtype, tolerance = pair(SHAPES[1], kind, path, causal=False)
    inputs = [torch.randn(BATCH, tokens, WIDTH, dtype=dtype) for tokens in (TOKENS, 5)]
    hold_equal(layer, peer, translation(layer.shape), inputs, tolerance)


@pytest.mark.parametrize("window", [1, 4, TOKENS])
@pytest.mark.parametrize("kind", KINDS)
def test_window(path, kind, window):
    layer, peer, dtype, tolerance = pair(SHAPES[1], kind, path, causal=True, window=window)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=dtype)
    hold_equal(layer, peer, translation(layer.shape), [x], tolerance)


@pytest.mark.parametrize("rotated", [4, 8, 12])
def test_a_part_of_each_head_rotated(path, rotated):
    """Its table of angles is float32 either way."""
    text = f"{SHAPES[1]}-p{rotated}"
    layer, peer, dtype, tolerance = pair(text, "own product", path, causal=True, base=500.0)
    angles = RotaryEmbedding(rotated, base=500.0)(torch.arange(TOKENS))
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=dtype)
    hold_equal(
        layer,
        peer,
        translation(layer.shape, rotated),
        [x],
        tolerance,
        run_peer=lambda x: peer(x, rotary_pos_emb=angles),
    )
