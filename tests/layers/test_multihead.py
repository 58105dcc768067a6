"""The drop-in: held against torch's own layer on every argument."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from headwise.layers.multihead import MultiheadAttention

WIDTH, HEADS, BATCH, QUERIES, KEYS = 12, 3, 2, 4, 5
DOUBLE = torch.float64


def pair(**options):
    """torch's layer with random biases, and ours with its state dict."""
    theirs, ours = (kind(WIDTH, HEADS, dtype=DOUBLE, **options) for kind in (nn.MultiheadAttention, MultiheadAttention))
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@st.composite
def calls(draw):
    """Any constructor and any call."""
    same = draw(st.booleans())
    options = {
        "bias": draw(st.booleans()),
        "add_bias_kv": draw(st.booleans()),
        "add_zero_attn": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
    }
    if not same:
        options |= {"kdim": draw(st.sampled_from([None, 7])), "vdim": draw(st.sampled_from([None, 9]))}
    batched = draw(st.booleans())
    keys = QUERIES if same else KEYS
    call = {"need_weights": draw(st.booleans()), "average_attn_weights": draw(st.booleans())}
    allowed = torch.rand(BATCH * HEADS, QUERIES, keys) > 0.3
    allowed[..., 0] = True  # torch gives NaN where nothing may be seen
    per_head = draw(st.booleans())
    shown = (allowed if batched else allowed[:HEADS]) if per_head else allowed[0]
    kind = draw(st.sampled_from(["none", "bool", "float", "causal"]))
    if kind == "bool":
        call["attn_mask"] = ~shown
    elif kind == "float":
        call["attn_mask"] = torch.randn(shown.shape, dtype=DOUBLE)
    elif kind == "causal" and not (options["add_bias_kv"] or options["add_zero_attn"]):
        call |= {"attn_mask": torch.ones(QUERIES, keys, dtype=torch.bool).triu(1), "is_causal": True}
    padding = torch.zeros(BATCH, keys, dtype=torch.bool)
    padding[1, -1] = True
    padding_kind = draw(st.sampled_from(["none", "bool"]))
    if padding_kind == "bool":
        call["key_padding_mask"] = padding if batched else padding[1]
    return options, call, same, batched


def tokens(count, width, options, batched):
    x = torch.randn(BATCH, count, width, dtype=DOUBLE)
    if not batched:
        return x[0]
    return x if options["batch_first"] else x.transpose(0, 1)


@given(calls())
@settings(max_examples=300)
def test_it_behaves_as_torchs_layer(case):
    """Outputs, weights and gradients, over constructor arguments, masks, layouts and widths."""
    options, call, same, batched = case
    theirs, ours = pair(**options)
    query = tokens(QUERIES, WIDTH, options, batched).requires_grad_()
    key = query if same else tokens(KEYS, options.get("kdim") or WIDTH, options, batched)
    value = query if same else tokens(KEYS, options.get("vdim") or WIDTH, options, batched)
    results = []
    for layer in (theirs, ours):
        output, weights = layer(query, key, value, **call)
        loss = (output * torch.linspace(-1, 1, output.numel(), dtype=DOUBLE).view_as(output)).sum()
        results.append((output, weights, torch.autograd.grad(loss, query)[0]))
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kdim", "bias"), list(itertools.product([None, 7], [True, False])))
def test_state_dicts_go_both_ways(kdim, bias):
    theirs, ours = pair(kdim=kdim, bias=bias, add_bias_kv=True)
    assert set(theirs.state_dict()) == set(ours.state_dict())
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(tensor, ours.state_dict()[name], rtol=0, atol=0)
    for parameter in theirs.parameters():
        parameter.data.normal_()
    ours.load_state_dict(theirs.state_dict())
    fresh = nn.MultiheadAttention(WIDTH, HEADS, kdim=kdim, bias=bias, add_bias_kv=True, dtype=DOUBLE)
    fresh.load_state_dict(ours.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name])


def test_the_same_seed_gives_the_same_weights_and_the_same_next_draw():
    draws = []
    for kind in (nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(7)
        layer = kind(WIDTH, HEADS)
        draws.append((layer.in_proj_weight, layer.out_proj.weight, torch.rand(3)))
    for one, other in zip(*draws, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_it_stands_in_a_transformer_encoder(norm_first, training):
    """As torch's own attention does, masks and inference included."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True, norm_first=norm_first, dtype=DOUBLE)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    x = torch.randn(BATCH, KEYS, WIDTH, dtype=DOUBLE)
    padding = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padding[1, -1] = True
    mask = nn.Transformer.generate_square_subsequent_mask(KEYS, dtype=DOUBLE)
    calls = [{}, {"src_key_padding_mask": padding}, {"mask": mask, "is_causal": True}]
    with torch.no_grad():
        expected = [model(x, **call) for call in calls]
        for block in model.layers:
            ours = MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=DOUBLE)
            ours.load_state_dict(block.self_attn.state_dict())
            block.self_attn = ours.train(training)
        for call, output in zip(calls, expected, strict=True):
            torch.testing.assert_close(model(x, **call), output, rtol=1e-10, atol=1e-10)


def test_free_ranks_train_inside_a_transformer_encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
    layer.self_attn = MultiheadAttention(WIDTH, 5, batch_first=True, qk_rank=8, v_rank=2, kv_heads=1)
    layer(torch.randn(BATCH, KEYS, WIDTH)).sum().backward()
    assert layer.self_attn.in_proj_weight.shape == (5 * 8 + 8 + 2, WIDTH)
    assert layer.self_attn.in_proj_weight.grad.abs().sum() > 0
    layer.eval()
    with torch.no_grad():
        assert layer(torch.randn(BATCH, KEYS, WIDTH)).shape == (BATCH, KEYS, WIDTH)


def test_dropout_is_torchs():
    theirs, ours = pair(dropout=0.4)
    x = torch.randn(QUERIES, BATCH, WIDTH, dtype=DOUBLE)
    results = []
    for layer in (theirs, ours):
        torch.manual_seed(3)
        results.append(layer(x, x, x))
    torch.testing.assert_close(results[0], results[1])


def test_constant_tokens_are_seen_under_a_causal_hint_as_under_its_mask():
    """torch hides them there unless weights are asked for: it disagrees with itself. We follow the mask."""
    theirs, ours = pair(add_zero_attn=True)
    x = torch.randn(QUERIES, BATCH, WIDTH, dtype=DOUBLE)
    call = {"attn_mask": torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1), "is_causal": True}
    seen, _ = theirs(x, x, x, **call, need_weights=True)
    hidden, _ = theirs(x, x, x, **call, need_weights=False)
    assert not torch.allclose(seen, hidden)
    for need_weights in (True, False):
        torch.testing.assert_close(ours(x, x, x, **call, need_weights=need_weights)[0], seen)


def test_a_causal_hint_needs_a_mask_there_and_here():
    x = torch.randn(QUERIES, BATCH, WIDTH, dtype=DOUBLE)
    for layer in pair():
        with pytest.raises(RuntimeError, match="Need attn_mask"):
            layer(x, x, x, is_causal=True)


def test_ranks_that_do_not_divide_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="5 heads do not divide width 12"):
        MultiheadAttention(12, 5)
