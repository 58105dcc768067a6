"""Cross-entropy in parts: the plain path's loss and derivatives, in a layer and in whole models."""

import pytest
import torch
import torch.nn.functional as F

from headwise.layers.cpu import cross_entropy, linear
from headwise.layers.cpu.tiled import works
from headwise.layers.paths import set_path
from headwise.models import build
from headwise.models.blocks import CrossEntropy
from headwise.options import preset
from headwise.shape import ModelShape
from headwise.tasks import load_task

needs_compiler = pytest.mark.skipif(not works(), reason="no C++ compiler here: torch's kernels serve")


@needs_compiler
@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("vocab", [5, 77, 256])
def test_it_equals_the_plain_path(softcap, bias, vocab, monkeypatch):
    monkeypatch.setattr(cross_entropy, "LOGITS", 40 * vocab)  # several parts, the last not full
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        torch.manual_seed(0)
        layer, found = CrossEntropy(softcap), []
        x, table = torch.randn(101, 32, dtype=dtype), torch.randn(vocab, 32, dtype=dtype)
        row = torch.randn(vocab, dtype=dtype).requires_grad_() if bias else None
        given = [x.requires_grad_(), table.requires_grad_(), *([row] if bias else [])]
        labels, weights = torch.randint(vocab, (101,)), torch.rand(101, dtype=dtype)
        for layer.path in ("generated", "plain"):
            loss = layer(x, table, row, labels, weights)
            found.append((loss, *torch.autograd.grad(2 * loss, given)))
        for ours, theirs in zip(*found, strict=True):
            assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


@needs_compiler
@pytest.mark.parametrize("softcap", [0.0, 15.0])
def test_large_logits_overflow_nothing_and_nan_stays_nan(softcap):
    layer = CrossEntropy(softcap)
    layer.path = "generated"
    for size in (1e4, 1e18, float("nan")):
        x = (torch.linspace(-1, 1, 16) * size)[None].requires_grad_()
        loss = layer(x, torch.eye(40, 16), None, torch.tensor([3]), torch.ones(1))
        loss.backward()
        assert loss.isfinite() == x.grad.isfinite().all() == (size == size)


FAMILIES = [
    ("gpt2", {}),
    ("gpt2", {"norm_place": "post", "tied": False}),
    ("nanochat", {}),
    ("llama", {}),
    ("llama", {"norm_place": "sandwich", "activation": "gelu"}),
    ("bert", {"head": "mlm", "segments": 0, "pooler": False}),
    ("bert", {"head": "mlm", "segments": 0, "pooler": False, "tied": False, "bias": "none"}),
]


@needs_compiler
@pytest.mark.parametrize(("family", "changes"), FAMILIES)
@pytest.mark.parametrize("shape", ["w32-h2-L2-m100", "w160-h2-L2"])  # narrow: our kernels; wide: torch's products
def test_whole_models_have_the_plain_ones_loss_and_gradients(family, changes, shape):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        torch.manual_seed(0)
        model = build(shape, preset(family, vocab=77, context=16, **changes), dtype=dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape)
        tokens, labels = torch.randint(77, (2, 5, 16))
        weights, found = (torch.rand(5, 16) < 0.5) / 40, []
        for path in ("generated", "plain"):
            set_path(model, path)
            loss = model.token_loss(tokens, labels, weights)
            found.append((loss.detach(), torch.autograd.grad(loss, list(model.parameters()))))
        (ours, gradients), (theirs, wanted) = found
        losses = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="none")
        torch.testing.assert_close(theirs, (losses * weights.flatten()).sum().detach().to(dtype))
        assert (ours - theirs).abs() <= {torch.float64: 1e-12, torch.float32: 1e-6}[dtype] * theirs.abs().clamp_min(1)
        largest = max(gradient.abs().max() for gradient in wanted)
        assert all((a - b).abs().max() <= tolerance * largest for a, b in zip(gradients, wanted, strict=True))


@needs_compiler
@pytest.mark.parametrize("spec", [{"name": "text"}, {"name": "text", "objective": "masked"}, {"name": "recall"}])
def test_a_tasks_training_loss_is_its_loss(spec):
    task = load_task(spec if spec["name"] != "text" else spec | {"context": 32})
    model = task.build(ModelShape.parse("w32-h2-L1"), task.default_options())
    inputs, labels = task.draw(0, "train", 0, 4)
    wanted = task.loss(model(inputs), labels)
    torch.testing.assert_close(task.training_loss(model, inputs, labels), wanted, rtol=0, atol=0)
    set_path(model, "generated")
    torch.testing.assert_close(task.training_loss(model, inputs, labels), wanted, rtol=1e-5, atol=1e-6)


@needs_compiler
def test_no_whole_batch_of_logits_is_kept():
    layer, x, table = CrossEntropy(0.0), torch.randn(512, 16, requires_grad=True), torch.randn(300, 16)
    layer.path = "generated"
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: sizes.append(one.numel()) or one, lambda one: one):
        layer(x, table, None, torch.randint(300, (512,)), torch.ones(512))
    assert sum(sizes) < 512 * 300 / 2


@pytest.mark.parametrize("bias", [True, False])
def test_products_through_the_other_library_are_the_same(bias, monkeypatch):
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(linear, "lags", lambda: True)
    torch.manual_seed(0)
    for outputs in (48, 200):
        x, weight = torch.randn(3, 7, 96, requires_grad=True), torch.randn(outputs, 96, requires_grad=True)
        row = torch.randn(outputs, requires_grad=True) if bias else None
        given, found = [x, weight, *([row] if bias else [])], []
        assert linear.serves(x, weight)
        for output in (linear.product(x, weight, row), F.linear(x, weight, row)):
            found.append((output, *torch.autograd.grad(output.square().sum(), given)))
        for ours, theirs in zip(*found, strict=True):
            assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
