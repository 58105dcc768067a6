"""The compiled norms: the plain ones' numbers, alone and with the addition before them."""

import pytest
import torch

from headwise.layers.cpu.norm import norm_size
from headwise.layers.cpu.tiled import works
from headwise.models.blocks import Norm

needs_compiler = pytest.mark.skipif(not works(), reason="no C++ compiler here: torch's kernels serve")


@needs_compiler
@pytest.mark.parametrize("kind", ["layer", "rms", "unit"])
@pytest.mark.parametrize("affine", [True, False])
def test_every_norm_equals_the_plain_path(kind, affine):
    """Also for a token of no length, for one shorter than eps, and for far more tokens than are summed at a time."""
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        torch.manual_seed(0)
        norm, found = Norm(kind, 48, 0.01, affine, dtype=dtype), []
        for parameter in norm.parameters():
            torch.nn.init.normal_(parameter)
        x, added = torch.randn(2, 301, 48, dtype=dtype)
        x[:3] *= torch.tensor([[1e-5], [0.0], [1e3]])
        added[:3] = 0
        given = [x.requires_grad_(), added.requires_grad_(), *norm.parameters()]
        for norm.path in ("generated", "fast"):
            alone, (total, normed) = norm(x), norm.of_sum(x, added)
            loss = (normed + 1).square().sum() + total.sin().sum() + alone.cos().sum()
            found.append((alone, total, normed, *torch.autograd.grad(loss, given)))
        for ours, theirs in zip(*found, strict=True):
            assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


@needs_compiler
def test_a_sum_whose_norm_is_not_used_has_its_derivative():
    norm = Norm("rms", 16)
    norm.path = "generated"
    x = torch.randn(3, 16, requires_grad=True)
    norm.of_sum(x, x)[0].sum().backward()
    assert x.grad.eq(2).all()
    assert norm.weight.grad is None


@pytest.mark.parametrize("width", [24, 8192])
def test_there_is_no_kernel_for_other_widths(width):
    assert norm_size("rms", width) is None
