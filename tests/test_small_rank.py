"""Compiled kernels, merged matrices and the lean MLP: the same numbers as the plain way, and the choice among them."""

import pytest
import torch

from headwise import conduct, small_rank
from headwise.attention import Attention
from headwise.lean import ReluMLP, UnitLength
from headwise.models.blocks import MLP
from headwise.options import preset
from headwise.run import Execution, Recipe, Run, RunResult
from headwise.shape import AttentionShape
from headwise.small_rank import GROUP_BYTES, _Sizes, works
from headwise.store import Store
from headwise.tasks import load
from headwise.train import build_model, train

needs_compiler = pytest.mark.skipif(not works(), reason="no C++ compiler here: torch's kernels serve")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def output_and_gradients(shape, path, dtype, bias=True, batch=6, tokens=5):
    torch.manual_seed(1)
    layer = Attention(
        AttentionShape.parse(shape), input_bias=bias, output_bias=bias, output_scale=0.5, path=path, dtype=dtype
    )
    layer.lean = path != "plain"
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    x = torch.randn(batch, tokens, layer.shape.width, dtype=dtype, requires_grad=True)
    output = layer(x)
    target = torch.linspace(-1, 1, layer.shape.width, dtype=dtype)
    return output, *torch.autograd.grad((output - target).square().sum(), [x, *layer.parameters()])


def assert_same(found, wanted, dtype):
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() <= TOLERANCE[dtype] * theirs.abs().max()


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "tokens", "batch", "dtype", "bias"),
    [
        ("w8-h8-r1", 5, 6, torch.float64, True),
        ("w8-h5-r3-v2", 33, 9, torch.float64, True),  # whole tiles and a rest, vectors and a rest
        ("w8-h2-r1-v16", 16, 3, torch.float64, False),
        ("w8-h4-r2", 16, 32, torch.float32, True),
        ("w8-h3-r16-v1", 40, 17, torch.float32, False),
    ],
)
def test_compiled_kernels_equal_the_plain_path(shape, tokens, batch, dtype, bias):
    given = {"dtype": dtype, "bias": bias, "tokens": tokens, "batch": batch}
    assert_same(output_and_gradients(shape, "generated", **given), output_and_gradients(shape, "plain", **given), dtype)


@needs_compiler
def test_groups_of_heads_change_nothing(monkeypatch):
    whole = output_and_gradients("w8-h7-r1", "generated", torch.float64)
    monkeypatch.setattr(small_rank, "GROUP_BYTES", 1000)
    assert len(list(_Sizes(7, 1, 1, 5, 6, 1.0).groups())) == 4
    assert_same(output_and_gradients("w8-h7-r1", "generated", torch.float64), whole, torch.float64)


@pytest.mark.parametrize("shape", ["w8-h3-r8", "w8-h2-r16-v4", "w4-h1-r4"])
@pytest.mark.parametrize("bias", [True, False])
def test_merged_matrices_equal_the_plain_path(shape, bias):
    assert AttentionShape.parse(shape).merges(30, 5)
    for dtype in TOLERANCE:
        wanted = output_and_gradients(shape, "plain", dtype, bias)
        assert_same(output_and_gradients(shape, "fast", dtype, bias), wanted, dtype)


def test_matrices_merged_once_for_several_calls_give_the_same_gradients():
    layer = Attention(AttentionShape.parse("w8-h3-r8"), input_bias=True, output_bias=True, dtype=torch.float64)
    layer.lean = True
    parts = torch.randn(3, 4, 5, 8, dtype=torch.float64)
    found = []
    for held in (False, True):
        layer.zero_grad()
        if held:
            layer.held.hold()
        for part in parts:
            layer(part).square().sum().backward()
        layer.held.release()
        found.append([parameter.grad.clone() for parameter in layer.parameters()])
    assert_same(*found, torch.float64)


def test_matrices_are_merged_only_where_that_is_less_time():
    """By hand, for one head of full rank: 1.2 (4nw² + 2nNw) against 2nw² + 2nNw + 2w³."""
    full = AttentionShape.parse("w8-h1")
    assert not full.merges(5, 4)
    assert full.merges(6, 4)
    assert not AttentionShape.parse("w8-h2").merges(10**6, 4)
    assert AttentionShape.parse("w64-h2").merges(512, 16)


@needs_compiler
@pytest.mark.parametrize("size", [1e4, 1e18, float("nan")])
def test_large_logits_overflow_nothing_and_nan_stays_nan(size):
    layer = Attention(AttentionShape.parse("w1-h1-r1"), path="generated")
    x = torch.tensor([-1.0, 0.5, 1.0]).repeat(2, 1)[..., None] * size
    x.requires_grad_()
    output = layer(x)
    output.sum().backward()
    for found in (output, x.grad, layer.input.weight.grad):
        assert found.isfinite().all() if size == size else found.isnan().any()


@needs_compiler
def test_a_kernel_is_compiled_once_for_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sizes = [(3, 1, 1), (3, 1, 2)]
    assert small_rank.missing([*sizes, *sizes]) == sizes
    small_rank.prepare(sizes)
    assert small_rank.missing(sizes) == []
    assert [path.suffix for path in (tmp_path / "headwise" / "kernels").iterdir()] == [".so", ".so"]
    monkeypatch.setattr(small_rank, "_compile", lambda *given: pytest.fail("compiled again"))
    small_rank._kernel.__wrapped__(*sizes[0], torch.float32)


def test_without_a_compiler_the_others_serve(monkeypatch):
    monkeypatch.setattr(small_rank, "COMPILERS", ("no-such-compiler",))
    assert not works.__wrapped__()


@needs_compiler
def test_a_kernel_that_kills_its_process_kills_only_a_child(monkeypatch):
    monkeypatch.setattr(small_rank, "_TRY", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert not works.__wrapped__()


@needs_compiler
def test_compiled_kernels_leave_what_they_cannot_do_to_the_others():
    """Masks, for one; without gradients they serve too."""
    layer = Attention(AttentionShape.parse("w8-h4-r2"), path="generated")
    plain = Attention(AttentionShape.parse("w8-h4-r2"), path="plain")
    plain.load_state_dict(layer.state_dict())
    x, padding = torch.randn(2, 5, 8), torch.tensor([[True] * 3 + [False] * 2] * 2)
    torch.testing.assert_close(layer(x, padding=padding), plain(x, padding=padding))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), plain(x))


def test_groups_of_heads_fit_and_are_all_of_them():
    for heads in (1, 12, 64, 4096, 4097):
        sizes = _Sizes(heads, 2, 3, 16, 32, 1.0)
        groups = [group.heads for group in sizes.groups()]
        assert [i for group in groups for i in range(group.start, group.stop)] == list(range(heads))
        assert max(group.stop - group.start for group in groups) * 2 * 5 * 16 * 32 * 4 <= GROUP_BYTES


def test_the_lean_mlp_equals_the_plain_one():
    mlp = MLP(6, 24, preset("encoder"), dtype=torch.float64)
    torch.nn.init.normal_(mlp.input.bias)
    x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    found = {}
    for mlp.lean in (False, True):
        output = mlp(x)
        found[mlp.lean] = output, *torch.autograd.grad(output.square().sum(), [x, *mlp.parameters()])
    assert_same(found[True], found[False], torch.float64)
    given = (x, *mlp._first(), mlp.output.weight, mlp.output.bias)
    assert torch.autograd.gradcheck(ReluMLP.apply, tuple(tensor.detach().requires_grad_() for tensor in given))


def test_the_lean_norm_equals_the_plain_one():
    """Also for a token of no length, and for one shorter than eps."""
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64) * torch.tensor([[1.0], [1e-4], [0.0], [1e3]], dtype=torch.float64)
    x.requires_grad_()
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    target = torch.linspace(-1, 1, 6, dtype=torch.float64)
    found = []
    for output in (UnitLength.apply(x, scale, 0.01), torch.nn.functional.normalize(x, dim=-1, eps=0.01) * scale):
        found.append((output, *torch.autograd.grad((output - target).square().sum(), [x, scale])))
    assert_same(*found, torch.float64)


# ---- whole models --------------------------------------------------------------------------------------------------


def trained(path, shape="w16-h16-m32", activation="relu", seed=0, steps=500):
    options = preset("encoder", activation=activation)
    recipe = Recipe(batch=64, learning_rate=0.01, warm_up=0.1)
    task = {"name": "nearest-neighbor", "dim": 16, "points": 8}
    given = {"task": task, "shape": shape, "options": options, "recipe": recipe, "execution": Execution(path=path)}
    return Run(**given, steps=steps, seed=seed, evaluations=1)


def loss_and_gradients(run, dtype):
    task = load(run.task)
    model = build_model(run, task).to(dtype)
    torch.manual_seed(2)
    with torch.no_grad():  # biases of 0 would leave some gradients with no true size
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    inputs, labels = task.draw(0, "train", 0, 64)
    loss = task.loss(model(inputs.to(dtype)), labels.to(dtype))
    return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))


@needs_compiler
@pytest.mark.parametrize("shape", ["w16-h16-m32", "w16-l3-h4-r4-m32", "w16-l2-h2-r16-m32"])
@pytest.mark.parametrize(("activation", "dtype"), [("relu", torch.float64), ("gelu", torch.float32)])
def test_whole_models_have_the_plain_ones_loss_and_gradients(shape, activation, dtype):
    """In float32 with a smooth activation: one ReLU whose sign is flipped by rounding moves a gradient by percents.

    There gradients are compared with the model's largest: the norms' scalars are small sums of large terms.
    """
    found, wanted = (loss_and_gradients(trained(path, shape, activation), dtype) for path in ("generated", "plain"))
    assert (found[0] - wanted[0]).abs() <= {torch.float64: 1e-12, torch.float32: 1e-6}[dtype]
    if dtype == torch.float64:
        return assert_same(found[1], wanted[1], dtype)
    largest = max(gradient.abs().max() for gradient in wanted[1])
    assert all((ours - theirs).abs().max() <= 1e-5 * largest for ours, theirs in zip(found[1], wanted[1], strict=True))


@needs_compiler
@pytest.mark.parametrize("shape", ["w16-h16-m32", "w16-h2-r16-m32"])
def test_training_ends_where_the_plain_path_does_within_the_noise_of_seeds(shape):
    plain = [train(trained("plain", shape, seed=seed)).metrics["error"] for seed in range(3)]
    ours = train(trained("generated", shape)).metrics["error"]
    assert abs(ours - plain[0]) <= max(plain) - min(plain)


@needs_compiler
@pytest.mark.parametrize("shape", ["w64-h64-r1", "w64-h8-r8", "w64-h4-r64", "w64-h1-r64"])
def test_no_more_is_kept_for_the_backward_pass_than_by_the_plain_path(shape):
    kept = {}
    for path in ("generated", "plain"):
        layer = Attention(AttentionShape.parse(shape), path=path)
        layer.lean = path != "plain"
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.update({tensor.data_ptr(): tensor.nbytes}) or tensor,
            lambda tensor: tensor,
        ):
            layer(torch.randn(32, 16, 64, requires_grad=True))
        kept[path] = sum(sizes.values())
    assert kept["generated"] <= kept["plain"]


# ---- the choice ----------------------------------------------------------------------------------------------------


def run_of(**changes):
    given = {"task": {"name": "nearest-neighbor", "dim": 64, "points": 16}, "shape": "w64-h64-m64", "steps": 10_000}
    return Run(**given | {"options": preset("encoder"), "recipe": Recipe(batch=256)} | changes)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "generated"),
        ({"steps": 10}, "fast"),
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
