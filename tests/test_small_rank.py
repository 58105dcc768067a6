"""Generated kernels, merged matrices and the lean MLP: the same numbers as the plain way, and the choice among them."""

import pytest
import torch

from headwise import conduct
from headwise.attention import Attention
from headwise.kernels import ReluMLP
from headwise.models.blocks import MLP
from headwise.options import preset
from headwise.run import Execution, Recipe, Run, RunResult
from headwise.shape import AttentionShape
from headwise.small_rank import GROUP_BYTES, _groups, small_rank_attention, works
from headwise.store import Store

needs_compiler = pytest.mark.skipif(not works(), reason="no C++ compiler here: torch's kernels serve")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def output_and_gradients(shape, path, dtype, bias=True, batch=6):
    torch.manual_seed(1)
    layer = Attention(
        AttentionShape.parse(shape), input_bias=bias, output_bias=bias, output_scale=0.5, path=path, dtype=dtype
    )
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    x = torch.randn(batch, 5, layer.shape.width, dtype=dtype, requires_grad=True)
    output = layer(x)
    target = torch.linspace(-1, 1, layer.shape.width, dtype=dtype)
    return output, *torch.autograd.grad((output - target).square().sum(), [x, *layer.parameters()])


def assert_same(found, wanted, dtype):
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() <= TOLERANCE[dtype] * theirs.abs().max()


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [("w8-h8-r1", torch.float64), ("w8-h5-r3-v2", torch.float64), ("w8-h4-r2", torch.float32)],
)
def test_generated_kernels_equal_the_plain_path(shape, dtype):
    assert_same(output_and_gradients(shape, "generated", dtype), output_and_gradients(shape, "plain", dtype), dtype)


@pytest.mark.parametrize("shape", ["w8-h3-r8", "w8-h2-r16-v4", "w4-h1-r4"])
@pytest.mark.parametrize("bias", [True, False])
def test_merged_matrices_equal_the_plain_path(shape, bias):
    assert AttentionShape.parse(shape).merges(30, 5)
    for dtype in TOLERANCE:
        wanted = output_and_gradients(shape, "plain", dtype, bias)
        assert_same(output_and_gradients(shape, "fast", dtype, bias), wanted, dtype)


def test_matrices_are_merged_only_where_that_is_less_work():
    """By hand, for one head of full rank: 4nw² + 2nNw against 2nw² + 2nNw + 2w³."""
    full = AttentionShape.parse("w8-h1")
    assert not full.merges(8, 4)
    assert full.merges(9, 4)
    assert not AttentionShape.parse("w8-h2").merges(10**6, 4)


@needs_compiler
def test_a_large_logit_overflows_nothing():
    qkv = torch.tensor([1e4, -1e4, 3.0, 1e4, 2.0, 1.0]).repeat(4, 1).T.reshape(3, 2, 4).contiguous().requires_grad_()
    output = small_rank_attention(qkv, 1, 1, 1, 1.0)
    output.sum().backward()
    assert output.isfinite().all()
    assert qkv.grad.isfinite().all()


@needs_compiler
def test_generated_kernels_leave_what_they_cannot_do_to_the_others():
    """Masks, and evaluation, which has no backward pass to save on."""
    layer = Attention(AttentionShape.parse("w8-h4-r2"), path="generated")
    plain = Attention(AttentionShape.parse("w8-h4-r2"), path="plain")
    plain.load_state_dict(layer.state_dict())
    x, padding = torch.randn(2, 5, 8), torch.tensor([[True] * 3 + [False] * 2] * 2)
    torch.testing.assert_close(layer(x, padding=padding), plain(x, padding=padding))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), plain(x))


def test_groups_of_heads_are_equal_and_fit():
    for heads in (1, 12, 64, 4096, 4097):
        groups = _groups(heads, 3000)
        assert heads % groups == 0
        assert heads // groups * 3000 <= GROUP_BYTES or groups == heads


def test_the_lean_mlp_equals_the_plain_one():
    mlp = MLP(6, 24, preset("encoder"), dtype=torch.float64)
    torch.nn.init.normal_(mlp.input.bias)
    x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    found = {}
    for path in ("plain", "fast"):
        mlp.path = path
        output = mlp(x)
        found[path] = output, *torch.autograd.grad(output.square().sum(), [x, *mlp.parameters()])
    assert_same(found["fast"], found["plain"], torch.float64)
    assert torch.autograd.gradcheck(ReluMLP.apply, (x, *(p.detach().requires_grad_() for p in mlp.parameters())))


# ---- the choice ----------------------------------------------------------------------------------------------------


def run_of(**changes):
    given = {"task": {"name": "nearest-neighbor", "dim": 64, "points": 16}, "shape": "w64-h64-m64", "steps": 10_000}
    return Run(**given | {"options": preset("encoder"), "recipe": Recipe(batch=256)} | changes)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "generated"),
        ({"steps": 100}, "fast"),
        ({"shape": "w64-h1-m64"}, "fast"),
        ({"shape": "w64-h64-g8-m64"}, "fast"),
        ({"options": preset("encoder", logit_scale=True)}, "fast"),
        ({"options": preset("encoder", hardmax=True)}, "fast"),
    ],
)
def test_kernels_are_generated_where_that_pays(changes, path, monkeypatch):
    monkeypatch.setattr(conduct, "_generated_wins", lambda: True)
    assert conduct.fitted([run_of(**changes)], Execution())[0].execution.path == path


def test_kernels_that_lose_the_race_are_not_used(monkeypatch):
    monkeypatch.setattr(conduct, "_generated_wins", lambda: False)
    assert conduct.fitted([run_of()], Execution())[0].execution.path == "fast"


def test_what_the_store_holds_keeps_the_path_it_ran_on(monkeypatch):
    monkeypatch.setattr(conduct, "_generated_wins", lambda: True)
    with Store(":memory:") as store:
        before = run_of()
        store.add(before, RunResult(before.key, "done"))
        assert conduct.fitted([run_of(), run_of(seed=1)], Execution(), store)[0].key == before.key
