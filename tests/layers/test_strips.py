"""Compiled attention for real models: the same numbers as the plain way, or a fallback."""

import subprocess

import pytest
import torch
import torch.nn.functional as F

from headwise.layers.attention import Attention
from headwise.layers.cpu import compiled, linear
from headwise.layers.cpu.compiled import StripSize
from headwise.layers.cpu.strips import strip_size
from headwise.layers.cpu.tiled import works
from headwise.layers.paths import kernels, set_path
from headwise.models import build
from headwise.options import preset
from headwise.shape import AttentionShape

needs_compiler = pytest.mark.skipif(not works(), reason="no C++ compiler here: torch's kernels serve")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def layer_of(shape, dtype=torch.float64, path="generated", **options):
    torch.manual_seed(1)
    layer = Attention(AttentionShape.parse(shape), path=path, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    return layer


def output_and_gradients(layer, path, x, **given):
    layer.path = path
    output = layer(x, **given)
    target = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)
    return output, *torch.autograd.grad((output - target).square().sum(), [x, *layer.parameters()])


def assert_same_as_plain(layer, tokens, padding=None, batch=3):
    torch.manual_seed(2)
    dtype = layer.input.weight.dtype
    x = torch.randn(batch, tokens, layer.shape.width, dtype=dtype, requires_grad=True)
    layer.path = "generated"
    assert isinstance(layer._kernel(x, padding), StripSize)
    found, wanted = (output_and_gradients(layer, path, x, padding=padding) for path in ("generated", "plain"))
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() <= TOLERANCE[dtype] * theirs.abs().max()


CAUSAL, TURNED = {"causal": True}, {"causal": True, "rope_base": 100.0}
BIASES = {"input_bias": True, "output_bias": True, "output_scale": 0.5}


@needs_compiler
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("shape", "tokens", "options"),
    [
        ("w24-h2-r8", 1, CAUSAL),
        ("w24-h2-r8", 16, CAUSAL | BIASES),  # one vector of queries
        ("w24-h2-r8", 37, CAUSAL | BIASES),  # two and one that is not full
        ("w24-h3-r8", 70, {}),  # several blocks
        ("w24-h4-r8-g2", 33, CAUSAL),  # grouped keys
        ("w24-h4-r8-g1", 33, TURNED | {"qk_norm": "rms"}),  # one key head
        ("w24-h2-r20-v12", 40, TURNED | BIASES),  # ranks that are not whole vectors
        ("w24-h2-r20-v12-p10", 40, TURNED),  # half of a head turns
        ("w24-h2-r8", 37, TURNED | {"rope_scaling": "yarn:factor=4,context=8,fast=2"}),
        ("w24-h2-r20-v12", 40, {"qk_norm": "rms"}),
        ("w24-h2-r20-v12", 40, {"qk_norm": "rms-plain", "norm_eps": 0.1}),
        ("w24-h2-r20-v12", 40, {"logit_scale": True, "inverse_temperature": 0.7}),
        ("w24-h4-r20-v12-g2", 40, TURNED | BIASES | {"qk_norm": "rms", "logit_scale": True}),
        ("w24-h2-r8-c6", 37, CAUSAL | {"logit_scale": True}),  # a latent
        ("w24-h4-r20-v12-c6-p4-g2", 40, TURNED | {"qk_norm": "rms"}),
    ],
)
def test_strips_equal_the_plain_path(shape, tokens, options, dtype):
    assert_same_as_plain(layer_of(shape, dtype, **options), tokens)


@needs_compiler
@pytest.mark.parametrize("options", [{}, CAUSAL, TURNED | {"qk_norm": "rms", "logit_scale": True}])
def test_padding_is_as_on_the_plain_path(options):
    """At the end, in between, everywhere; with a causal rule some queries see nothing and get 0."""
    padding = torch.ones(5, 21, dtype=torch.bool)
    padding[1, 12:] = False
    padding[2, [0, 5, 6, 20]] = False
    padding[3] = False
    padding[4, 1:] = False
    assert_same_as_plain(layer_of("w24-h4-r8-g2", **options), 21, padding, batch=5)


@needs_compiler
@pytest.mark.parametrize("size", [1e4, 1e17, float("nan")])
def test_large_logits_overflow_nothing_and_nan_stays_nan(size):
    layer = layer_of("w24-h2-r8", torch.float32, causal=True)
    x = (torch.randn(2, 19, 24) * size).requires_grad_()
    output = layer(x)
    output.sum().backward()
    for found in (output, x.grad, layer.input.weight.grad):
        assert found.isfinite().all() if size == size else found.isnan().any()


@needs_compiler
def test_derivatives_are_those_of_what_is_computed():
    layer = layer_of("w24-h2-r8", qk_norm="rms", logit_scale=True, **TURNED)
    x = torch.randn(1, 5, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)


@needs_compiler
def test_what_strips_cannot_do_is_left_to_the_others():
    layer, x = layer_of("w24-h2-r8", torch.float32, **TURNED), torch.randn(2, 6, 24)
    mask = torch.ones(6, 6, dtype=torch.bool).tril(1)
    for given in ({"mask": mask}, {"positions": torch.arange(3, 9)}, {"memory": torch.randn(2, 6, 24)}):
        layer.path = "generated"
        found = layer(x, **given)
        layer.path = "plain"
        torch.testing.assert_close(found, layer(x, **given))
    layer.path = "generated"
    assert layer(x[:0]).shape == (0, 6, 24)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), layer_of("w24-h2-r8", torch.float32, "plain", **TURNED)(x))
    for shape, options in (("w24-h2", {"window": 3}), ("w24-h2", {"dropout": 0.1})):
        assert layer_of(shape, **options).kernel(6) is None


@needs_compiler
@pytest.mark.parametrize("shape", ["w64-h4-L1", "w64-h8-g2-L1"])
def test_no_more_is_kept_for_the_backward_pass_than_by_the_plain_path(shape):
    kept = {}
    for path in ("generated", "plain"):
        model = build(shape, preset("qwen3", vocab=16, context=32))
        set_path(model, path)
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.update({tensor.data_ptr(): tensor.nbytes}) or tensor,
            lambda tensor: tensor,
        ):
            model.body.blocks[0].attention(torch.randn(4, 32, 64, requires_grad=True))
        kept[path] = sum(sizes.values())
    assert kept["generated"] <= kept["plain"]


# ---- whole models --------------------------------------------------------------------------------------------------


FAMILIES = {
    "gpt2": {"vocab": 16, "context": 24},
    "nanochat": {"vocab": 16, "context": 24},
    "llama": {"vocab": 16, "context": 24},
    "qwen3": {"vocab": 16, "context": 24},
    "bert": {"vocab": 16, "context": 24},
    "vit": {"image": 12, "patch": 2, "classes": 4},
}


def loss_and_gradients(family, path, dtype):
    torch.manual_seed(3)
    model = build("w24-h3-r8-L2-m32", preset(family, **FAMILIES[family])).to(dtype)
    set_path(model, path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    tokens, labels = torch.randint(16, (4, 24)), torch.randint(4, (4,))
    if family == "vit":
        loss = F.cross_entropy(model(torch.randn(4, 3, 12, 12).to(dtype)), labels)
    elif family == "bert":
        loss = F.cross_entropy(
            model(tokens, padding=torch.arange(24) < torch.tensor([[24], [9], [1], [20]]))[:, 0], labels
        )
    else:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
    return loss.detach(), torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


@needs_compiler
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("family", FAMILIES)
def test_whole_models_have_the_plain_ones_loss_and_gradients(family, dtype):
    """In float32 gradients are compared with the model's largest, since some are small sums of large terms."""
    model = build("w24-h3-r8-L2-m32", preset(family, **FAMILIES[family]), device="meta")
    assert StripSize(qk_rank=8, v_rank=8) in kernels(model, 24)
    found, wanted = (loss_and_gradients(family, path, dtype) for path in ("generated", "plain"))
    assert (found[0] - wanted[0]).abs() <= {torch.float64: 1e-12, torch.float32: 1e-6}[dtype]
    pairs = [pair for pair in zip(found[1], wanted[1], strict=True) if pair[1] is not None]
    largest = max(theirs.abs().max() for _, theirs in pairs)
    for ours, theirs in pairs:
        size = theirs.abs().max() if dtype == torch.float64 else largest
        assert (ours - theirs).abs().max() <= TOLERANCE[dtype] * max(size, 1e-3 * largest)


# ---- fallbacks -----------------------------------------------------------------------------------------------------


@needs_compiler
def test_a_kernel_that_does_not_compile_leaves_its_layer_to_torch(monkeypatch):
    def fail(command):
        raise subprocess.CalledProcessError(1, command, stderr=b"strip_attention.cpp:1: error: no such thing\n")

    layer, x = layer_of("w24-h2-r7-v9", torch.float32, causal=True), torch.randn(2, 6, 24)
    monkeypatch.setattr(compiled, "_compile", fail)
    monkeypatch.setattr(compiled, "_place", lambda command: compiled.Path("nowhere"))
    size = strip_size(layer.shape)
    compiled.prepare([size])  # as a sweep does before its runs
    with pytest.warns(UserWarning, match="no such thing"):
        found = layer(x)
    layer.path = "plain"
    torch.testing.assert_close(found, layer(x))
    compiled.usable.cache_clear()


# ---- products with weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lags", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (96, 64)])
def test_products_of_either_library_are_the_same(monkeypatch, lags, inputs, outputs):
    monkeypatch.setattr(linear, "lags", lambda: lags)
    x, weight, bias = torch.randn(80, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    gradient = torch.randn(80, outputs)
    torch.testing.assert_close(linear.times(x, weight, bias), x @ weight.mT + bias, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(linear.times(gradient, weight.mT), gradient @ weight, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(linear.by_weight(gradient, x), gradient.mT @ x, rtol=1e-5, atol=1e-4)
