"""Compiled kernels: the same numbers as the plain way, and the choice between them."""

from contextlib import nullcontext, suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.layers.attention import Attention
from headwise.layers.cpu import compiled, tiled
from headwise.layers.cpu.compiled import CrossEntropySize, NormSize
from headwise.layers.cpu.mlp import mlp_size
from headwise.layers.cpu.norm import norm_size
from headwise.layers.cpu.strips import strip_size
from headwise.layers.cpu.tiled import MOST_COLUMNS, attention_size, works
from headwise.layers.paths import shared_weights
from headwise.models.blocks import MLP
from headwise.options import preset
from headwise.shape import AttentionShape
from headwise.store.store import Store
from headwise.sweep import resolve
from headwise.tasks import load_task
from headwise.training.loop import build_model, train_run
from headwise.training.run import Execution, Recipe, Run, RunResult

needs_compiler = pytest.mark.skipif(not works(), reason="no C++ compiler here: torch's kernels serve")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def output_and_gradients(shape, path, dtype, bias=True, batch=6, tokens=5):
    torch.manual_seed(1)
    layer = Attention(
        AttentionShape.parse(shape), input_bias=bias, output_bias=bias, output_scale=0.5, path=path, dtype=dtype
    )
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=2 * layer.shape.width**-0.5)
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
        ("w16-h8-r1", 16, 9, torch.float64, True),  # two units, and one that is not full
        ("w16-h8-r1-v3", 32, 3, torch.float64, True),  # several vectors of queries
        ("w16-h7-r3-v1", 5, 6, torch.float64, True),  # a vector that is not full
        ("w16-h5-r3-v2", 33, 9, torch.float64, False),  # both
        ("w48-h3-r20-v1", 40, 17, torch.float64, True),
        ("w16-h64-r1", 16, 32, torch.float32, True),
        ("w64-h4-r16", 16, 32, torch.float32, False),
    ],
)
def test_compiled_attention_equals_the_plain_path(shape, tokens, batch, dtype, bias):
    assert not AttentionShape.parse(shape).merges(tokens)
    given = {"dtype": dtype, "bias": bias, "tokens": tokens, "batch": batch}
    assert_same(output_and_gradients(shape, "generated", **given), output_and_gradients(shape, "plain", **given), dtype)


@needs_compiler
@pytest.mark.parametrize("shape", ["w16-h9-r16", "w16-h8-r32-v8", "w32-h8-r32"])
@pytest.mark.parametrize("bias", [True, False])
def test_merged_matrices_equal_the_plain_path(shape, bias):
    assert attention_size(AttentionShape.parse(shape), 5).merged
    for dtype in TOLERANCE:
        wanted = output_and_gradients(shape, "plain", dtype, bias)
        assert_same(output_and_gradients(shape, "generated", dtype, bias), wanted, dtype)


@needs_compiler
@pytest.mark.parametrize("shape", ["w16-h8-r16", "w16-h3-r2"])
@pytest.mark.parametrize("frozen", [False, True])
def test_weights_made_once_for_several_calls_have_the_same_gradients(shape, frozen):
    layer = Attention(AttentionShape.parse(shape), input_bias=True, path="generated", dtype=torch.float64)
    mlp = MLP(16, 256, preset("encoder"), dtype=torch.float64)
    mlp.path = "generated"
    layer.output.weight.requires_grad_(not frozen)
    both = torch.nn.Sequential(layer, mlp)
    parts = torch.randn(3, 4, 5, 16, dtype=torch.float64)
    found = []
    for shared in (False, True):
        both.zero_grad()
        with shared_weights(both) if shared else nullcontext():
            for part in parts:
                both(part).square().sum().backward()
        found.append([p.grad.clone() for p in both.parameters() if p.requires_grad])
    assert_same(*found, torch.float64)


def test_an_error_between_two_calls_leaves_nothing_behind():
    layer = Attention(AttentionShape.parse("w16-h3-r2"), path="generated")
    with suppress(ZeroDivisionError), shared_weights(layer):
        layer(torch.randn(2, 5, 16)).sum().backward()
        raise ZeroDivisionError
    assert layer.prepared.pairs is None


def test_a_plan_and_a_layer_agree_on_what_kernels_can_serve():
    """The planner asks the layers of a model without weights, so there is nothing to keep in step."""
    options = preset("encoder")
    run = Run(task=load_task({"name": "nearest-neighbor"}).spec(), shape="w16-h4-L2-m256", options=options, steps=1)
    tokens = load_task(run.task).tokens
    sizes = {attention_size(run.model_shape.layers[0], tokens), mlp_size(16, "relu", False), norm_size("unit", 16)}
    assert resolve._kernels(run) == sizes
    other = run.replace(options=options.replace(qk_norm="rms", activation="gelu", norm="layer"))
    strips = strip_size(run.model_shape.layers[0])
    assert resolve._kernels(other) == {strips, mlp_size(16, "gelu", False), norm_size("layer", 16)}
    decoder = run.replace(shape="w24-h4-L2", options=options.replace(family="decoder", vocab=9))
    assert resolve._kernels(decoder) == {strip_size(decoder.model_shape.layers[0]), CrossEntropySize(capped=False)}
    assert resolve._kernels(run.replace(execution=Execution(precision="bfloat16"))) == set()


def test_merged_matrices_are_fewer_operations():
    """By hand, for width 8 and context 4: 2·8·(8 + 4) = 192 against 20 for each rank of a query and of a value."""
    assert not AttentionShape.parse("w8-h1-r4-v5").merges(4)
    assert AttentionShape.parse("w8-h1-r5").merges(4)
    assert AttentionShape.parse("w64-h1").merges(10**6)


@given(
    width=st.integers(1, 8),
    heads=st.integers(1, 40),
    ranks=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    tokens=st.one_of(st.integers(1, 40), st.sampled_from([48, 64, 160, 640])),
)
def test_a_kernel_is_for_whole_samples_whole_vectors_and_whole_groups(width, heads, ranks, tokens):
    shape = AttentionShape(width=16 * width, heads=heads, qk_rank=ranks[0], v_rank=ranks[1])
    size = attention_size(shape, tokens)
    assert size.unit % tokens == size.unit % 16 == heads % size.group == 0
    assert size.unit <= MOST_COLUMNS
    assert size.group == 1 or size.group * max(size.qk_rank, size.v_rank) <= 64


@pytest.mark.parametrize(
    ("shape", "tokens"), [("w24-h1", 16), ("w144-h1", 16), ("w64-h4-g2", 16), ("w64-h4-c8", 16), ("w64-h4", 41)]
)
def test_there_is_no_kernel_for_other_sizes(shape, tokens):
    assert attention_size(AttentionShape.parse(shape), tokens) is None


@needs_compiler
@pytest.mark.parametrize("size", [1e4, 1e18, float("nan")])
def test_large_logits_overflow_nothing_and_nan_stays_nan(size):
    layer = Attention(AttentionShape.parse("w16-h1-r1"), path="generated")
    x = (torch.tensor([-1.0, 0.5, 1.0])[:, None] * torch.ones(16)).repeat(2, 1, 1) * size
    x.requires_grad_()
    output = layer(x)
    output.sum().backward()
    for found in (output, x.grad, layer.input.weight.grad):
        assert found.isfinite().all() if size == size else found.isnan().any()


@needs_compiler
def test_a_kernel_is_compiled_once_for_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sizes = [NormSize(width=width, kind="UNIT") for width in (16, 32)]
    assert compiled.uncompiled([*sizes, *sizes]) == sizes
    compiled.prepare(sizes)
    assert compiled.uncompiled(sizes) == []
    assert [path.suffix for path in (tmp_path / "headwise" / "kernels").iterdir()] == [".so", ".so"]
    monkeypatch.setattr(compiled, "_compile", lambda *given: pytest.fail("compiled again"))
    compiled.library.__wrapped__(sizes[0])


def test_without_a_compiler_the_others_serve(monkeypatch):
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))
    assert not works.__wrapped__()


@needs_compiler
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_whether_kernels_work_can_be_asked_without_gradients(mode):
    with mode():
        assert works.__wrapped__()


@needs_compiler
def test_a_kernel_that_kills_its_process_kills_only_a_child(monkeypatch):
    monkeypatch.setattr(tiled, "_TRY", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert not works.__wrapped__()


@needs_compiler
def test_compiled_kernels_leave_what_they_cannot_do_to_the_others():
    """Masks, for one; without gradients they serve too."""
    layer = Attention(AttentionShape.parse("w16-h4-r2"), path="generated")
    plain = Attention(AttentionShape.parse("w16-h4-r2"), path="plain")
    plain.load_state_dict(layer.state_dict())
    x, padding = torch.randn(2, 5, 16), torch.tensor([[True] * 3 + [False] * 2] * 2)
    torch.testing.assert_close(layer(x, padding=padding), plain(x, padding=padding))
    assert layer(x[:0]).shape == (0, 5, 16)
    with torch.autocast("cpu", torch.float16):
        assert layer._kernel(x) is None
    with pytest.raises(RuntimeError, match="shapes"):
        layer(torch.randn(2, 5, 12))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), plain(x))


# ---- whole models --------------------------------------------------------------------------------------------------


def trained(path, shape="w16-h16-m256", activation="relu", seed=0, steps=500):
    options = preset("encoder", activation=activation)
    recipe = Recipe(batch=32, learning_rate=0.01, warm_up=0.1)
    task = {"name": "nearest-neighbor", "dim": 16, "points": 8}
    given = {"task": task, "shape": shape, "options": options, "recipe": recipe, "execution": Execution(path=path)}
    return Run(**given, steps=steps, seed=seed, evaluations=1)


def loss_and_gradients(run, dtype):
    task = load_task(run.task)
    model = build_model(run, task).to(dtype)
    torch.manual_seed(2)
    with torch.no_grad():  # biases of 0 would leave some gradients with no true size
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    inputs, labels = task.draw(0, "train", 0, 64)
    loss = task.loss(model(inputs.to(dtype)), labels.to(dtype))
    return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))


@needs_compiler
@pytest.mark.parametrize("shape", ["w16-h16-m256", "w16-l3-h4-r4-m256", "w16-l2-h8-r16-m256"])
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
@pytest.mark.parametrize("shape", ["w16-h16-m256", "w16-h8-r16-m256"])
def test_training_ends_where_the_plain_path_does_within_the_noise_of_seeds(shape):
    plain = [train_run(trained("plain", shape, seed=seed)).metrics["error"] for seed in range(3)]
    ours = train_run(trained("generated", shape)).metrics["error"]
    assert abs(ours - plain[0]) <= max(plain) - min(plain)


@needs_compiler
@pytest.mark.parametrize("shape", ["w64-h64-r1", "w64-h8-r8", "w64-h4-r64", "w64-h1-r64"])
def test_no_more_is_kept_for_the_backward_pass_than_by_the_plain_path(shape):
    kept = {}
    for path in ("generated", "plain"):
        layer = Attention(AttentionShape.parse(shape), path=path)
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
    given = {"task": {"name": "nearest-neighbor", "dim": 64, "points": 16}, "shape": "w64-h64-m256", "steps": 10_000}
    return Run(**given | {"options": preset("encoder"), "recipe": Recipe(batch=256)} | changes)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "generated"),
        ({"shape": "w64-h1-m256"}, "generated"),
        ({"options": preset("encoder", hardmax=True)}, "generated"),  # for the MLP
        ({"steps": 10}, "fast"),
        ({"shape": "w64-h64-g8-m0", "options": preset("encoder", norm="layer")}, "generated"),
        ({"options": preset("encoder", logit_scale=True, activation="gelu", norm="layer")}, "generated"),
        ({"shape": "w60-h1-m256"}, "generated"),
        ({"shape": "w64-h4-c8-m0", "options": preset("encoder", norm="layer")}, "generated"),
        ({"shape": "w64-h4-m0", "options": preset("encoder", norm="none", hardmax=True)}, "fast"),
    ],
)
def test_kernels_are_generated_where_that_pays(changes, path, monkeypatch):
    monkeypatch.setattr(resolve, "_generated_wins", lambda kind: True)
    assert resolve.fitted([run_of(**changes)], Execution())[0].execution.path == path


def test_a_path_that_was_asked_for_stays(monkeypatch):
    monkeypatch.setattr(resolve, "_generated_wins", lambda kind: True)
    assert resolve.fitted([run_of()], Execution(path="plain"))[0].execution.path == "plain"


def test_kernels_that_lose_the_race_are_not_used(monkeypatch):
    monkeypatch.setattr(resolve, "_generated_wins", lambda kind: False)
    assert resolve.fitted([run_of()], Execution())[0].execution.path == "fast"


def test_what_the_store_holds_keeps_the_path_it_ran_on(monkeypatch):
    monkeypatch.setattr(resolve, "_generated_wins", lambda kind: True)
    with Store(":memory:") as store:
        before = run_of()
        store.add(before, RunResult(before.key, "done"))
        assert resolve.fitted([run_of(), run_of(seed=1)], Execution(), store)[0].key == before.key
