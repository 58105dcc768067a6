"""The compiled MLP: the plain one's numbers for every activation, gated or not."""

import pytest
import torch

from headwise.layers.cpu.compiled import WideMLPSize
from headwise.layers.cpu.mlp import TiledMLP, mlp_size
from headwise.layers.cpu.tiled import works
from headwise.models.blocks import ACTIVATIONS, MLP
from headwise.options import preset

needs_compiler = pytest.mark.skipif(not works(), reason="no C++ compiler here: torch's kernels serve")


def compiled_and_plain(mlp, x, *residual):
    for mlp.path in ("generated", "fast"):
        output = mlp(x, *residual)
        yield output, *torch.autograd.grad(output.square().sum(), [x, *residual, *mlp.parameters()])


def assert_same(found, wanted, tolerance):
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


USUAL = [("gelu", "plain"), ("gelu-tanh", "plain"), ("relu", "plain"), ("relu2", "plain"), ("silu", "gated")]
OTHERS = [(name, kind) for name in ACTIVATIONS for kind in ("plain", "gated") if (name, kind) not in USUAL]


@needs_compiler
@pytest.mark.parametrize(
    ("activation", "kind"), [*USUAL, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)]
)
def test_every_activation_equals_the_plain_path(activation, kind):
    """With hidden units that fill no panel, more tokens than go at a time, with biases and without."""
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for bias, tokens in (("all", 301), ("none", 5)):
            torch.manual_seed(0)
            options = preset("encoder", activation=activation, mlp_kind=kind, bias=bias)
            mlp = MLP(48, 100, options, dtype=dtype)
            for parameter in mlp.parameters():
                torch.nn.init.normal_(parameter, std=0.3)
            if activation == "relu" and bias == "all":  # in float32 one sign that rounding flips is a large difference
                with torch.no_grad():
                    mlp.input.bias += torch.tensor([9.0, -9.0]).repeat(len(mlp.input.bias) // 2)
            elif activation == "relu" and dtype == torch.float32:
                continue
            given = [torch.randn(tokens, 48, dtype=dtype, requires_grad=True) for _ in range(2)]
            assert_same(*compiled_and_plain(mlp, *given), tolerance)


@needs_compiler
@pytest.mark.parametrize(
    ("activation", "kind"), [*USUAL, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)]
)
def test_a_wide_one_equals_the_plain_path(activation, kind):
    """Torch's products in parts of tokens, with and without biases and a residual stream."""
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for bias, tokens, given in (("all", 300, 2), ("none", 5, 1)):
            if activation == "relu" and dtype == torch.float32:  # one sign that rounding flips is a large difference
                continue
            torch.manual_seed(0)
            options = preset("encoder", activation=activation, mlp_kind=kind, bias=bias)
            mlp = MLP(144, 160, options, dtype=dtype)
            assert isinstance(mlp.kernel(1, dtype), WideMLPSize)
            for parameter in mlp.parameters():
                torch.nn.init.normal_(parameter, std=0.1)
            inputs = [torch.randn(tokens, 144, dtype=dtype, requires_grad=True) for _ in range(given)]
            assert_same(*compiled_and_plain(mlp, *inputs), tolerance)


@needs_compiler
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [30.0, 1e4, float("nan")])
@pytest.mark.parametrize("width", [48, 144])
def test_large_sums_overflow_nothing_and_nan_stays_nan(activation, size, width):
    mlp = MLP(width, 64, preset("encoder", activation=activation))
    mlp.path = "generated"
    torch.nn.init.constant_(mlp.input.bias, size)
    with torch.no_grad():
        mlp.input.bias[::2] *= -1
    x = torch.randn(3, width, requires_grad=True)
    output = mlp(x)
    output.sum().backward()
    if size != size:  # a ReLU's slope at NaN is a number, as torch has it
        assert output.isnan().all()
        return
    for found in (output, x.grad, mlp.input.weight.grad):
        assert found.isfinite().all()


@needs_compiler
def test_it_has_the_derivatives_of_what_it_computes():
    mlp = MLP(48, 64, preset("encoder", activation="silu", mlp_kind="gated"), dtype=torch.float64)
    size = mlp_size(48, "silu", True, torch.float64)
    first, b1, second, b2, *both = (made.detach() for made in mlp._panels())

    def forward(x, b1, b2):
        return TiledMLP.apply(x, None, first, b1, second, b2, *both, size, None)

    x = torch.randn(3, 48, dtype=torch.float64)
    assert torch.autograd.gradcheck(forward, [tensor.requires_grad_() for tensor in (x, b1, b2)])


@needs_compiler
@pytest.mark.parametrize(("activation", "kind"), [("gelu", "plain"), ("relu2", "plain"), ("silu", "gated")])
@pytest.mark.parametrize("width", [48, 144])
def test_no_more_is_kept_for_the_backward_pass_than_by_the_plain_path(activation, kind, width):
    mlp, kept = MLP(width, 4 * width, preset("encoder", activation=activation, mlp_kind=kind)), {}
    for mlp.path in ("generated", "fast"):
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.update({tensor.data_ptr(): tensor.nbytes}) or tensor,
            lambda tensor: tensor,
        ):
            mlp(torch.randn(2048, width, requires_grad=True))
        kept[mlp.path] = sum(sizes.values())
    assert kept["generated"] < kept["fast"]
