"""Costs: equal to built models and to torch's own counter, for generated shapes and for published models."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, example, given, settings
from torch.utils.flop_counter import FlopCounterMode

from headwise.activations import activation_bytes
from headwise.cost import (
    cached_per_token,
    cost_of,
    decode_flops,
    forward_flops,
    kv_bytes_per_token,
    layer_parameters,
    parameters,
    training_flops,
)
from headwise.known import KNOWN, find
from headwise.layers.attention import Attention
from headwise.models import build
from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from helpers.autograd import saved_bytes
from helpers.strategies import attention_shapes, models

TOKENS = 10
WIDE = 16  # of narrower models, the few numbers beside the formula for activations weigh more than a tenth


def plain(model):
    """The conventions speak of the plain path."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.path = "plain"
    return model


def inputs(shape, options, batch=2, tokens=TOKENS, device="meta"):
    if options.family == "encoder":
        return torch.randn(batch, tokens, shape.width, device=device, requires_grad=True)
    if options.family == "vit":
        side = options.image
        return torch.randn(batch, options.channels, side, side, device=device, requires_grad=True)
    return torch.zeros(batch, tokens, dtype=torch.long, device=device)


def check_parameters(model):
    shape, options = model
    built = build(shape, options, device="meta")
    counts = parameters(shape, options)
    assert counts["total"] == sum(p.numel() for p in built.parameters())
    body = built if options.family == "encoder" else built.body
    assert counts["body"] == sum(p.numel() for p in body.parameters())


def check_flops(model):
    shape, options = model
    built = plain(build(shape, options, device="meta"))
    tokens = options.tokens if options.family == "vit" else TOKENS
    with FlopCounterMode(display=False) as counter:
        output = built(inputs(shape, options))
        forward = counter.get_total_flops()
        output.sum().backward()
    assert forward == 2 * forward_flops(shape, options, tokens)
    assert counter.get_total_flops() == 3 * forward


@given(models())
@settings(max_examples=300)
def test_parameters_equal_a_built_model(model):
    check_parameters(model)


@given(attention_shapes())
@settings(max_examples=500)
def test_parameters_equal_a_built_layer(shape):
    layer = Attention(shape, device="meta")
    counts = layer_parameters(shape, 0, ModelOptions())
    assert sum(counts.values()) == sum(p.numel() for p in layer.parameters())
    assert counts["output"] == layer.output.weight.numel()


@given(models())
@settings(max_examples=60)
def test_flops_equal_torchs_counter(model):
    check_flops(model)


@pytest.mark.slow
@given(models(max_depth=4))
@settings(max_examples=5000)
def test_costs_equal_built_models_for_thousands_more(model):
    check_parameters(model)
    check_flops(model)
    check_cache_and_decoding(model)
    check_activations(model)


@given(models(max_depth=2))
@settings(max_examples=60)
def test_cache_and_decoding_equal_a_real_cache(model):
    check_cache_and_decoding(model)


def check_cache_and_decoding(model):
    """Bytes are what the cache really holds, and one decoded token costs what the counter sees."""
    shape, options = model
    options = replace_family(options)
    built = plain(build(shape, options, device="meta"))
    caches = built.new_caches()
    with torch.no_grad():
        built(inputs(shape, options), caches)
        assert sum(cache.nbytes for cache in caches) == 2 * TOKENS * kv_bytes_per_token(shape, options, "float32")
        with FlopCounterMode(display=False) as counter:
            built(inputs(shape, options, tokens=1), caches)
    assert counter.get_total_flops() == 2 * decode_flops(shape, options, TOKENS)


def replace_family(options):
    return options.replace(family="decoder", head="lm", positions="rotary")


@given(models(max_depth=3))
@example((ModelShape.parse("w16-h3-g1-r13-v1-q3-m0"), ModelOptions(norm="layer", qk_norm="rms")))
@settings(max_examples=60)
def test_activation_bytes_are_within_a_tenth_of_what_autograd_saves(model):
    assume(model[0].width >= WIDE)
    check_activations(model)


def check_activations(model):
    shape, options = model
    if shape.width < WIDE:
        return
    tokens = options.tokens if options.family == "vit" else 24
    built = plain(build(shape, options))
    seen = saved_bytes(built, inputs(shape, options, tokens=tokens, device="cpu"))
    assert activation_bytes(shape, options, tokens, batch=2) == pytest.approx(seen, rel=0.1)


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "vit-b16", "qwen3-0.6b", "nanochat-d20", "deepseek-v2-lite"])
def test_activation_bytes_of_known_models(name):
    """Real shapes, two layers of them, at a quarter of the width's tokens."""
    known = KNOWN[name]
    shape = ModelShape.of(known.shape.layers[:2], known.shape.mlps[:2])
    options = known.options.replace(vocab=100) if known.options.vocab else known.options
    tokens = options.tokens if options.family == "vit" else 128
    built = plain(build(shape, options))
    seen = saved_bytes(built, inputs(shape, options, tokens=tokens, device="cpu"))
    assert activation_bytes(shape, options, tokens, batch=2) == pytest.approx(seen, rel=0.1)


@pytest.mark.parametrize(
    "name", ["gpt2", "bert-base", "vit-b16", "qwen3-0.6b", "nanochat-d20", "deepseek-v2-lite", "llama-3.2-1b"]
)
def test_activation_bytes_of_the_path_that_runs(name):
    """A fused kernel keeps no attention weights: that is what a model built as usual keeps."""
    known = KNOWN[name]
    shape = ModelShape.of(known.shape.layers[:2], known.shape.mlps[:2])
    options = known.options.replace(vocab=100) if known.options.vocab else known.options
    tokens = options.tokens if options.family == "vit" else 128
    seen = saved_bytes(build(shape, options), inputs(shape, options, tokens=tokens, device="cpu"))
    assert activation_bytes(shape, options, tokens, batch=2, fused=True) == pytest.approx(seen, rel=0.1)


def test_activations_grow_with_the_context_and_not_its_square():
    short, long = (cost_of("llama-3.2-1b", context=context).activation_bytes for context in (2**13, 2**17))
    assert long == pytest.approx(16 * short)
    assert long < 1e12


def test_a_window_bounds_the_cache():
    known = replace(KNOWN["gpt2"], windows=(0, *[128] * 11))
    assert cost_of(known, context=1024).kv_bytes == (1024 + 11 * 128) * 2 * 768 * 2
    assert cost_of(known, context=100).kv_bytes == cost_of("gpt2", context=100).kv_bytes


def test_batch_and_number_format_of_cache_and_decoding():
    one, many = cost_of("gpt2", context=100), cost_of("gpt2", context=100, batch=8, dtype="fp8")
    assert many.kv_bytes == 8 * one.kv_bytes // 2
    assert many.decode_bytes == 124_439_808 - 1024 * 768 + many.kv_bytes  # of the positions only a row is read
    assert cost_of("nanochat-d20", dtype="int8").decode_bytes < 561_000_000 - 65_536 * 1280 + 10**9
    with pytest.raises(SpecError, match="a batch of 0"):
        cost_of("gpt2", batch=0)


def test_sequences_of_a_batch_read_experts_of_their_own():
    """DeepSeek-V2-Lite: 26 layers of 64 experts of 3 × 2048 × 1408, of which a token meets 6."""
    weights = {batch: (cost := cost_of("deepseek-v2-lite", batch=batch)).decode_bytes - cost.kv_bytes
               for batch in (1, 4, 10, 11, 100)}  # fmt: skip
    expert = 26 * 3 * 2048 * 1408 * 2
    assert [weights[batch] - weights[1] for batch in (4, 10, 11, 100)] == [many * expert for many in (18, 54, 58, 58)]
    assert cost_of("deepseek-v2-lite", batch=4).parameters_active == cost_of("deepseek-v2-lite").parameters_active


@pytest.mark.parametrize("name", [name for name, known in KNOWN.items() if known.published])
def test_published_counts(name):
    assert cost_of(name).parameters["total"] == KNOWN[name].published


@pytest.mark.parametrize("name", list(KNOWN))
def test_known_models_cost_what_they_are(name):
    check_parameters((KNOWN[name].shape, KNOWN[name].options))


def test_a_bare_shape_is_nothing_but_its_matrices():
    """12·w² a layer: four attention matrices of w², an MLP of 8·w²."""
    assert parameters(ModelShape.parse("w512-h8-L6"), ModelOptions())["total"] == 6 * 12 * 512**2


def test_parts_add_up():
    known = KNOWN["gpt2"]
    counts = parameters(known.shape, known.options)
    parts = {name: count for name, count in counts.items() if name not in ("body", "total")}
    assert sum(parts.values()) == counts["total"]
    assert counts["embeddings"] == (50_257 + 1024) * 768
    assert counts["query"] == counts["key"] == counts["value"] == 12 * (768 * 768 + 768)


def test_price_by_hand():
    """One layer, width 4, one head, no MLP, 3 tokens: 4 projections of 2·3·4·4 and two products of 2·3·3·4."""
    cost = cost_of(ModelShape.parse("w4-h1-m0"), context=3, dtype="float32")
    assert cost.flops["prefill"] == 4 * 2 * 3 * 4 * 4 + 2 * 2 * 3 * 3 * 4
    assert cost.flops["train"] == 3 * cost.flops["prefill"]
    assert cost.flops["decode"] == 4 * 2 * 4 * 4 + 2 * 2 * 4 * 4
    assert cost.kv_bytes_per_token == 2 * 4 * 4
    assert cost.weight_bytes == 4 * 64


def test_a_latent_caches_only_the_latent_and_the_rotary_key():
    known = KNOWN["deepseek-v2-lite"]
    assert cost_of(known.shape, known.options).kv_bytes_per_token == 27 * (512 + 64) * 2


def test_the_cache_counts_shared_heads_once():
    full, shared = ModelShape.parse("w64-h8-L2"), ModelShape.parse("w64-h8-g2-L2")
    assert cached_per_token(full) == 4 * cached_per_token(shared)


def test_unknown_dtypes_are_refused():
    with pytest.raises(SpecError, match="int3"):
        cost_of(ModelShape.parse("w4-h1"), dtype="int3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "decoder"}, "needs vocab"),
        ({"family": "vit", "image": 10, "patch": 3}, "do not tile"),
        ({"family": "bert", "vocab": 9, "positions": "learned"}, "need a context"),
        ({"head": "lm"}, "needs vocab"),
        ({"norm": "batch"}, "norm is 'batch'"),
        ({"colour": 1}, "no field 'colour'"),
    ],
)
def test_options_that_make_no_model_are_refused(changes, message):
    with pytest.raises(SpecError, match=message):
        ModelOptions(**changes)


def test_presets_are_named():
    with pytest.raises(SpecError, match="no family 'rwkv'"):
        preset("rwkv")
    assert replace(KNOWN["gpt2"]).options == preset("gpt2", vocab=50_257, context=1024)


def test_training_is_three_forward_passes_and_the_cache_has_16_bits():
    known = find("gpt2")
    cost = cost_of(known.shape, known.options)
    assert training_flops(known.shape, known.options, 1024) == 3 * cost.flops["prefill"] == cost.flops["train"]
    cached = cached_per_token(known.shape)
    assert kv_bytes_per_token(known.shape, known.options) == 2 * cached == cost.kv_bytes_per_token
    assert kv_bytes_per_token(known.shape, known.options, "float32") == 4 * cached
