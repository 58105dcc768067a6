"""torch's `nn.MultiheadAttention` = headwise's `Attention` of the usual shape (heads × rank = width), in float64.

Outputs, gradients and attention weights, under every mask torch takes. torch's boolean masks are true where a query
may not look; headwise's are true where it may.
"""

import pytest
import torch
from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.shape import AttentionShape
from helpers.copying import EXACT, Tensors, hold_equal, load, named, same, scrambled

BATCH, WIDTH, HEADS, TOKENS = 3, 32, 4, 9


def pair(path: str, *, bias: bool = True, causal: bool = False, key: int = WIDTH, value: int = WIDTH):
    """Ours and torch's."""
    layer = Attention(
        AttentionShape(width=WIDTH, heads=HEADS),
        causal=causal,
        input_bias=bias,
        output_bias=bias,
        key_width=key,
        value_width=value,
        path=path,
        dtype=torch.float64,
    )
    peer = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, kdim=key, vdim=value, batch_first=True)
    return layer, scrambled(peer, torch.float64)


def translate(tensors: Tensors) -> Tensors:
    ours = {name.replace("out_proj", "output"): t for name, t in tensors.items() if name.startswith("out_proj")}
    if "in_proj_weight" in tensors:
        ours["input.weight"] = tensors["in_proj_weight"]
        return ours | ({"input.bias": tensors["in_proj_bias"]} if "in_proj_bias" in tensors else {})
    for number, name in enumerate("qkv"):
        ours[f"inputs.{number}.weight"] = tensors[f"{name}_proj_weight"]
        if "in_proj_bias" in tensors:
            ours[f"inputs.{number}.bias"] = tensors["in_proj_bias"].chunk(3)[number]
    return ours


def random_pairs(*shape: int) -> Tensor:
    """True where a query may look: about half of the keys, and always the first."""
    allowed = torch.rand(*shape) < 0.5
    allowed[..., 0] = True
    return allowed


def masks(kind: str, queries: int, keys: int) -> tuple[dict, dict]:
    """The same mask as torch's arguments and as headwise's."""
    if kind == "none":
        return {}, {}
    if kind == "padding":
        real = random_pairs(BATCH, keys)
        return {"key_padding_mask": ~real}, {"padding": real}
    if kind == "truth":
        allowed = random_pairs(queries, keys)
        return {"attn_mask": ~allowed}, {"mask": allowed}
    if kind == "truth per head":
        allowed = random_pairs(BATCH, HEADS, queries, keys)
        return {"attn_mask": ~allowed.flatten(0, 1)}, {"mask": allowed}
    if kind == "numbers":
        bias = torch.randn(queries, keys, dtype=torch.float64)
        return {"attn_mask": bias}, {"mask": bias}
    if kind == "numbers per head":
        bias = torch.randn(BATCH, HEADS, queries, keys, dtype=torch.float64)
        return {"attn_mask": bias.flatten(0, 1)}, {"pair_bias": bias}
    if kind == "numbers with minus infinity":
        bias = torch.where(random_pairs(queries, keys), torch.randn(queries, keys, dtype=torch.float64), -torch.inf)
        return {"attn_mask": bias}, {"mask": bias}
    theirs, ours = {}, {}
    for one in kind.split(" and "):
        more_theirs, more_ours = masks(one, queries, keys)
        theirs, ours = theirs | more_theirs, ours | more_ours
    return theirs, ours


KINDS = (
    "none",
    "padding",
    "truth",
    "truth per head",
    "numbers",
    "numbers per head",
    "numbers with minus infinity",
    "padding and truth",
)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_self_attention(path, kind, bias):
    layer, peer = pair(path, bias=bias)
    theirs, ours = masks(kind, TOKENS, TOKENS)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    hold_equal(
        layer,
        peer,
        translate,
        [x],
        EXACT,
        run=lambda x: layer(x, **ours),
        run_peer=lambda x: peer(x, x, x, need_weights=False, **theirs)[0],
    )


@pytest.mark.parametrize(("key", "value"), [(WIDTH, WIDTH), (24, 24), (24, WIDTH), (WIDTH, 40), (24, 40)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["none", "padding", "truth"])
def test_cross_attention_with_keys_and_values_of_other_widths(path, key, value, bias, kind):
    layer, peer = pair(path, bias=bias, key=key, value=value)
    theirs, ours = masks(kind, 7, 11)
    sizes = ((7, WIDTH), (11, key), (11, value))
    inputs = [torch.randn(BATCH, tokens, width, dtype=torch.float64) for tokens, width in sizes]
    hold_equal(
        layer,
        peer,
        translate,
        inputs,
        EXACT,
        run=lambda q, k, v: layer(q, k, v, **ours),
        run_peer=lambda q, k, v: peer(q, k, v, need_weights=False, **theirs)[0],
    )


@pytest.mark.parametrize("kind", ["none", "padding"])
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (6, 9), (9, 6), (1, 5)])
def test_causal(path, kind, queries, keys):
    """torch needs the mask as well as the flag; with unequal lengths both let query i see keys 0 to i."""
    layer, peer = pair(path, causal=True)
    theirs, ours = masks(kind, queries, keys)
    later = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    flag = {} if theirs else {"is_causal": True}  # torch ignores the flag beside a padding mask
    inputs = [torch.randn(BATCH, tokens, WIDTH, dtype=torch.float64) for tokens in (queries, keys)]
    hold_equal(
        layer,
        peer,
        translate,
        inputs,
        EXACT,
        run=lambda x, memory: layer(x, memory, **ours),
        run_peer=lambda x, memory: peer(x, memory, memory, need_weights=False, attn_mask=later, **flag, **theirs)[0],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_attention_weights(path, kind):
    layer, peer = pair(path)
    load(layer, peer, translate)
    theirs, ours = masks(kind, TOKENS, TOKENS)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    output, weights = layer(x, need_weights=True, **ours)
    expected, expected_weights = peer(x, x, x, need_weights=True, average_attn_weights=False, **theirs)
    same(output, expected, EXACT)
    same(weights, expected_weights, EXACT, "weights")
    direction = torch.randn_like(weights)
    weights.backward(direction)
    expected_weights.backward(direction)
    same(layer.input.weight.grad, peer.in_proj_weight.grad, EXACT, "gradient through the weights")


def test_gradient_of_a_learned_bias(path):
    """A bias on the logits may be learned: T5's, Swin's, ALiBi's slopes."""
    layer, peer = pair(path)
    bias = torch.randn(BATCH, HEADS, TOKENS, TOKENS, dtype=torch.float64)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    hold_equal(
        layer,
        peer,
        translate,
        [x, bias],
        EXACT,
        run=lambda x, bias: layer(x, pair_bias=bias),
        run_peer=lambda x, bias: peer(x, x, x, need_weights=True, attn_mask=bias.flatten(0, 1))[0],
    )


def test_inference_kernel(path):
    """Without gradients torch takes another kernel of its own."""
    layer, peer = pair(path)
    load(layer, peer, translate)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    real = random_pairs(BATCH, TOKENS)
    with torch.inference_mode():
        same(layer(x, padding=real), peer(x, x, x, key_padding_mask=~real)[0], EXACT)


def test_number_of_parameters():
    layer, peer = pair("fast", key=24, value=40)
    assert sum(p.numel() for p in named(layer).values()) == sum(p.numel() for p in named(peer).values())
