"""The layer: its two paths are one function, and every option does what it says."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.layers.attention import Attention
from headwise.layers.cache import KVCache
from headwise.layers.functional import angles, fast_attention, pad_ranks, plain_attention, turn
from headwise.shape import AttentionShape
from headwise.spec import SpecError
from helpers.strategies import attention_shapes

DOUBLE = torch.float64
SMALL = st.integers(1, 12)


def layer(text, **options):
    return Attention(AttentionShape.parse(text), dtype=DOUBLE, **options)


def twins(module):
    """The same weights on the plain path."""
    other = copy.deepcopy(module)
    other.path = "plain"
    return other


def gradients(module, x, *args, **kwargs):
    x = x.clone().requires_grad_()
    output = module(x, *args, **kwargs)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    found = torch.autograd.grad((output * weights).sum(), [x, *module.parameters()], allow_unused=True)
    return output, found


def assert_same(a, b, tolerance=1e-11):
    output_a, gradients_a = a
    output_b, gradients_b = b
    torch.testing.assert_close(output_a, output_b, rtol=tolerance, atol=tolerance)
    for one, other in zip(gradients_a, gradients_b, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.isfinite().all()
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@st.composite
def layers(draw):
    shape = draw(attention_shapes(width=SMALL))
    return Attention(
        shape,
        causal=draw(st.booleans()),
        window=draw(st.sampled_from([None, None, 1, 3])),
        rope_base=draw(st.sampled_from([None, 100.0])),
        rope_scaling=draw(st.sampled_from([None, "linear:factor=2", "yarn:factor=4,context=8,fast=2,whole=false"])),
        softcap=draw(st.sampled_from([0.0, 0.0, 0.7])),
        qk_norm=draw(st.sampled_from(["none", "rms", "rms-plain"])),
        logit_scale=draw(st.booleans()),
        inverse_temperature=draw(st.sampled_from([1.0, 2.5])),
        input_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        output_scale=draw(st.sampled_from([1.0, 0.125])),
        dtype=DOUBLE,
    )


@st.composite
def masks(draw, batch, heads, tokens):
    """Any of the masks a caller can give; some rows see nothing."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    given = {}
    kind = draw(st.sampled_from(["none", "bool", "float", "padding", "bias", "all"]))
    allowed = torch.rand(batch, 1, tokens, tokens, generator=generator) > 0.4
    allowed[0, 0, tokens // 2] = False
    number = torch.randn(batch, heads, tokens, tokens, generator=generator, dtype=DOUBLE)
    if kind in ("bool", "all"):
        given["mask"] = allowed
    if kind == "float":
        given["mask"] = torch.zeros(batch, 1, tokens, tokens, dtype=DOUBLE).masked_fill(~allowed, -math.inf)
    if kind in ("padding", "all"):
        given["padding"] = torch.arange(tokens) < torch.tensor([[tokens], [max(1, tokens - 2)]])
    if kind in ("bias", "all"):
        given["pair_bias"] = number
    return given


@given(st.data())
@settings(max_examples=200)
def test_the_fast_path_equals_the_plain_one(data):
    """Forward and backward, over shapes, options and masks."""
    module = data.draw(layers())
    tokens = data.draw(st.integers(1, 7))
    given = data.draw(masks(2, module.shape.heads, tokens))
    x = torch.randn(2, tokens, module.shape.width, dtype=DOUBLE)
    assert_same(gradients(module, x, **given), gradients(twins(module), x, **given))


@given(layers(), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=100)
def test_decoding_equals_the_whole_pass(module, first, more):
    """A prompt, then token by token: absorbed or expanded, windowed or rotary."""
    module.causal = True
    x = torch.randn(2, first + more, module.shape.width, dtype=DOUBLE)
    cache = KVCache()
    parts = [module(x[:, :first], cache=cache)]
    parts += [module(x[:, i : i + 1], cache=cache) for i in range(first, first + more)]
    torch.testing.assert_close(torch.cat(parts, dim=1), module(x), rtol=1e-11, atol=1e-11)
    kept = first + more if module.window is None else min(first + more, module.window)
    assert cache.nbytes == 2 * kept * module.shape.cached_per_token * 8


def test_both_forms_of_the_latent_are_reached():
    """The test above would mean little if one of them were never chosen."""
    shape = AttentionShape.parse("w8-h4-r8-v8-c16-p2")
    assert shape.absorbs(1, 100)
    assert not shape.absorbs(100, 100)


@given(attention_shapes(width=SMALL, latents=False), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=60)
def test_cross_attention(shape, queries, keys):
    """From any tokens to any others, with widths of their own."""
    x = torch.randn(2, queries, shape.width, dtype=DOUBLE)
    memory, values = torch.randn(2, keys, shape.width, dtype=DOUBLE), torch.randn(2, keys, 5, dtype=DOUBLE)
    module = Attention(shape, dtype=DOUBLE)
    assert_same(gradients(module, x, memory), gradients(twins(module), x, memory))
    module = Attention(shape, value_width=5, input_bias=True, dtype=DOUBLE)
    assert_same(gradients(module, x, memory, values), gradients(twins(module), x, memory, values))


@pytest.mark.parametrize("memory_width", [8, 5])
def test_cross_attention_through_a_latent(memory_width):
    module = layer("w8-h4-r6-v3-c4-q3-p2-g2", key_width=memory_width, input_bias=True, rope_base=10.0)
    x, memory = torch.randn(2, 3, 8, dtype=DOUBLE), torch.randn(2, 5, memory_width, dtype=DOUBLE)
    places = torch.arange(3) + 7
    ours = gradients(module, x, memory, positions=places)
    assert_same(ours, gradients(twins(module), x, memory, positions=places))
    with pytest.raises(SpecError, match="leave `values` out"):
        module(x, memory, memory)


def test_one_head_by_hand():
    """softmax(x W_qᵀ W_k xᵀ / √r) x W_vᵀ W_oᵀ, written out."""
    module = layer("w6-h1-r4-v3")
    x = torch.randn(1, 5, 6, dtype=DOUBLE)
    query, key, value = module.input.weight.split([4, 4, 3])
    weights = ((x @ query.T) @ (x @ key.T).mT / 2).softmax(-1)
    torch.testing.assert_close(module(x), weights @ x @ value.T @ module.output.weight.T)


@pytest.mark.parametrize("path", ["fast", "plain"])
def test_a_query_that_may_look_nowhere_gets_zero(path):
    module = layer("w8-h2", output_bias=False, path=path)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    output, found = gradients(module, torch.randn(2, 4, 8, dtype=DOUBLE), mask=mask)
    assert (output[:, 2] == 0).all()
    assert (output[:, 1] != 0).any()
    assert all(g.isfinite().all() for g in found)


def test_hardmax_is_the_limit_of_a_large_inverse_temperature():
    hard = layer("w8-h2", hardmax=True)
    soft = copy.deepcopy(hard)
    soft.hardmax, soft.inverse_temperature = False, 1e8
    x = torch.randn(2, 6, 8, dtype=DOUBLE)
    torch.testing.assert_close(hard(x), soft(x))
    _, weights = hard(x, need_weights=True)
    assert set(weights.unique().tolist()) == {0.0, 1.0}


def test_hardmax_too_gives_a_blind_query_zero():
    module = layer("w8-h2", hardmax=True)
    mask = torch.zeros(3, 3, dtype=torch.bool)
    assert (module(torch.randn(1, 3, 8, dtype=DOUBLE), mask=mask) == 0).all()


def test_weights_are_probabilities_and_make_the_output():
    module = layer("w8-h2-g1-v3", causal=True)
    x = torch.randn(2, 5, 8, dtype=DOUBLE)
    output, weights = module(x, need_weights=True)
    assert weights.shape == (2, 2, 5, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5, dtype=DOUBLE))
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(output, module(x))


@pytest.mark.parametrize(("causal", "sees"), [(True, [1, 2, 3]), (False, [1, 2, 3, 4, 5])])
def test_a_window_sees_only_the_near(causal, sees):
    module = layer("w4-h1", causal=causal, window=3)
    _, weights = module(torch.randn(1, 7, 4, dtype=DOUBLE), need_weights=True)
    assert weights[0, 0, 3].nonzero().flatten().tolist() == sees


def test_causal_outputs_do_not_depend_on_the_future():
    module = layer("w8-h2-r3-v5", causal=True, rope_base=10.0)
    x = torch.randn(1, 6, 8, dtype=DOUBLE)
    changed = x.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(module(x)[:, :4], module(changed)[:, :4])


def test_rotation_depends_on_distance_alone():
    module = layer("w8-h2", rope_base=100.0)
    x = torch.randn(1, 6, 8, dtype=DOUBLE)
    moved = module(x, positions=torch.arange(6) + 1000)
    torch.testing.assert_close(module(x), moved, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(module(x), module(x, positions=2 * torch.arange(6)))


@pytest.mark.parametrize(("rank", "turned"), [(1, 0), (2, 2), (5, 4), (6, 6)])
def test_rotation_turns_pairs_and_keeps_lengths(rank, turned):
    heads = torch.randn(1, 1, 3, rank, dtype=DOUBLE)
    module = Attention(AttentionShape(width=4, heads=1, qk_rank=rank), rope_base=10.0, dtype=DOUBLE)
    out = module._rotate(heads, module._angles(heads, None, 0))
    torch.testing.assert_close(out.norm(dim=-1), heads.norm(dim=-1))
    torch.testing.assert_close(out[..., turned:], heads[..., turned:])
    torch.testing.assert_close(out[:, :, 0], heads[:, :, 0])
    assert turned == 0 or not torch.allclose(out[:, :, 1:, :turned], heads[:, :, 1:, :turned])


def test_rotation_by_hand():
    """One pair at position 1 with base 1 turns by one radian."""
    turned = turn(torch.tensor([[[[1.0, 0.0]]]], dtype=DOUBLE), *angles(torch.tensor([1]), 2, 1.0, DOUBLE))
    torch.testing.assert_close(turned.flatten(), torch.tensor([math.cos(1), math.sin(1)], dtype=DOUBLE))


def test_positions_may_differ_in_a_batch():
    module = layer("w8-h2", rope_base=10.0)
    x = torch.randn(2, 4, 8, dtype=DOUBLE)
    places = torch.tensor([[0, 1, 2, 3], [0, 2, 4, 6]])
    both = module(x, positions=places)
    torch.testing.assert_close(both[1:], module(x[1:], positions=places[1]))


def test_padding_hides_keys():
    module = layer("w8-h2")
    x = torch.randn(2, 5, 8, dtype=DOUBLE)
    padding = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    torch.testing.assert_close(module(x, padding=padding)[1:, :3], module(x[1:, :3]))


def test_a_pair_bias_is_added_to_the_logits():
    module = layer("w4-h1")
    x = torch.randn(1, 3, 4, dtype=DOUBLE)
    bias = torch.zeros(3, 3, dtype=DOUBLE)
    bias[:, 1] = 50.0
    _, weights = module(x, pair_bias=bias, need_weights=True)
    torch.testing.assert_close(weights[0, 0, :, 1], torch.ones(3, dtype=DOUBLE))


def test_the_logit_scale_is_learned_per_head():
    module = layer("w8-h2", logit_scale=True)
    x = torch.randn(1, 4, 8, dtype=DOUBLE)
    before = module(x)
    module.logit_scale.data.fill_(3.0)
    scaled = module(x)
    module.logit_scale.data.fill_(1.0)
    module.inverse_temperature = 3.0
    torch.testing.assert_close(module(x), scaled)
    assert not torch.allclose(before, scaled)


def test_query_key_norm_makes_logits_free_of_the_inputs_size():
    module = layer("w8-h2", qk_norm="rms-plain", norm_eps=1e-12)
    x = torch.randn(1, 4, 8, dtype=DOUBLE)
    _, small = module(x, need_weights=True)
    _, large = module(100 * x, need_weights=True)
    torch.testing.assert_close(small, large)


def test_the_output_scale_is_a_factor():
    module = layer("w8-h2", output_bias=True)
    module.output.bias.data.normal_()
    x = torch.randn(1, 4, 8, dtype=DOUBLE)
    before = module(x)
    module.output_scale = 0.25
    torch.testing.assert_close(module(x), before / 4)


def test_dropout_is_for_training():
    module = layer("w8-h2", dropout=0.5)
    x = torch.randn(1, 6, 8, dtype=DOUBLE)
    assert not torch.allclose(module(x), module(x))
    module.eval()
    torch.testing.assert_close(module(x), module(x))
    torch.testing.assert_close(module(x), twins(module)(x))


# ---- heads as matrices ---------------------------------------------------------------------------------------------


@given(attention_shapes(width=st.integers(2, 8)))
@settings(max_examples=60)
def test_head_matrices_give_the_logits_and_the_values(shape):
    """Attention computed from the matrices alone; latent norms are made transparent first."""
    module = Attention(shape, dtype=DOUBLE, output_scale=0.5)
    for name in ("query_latent_norm", "kv_latent_norm"):
        if hasattr(module, name):
            setattr(module, name, torch.nn.Identity())
    x = torch.randn(1, 4, shape.width, dtype=DOUBLE)
    qk, vo = module.qk_matrices(), module.vo_matrices()
    assert qk.shape == vo.shape == (shape.heads, shape.width, shape.width)
    weights = torch.einsum("ti,hij,sj->hts", x[0], qk, x[0]).div(math.sqrt(shape.qk_rank)).softmax(-1)
    expected = torch.einsum("hts,hij,sj->ti", weights, vo, x[0])
    torch.testing.assert_close(module(x)[0], expected)
    assert torch.linalg.matrix_rank(qk).max() <= shape.qk_rank


# ---- initialisation ------------------------------------------------------------------------------------------------

SPREAD = [
    "w64-h1",
    "w64-h64",
    "w64-h8",
    "w64-h4-r3",
    "w64-h4-r64-v8",
    "w64-h8-g1",
    "w64-h8-g2-v40",
    "w64-h8-c32-p4-q16",
]


@torch.no_grad()
@pytest.mark.parametrize("text", SPREAD)
def test_logits_and_outputs_start_with_the_same_variance_in_every_shape(text):
    """Unit-variance inputs: logits of variance 1; outputs as large as one full head's."""
    shape = AttentionShape.parse(text)
    logits, outputs = [], []
    for seed in range(60):
        torch.manual_seed(seed)
        module = Attention(shape)
        x, z = torch.randn(2, 32, shape.width)
        query, key, *value = module._project(x[None], z[None], None)
        queries = module._queries(query, None)
        if shape.kv_latent:
            _, keys, _, _ = module._from_latent(queries, key, None, None)
        else:
            keys, _ = module._keys_values(key, *value, None, None)
        keys = keys.repeat_interleave(shape.group, dim=1)
        logits.append((queries @ keys.mT / math.sqrt(shape.qk_rank)).flatten())
        outputs.append(module(x[None], z[None]).flatten())
    assert torch.cat(logits).var() == pytest.approx(1.0, rel=0.1)
    # with logits of variance 1 each query averages about 32 / e values: outputs of variance near e / 32
    assert torch.cat(outputs).var() == pytest.approx(math.e / 32, rel=0.2)


# ---- the company a layer keeps -------------------------------------------------------------------------------------

SHAPES = ["w8-h2-r3-v5-g1", "w8-h2", "w8-h2-r6-v5-c4-q3-p2"]


@pytest.mark.parametrize("text", SHAPES)
def test_state_dict_deepcopy_and_pickle(text):
    module = layer(text, causal=True, rope_base=10.0)
    x = torch.randn(2, 4, 8, dtype=DOUBLE)
    fresh = layer(text, causal=True, rope_base=10.0)
    fresh.load_state_dict(module.state_dict())
    for other in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(other(x), module(x), rtol=0, atol=0)


@pytest.mark.parametrize("text", SHAPES)
def test_the_meta_device_needs_no_memory(text):
    module = Attention(AttentionShape.parse(text), device="meta")
    assert module(torch.empty(2, 4, 8, device="meta")).shape == (2, 4, 8)


@pytest.mark.parametrize("text", SHAPES)
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_it_compiles_to_one_graph(text, path):
    module = Attention(AttentionShape.parse(text), causal=True, rope_base=10.0, path=path)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 4, 8)
    assert_same(gradients(compiled, x), gradients(module, x), tolerance=1e-5)


def test_it_compiles_with_inductor():
    module = Attention(AttentionShape.parse("w8-h2-r3-v5-g1"), causal=True, rope_base=10.0)
    x = torch.randn(2, 4, 8)
    assert_same(gradients(torch.compile(module, fullgraph=True), x), gradients(module, x), tolerance=1e-5)


@pytest.mark.parametrize("text", SHAPES)
def test_autocast(text):
    """float16, which every CPU can do: some machines advertise bfloat16 kernels they cannot run."""
    module = Attention(AttentionShape.parse(text), causal=True, rope_base=10.0)
    x = torch.randn(2, 4, 8)
    with torch.autocast("cpu", torch.float16):
        output = module(x)
    assert output.dtype == torch.float16
    torch.testing.assert_close(output.float(), module(x), rtol=0.05, atol=0.02)


def test_autocast_with_query_key_norm():
    module = Attention(AttentionShape.parse("w8-h2"), qk_norm="rms")
    with torch.autocast("cpu", torch.float16):
        assert module(torch.randn(2, 4, 8)).dtype == torch.float16


@pytest.mark.parametrize("text", SHAPES)
def test_the_plain_path_has_second_derivatives(text):
    module = layer(text, path="plain")
    x = torch.randn(1, 3, 8, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradgradcheck(module, (x,), atol=1e-4)


@pytest.mark.parametrize("text", SHAPES)
def test_the_plain_path_has_forward_derivatives_and_vmap(text):
    module = layer(text, path="plain", causal=True)
    x = torch.randn(3, 1, 4, 8, dtype=DOUBLE)
    torch.testing.assert_close(torch.func.vmap(module)(x), torch.stack([module(one) for one in x]))
    forward = torch.func.jacfwd(module)(x[0])
    backward = torch.func.jacrev(module)(x[0])
    torch.testing.assert_close(forward, backward)


def test_padded_ranks_change_nothing():
    """What CUDA gets: ranks filled up with zeros to a multiple of 8."""
    q, k, v = torch.randn(2, 4, 5, 3), torch.randn(2, 2, 5, 3), torch.randn(2, 2, 5, 11)
    padded = [pad_ranks(t) for t in (q, k, v)]
    assert [t.shape[-1] for t in padded] == [8, 8, 16]
    out = fast_attention(*padded, 0.5)[..., :11]
    torch.testing.assert_close(out, plain_attention(q, k, v, 0.5)[0])


def test_the_cache_grows_and_keeps_what_it_has():
    cache = KVCache(capacity=2)
    rows = torch.randn(1, 9, 3)
    for i in range(9):
        (kept,) = cache.append(rows[:, i : i + 1])
    torch.testing.assert_close(kept, rows, rtol=0, atol=0)
    assert cache.nbytes == rows.numel() * 4


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("w8-h2-c4", {"value_width": 5}, "values are read from the latent"),
        ("w8-h2", {"window": 0}, "a token sees at least itself"),
        ("w8-h2", {"dropout": 1.0}, "dropout is 1.0"),
        ("w8-h2", {"path": "quick"}, "path is 'quick'"),
    ],
)
def test_options_that_cannot_be_are_refused(text, options, message):
    with pytest.raises(SpecError, match=message):
        layer(text, **options)


def test_it_says_its_shape():
    assert "w8-h2-r3" in repr(Attention(AttentionShape.parse("w8-h2-r3-v4")))


# ---- lengths that are symbols ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["w16-h2-r8", "w16-h4-r8-g2", "w16-h2-r8-c8-p4"])
def test_compiled_whole_at_a_second_length(text):
    module = layer(text, causal=True, rope_base=100.0)
    torch._dynamo.reset()  # other tests fill its cache of the same code
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for tokens in (5, 9, 300):
        x = torch.randn(2, tokens, 16, dtype=DOUBLE)
        torch.testing.assert_close(compiled(x), module(x))


def test_exported_for_every_length():
    module = layer("w16-h4-r8-g2", causal=True, rope_base=100.0)
    tokens = torch.export.Dim("tokens", min=2, max=512)
    exported = torch.export.export(
        module, (torch.randn(1, 7, 16, dtype=DOUBLE),), dynamic_shapes={"x": {1: tokens}}
    ).module()
    for count in (4, 400):
        x = torch.randn(1, count, 16, dtype=DOUBLE)
        torch.testing.assert_close(exported(x), module(x))


def test_a_bound_on_logits_is_one():
    """Whatever the weights are: no key gets more than exp(2 · softcap) times the attention of another."""
    module = layer("w16-h4-r8-g2", softcap=1.5)
    module.input.weight.data *= 100
    _, weights = module(torch.randn(2, 7, 16, dtype=DOUBLE), need_weights=True)
    ratios = weights.amax(-1) / weights.amin(-1)
    assert math.exp(2.9) < ratios.max() <= math.exp(3.0) * (1 + 1e-9)
    with pytest.raises(SpecError, match="softcap is -1"):
        layer("w16-h2", softcap=-1.0)


# ---- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["w16-h4-r8-g2", "w16-h2-r8-c8-p4"])
@pytest.mark.parametrize("steps", [(1,) * 12, (5, 1, 1, 3, 2)])
def test_a_window_forgets_what_no_token_can_see(text, steps):
    module = layer(text, causal=True, window=4, rope_base=100.0)
    x = torch.randn(2, 12, 16, dtype=DOUBLE)
    cache, parts, done = KVCache(), [], 0
    for count in steps:
        parts.append(module(x[:, done : done + count], cache=cache))
        done += count
        assert cache.nbytes <= 2 * (3 + count) * module.shape.cached_per_token * 8
    torch.testing.assert_close(torch.cat(parts, dim=1), module(x))
    assert cache.length == 12


def test_a_cache_goes_back_and_follows_beams():
    module = layer("w16-h4-r8-g2", causal=True, rope_base=100.0)
    x = torch.randn(3, 8, 16, dtype=DOUBLE)
    cache = KVCache()
    module(x, cache=cache)
    cache.crop(5)
    torch.testing.assert_close(module(x[:, 5:], cache=cache), module(x)[:, 5:])
    cache.crop(-2)
    assert cache.length == 6
    rows = torch.tensor([2, 0, 0])
    cache.reorder(rows)
    torch.testing.assert_close(module(x[rows, 6:], cache=cache), module(x[rows])[:, 6:])


def test_a_window_cannot_go_back_to_what_it_forgot():
    module = layer("w16-h4-r8-g2", causal=True, window=2)
    cache = KVCache()
    for token in torch.randn(6, 1, 1, 16, dtype=DOUBLE):
        module(token, cache=cache)
    with pytest.raises(ValueError, match="beyond the window of 2 and forgotten"):
        cache.crop(1)
