"""The trainer: resumes exactly, tells divergence from failure, and its optimisers are the known ones."""

import copy
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from headwise.measure.probes import effective_rank, measure_probe
from headwise.models import build
from headwise.options import ModelOptions, preset
from headwise.spec import SpecError
from headwise.tasks import load_task
from headwise.training import optim
from headwise.training import resume as checkpoint
from headwise.training.evaluation import Sample
from headwise.training.loop import Interrupted, build_model, schedule, train_run
from headwise.training.optim import FlatOptimizer, muon_matrices, orthogonalised
from headwise.training.run import Execution, Recipe, Run
from helpers.runs import FAILING_TASK, TASK, small_run


def broken_run(tmp_path, act, **changes):
    file = tmp_path / "broken.py"
    file.write_text(FAILING_TASK.format(act=act))
    return small_run(task=load_task({"name": str(file), "dim": 8, "points": 6}).spec(), **changes)


# ---- runs and keys -------------------------------------------------------------------------------------------------


def test_the_key_is_a_hash_of_everything():
    run = small_run()
    assert Run(**json.loads(run.model_dump_json())).key == run.key
    others = [
        small_run(seed=1),
        small_run(steps=41),
        small_run(shape="w8-h1-m16"),
        small_run(recipe=Recipe(batch=17)),
        small_run(execution=Execution(threads=2)),
        small_run(execution=Execution(path="plain")),
        small_run(options=preset("encoder", dropout=0.1)),
        small_run(task={**TASK.spec(), "points": 7}),
    ]
    assert len({run.key, *(other.key for other in others)}) == len(others) + 1


def test_the_same_shape_written_otherwise_is_the_same_run():
    assert small_run(shape="m16 H2 W8 r4").key == small_run().key


@pytest.mark.parametrize(
    "wrong", [{"steps": -1}, {"task": {}}, {"shape": "w8-h3"}, {"recipe": {"lr": 1}}, {"colour": 1}]
)
def test_impossible_runs_are_refused(wrong):
    with pytest.raises(SpecError):
        small_run(**wrong)


# ---- the loop ------------------------------------------------------------------------------------------------------


def test_training_learns():
    """One full-rank head on an easy set: well under the no-skill baseline."""
    result = train_run(small_run(shape="w8-h1-m32", steps=800, recipe=Recipe(batch=128)))
    assert result.status == "done"
    assert result.metrics["error"] < 0.6 * result.metrics["trivial_error"]
    assert result.parameters == sum(p.numel() for p in build("w8-h1-m32", preset("encoder")).parameters())
    assert [step for step, name, _ in result.curve if name == "error"] == [200, 400, 600, 800]


def test_a_run_is_the_same_every_time():
    first, again = train_run(small_run()), train_run(small_run())
    assert first.metrics == again.metrics
    assert first.curve == again.curve


def test_mean_losses_are_those_of_the_steps_between_evaluations():
    runs = [small_run(steps=6, evaluations=count, recipe=Recipe(batch=512)) for count in (6, 2)]
    often, seldom = (train_run(run) for run in runs)
    each = [value for _, name, value in often.curve if name == "loss"]
    means = [value for _, name, value in seldom.curve if name == "mean_loss"]
    assert means == pytest.approx([sum(each[:3]) / 3, sum(each[3:]) / 3])
    assert seldom.metrics["least_mean_loss"] == min(means)
    assert "least_mean_loss" not in train_run(runs[0].replace(steps=0)).metrics


@pytest.mark.parametrize("options", [{}, {"dropout": 0.2}])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_stopped_and_resumed_is_as_if_never_stopped(tmp_path, optimizer, options):
    run = small_run(recipe=Recipe(batch=16, optimizer=optimizer), options=preset("encoder", **options))
    whole = train_run(run)
    calls = iter(range(10_000))
    stops = 0
    while True:
        try:
            resumed = train_run(run, checkpoints=tmp_path, should_stop=lambda: next(calls) % 7 == 6)
            break
        except Interrupted:
            stops += 1
    assert stops >= 5
    assert resumed.metrics == whole.metrics
    assert resumed.curve == whole.curve
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    run = small_run()
    whole = train_run(run)
    for stop in (10, 20):
        steps = iter(range(1, 1000))
        with pytest.raises(Interrupted):
            train_run(run, checkpoints=tmp_path, should_stop=lambda stop=stop, steps=steps: next(steps) >= stop)
    path = tmp_path / f"{run.key}.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert train_run(run, checkpoints=tmp_path).metrics == whole.metrics
    assert list(tmp_path.glob("*.damaged"))


def test_micro_batches_add_up_to_the_batch():
    one, four = (train_run(small_run(recipe=Recipe(batch=16, micro_batches=n))) for n in (1, 4))
    assert four.metrics["error"] == pytest.approx(one.metrics["error"], rel=1e-3)


def test_a_loss_that_is_not_a_number_is_divergence(tmp_path):
    act = "x, y = super().draw(seed, stream, index, batch, device); return x, y * float('nan')"
    result = train_run(broken_run(tmp_path, act))
    assert result.status == "diverged"
    assert "nan at step 4" in result.message
    assert result.steps == 4


def test_a_loss_that_stays_absurd_is_divergence():
    recipe = Recipe(batch=16, learning_rate=100.0, schedule="constant", warm_up=0.0)
    result = train_run(small_run(steps=600, recipe=recipe, options=preset("encoder", norm="rms", norm_place="pre")))
    assert result.status == "diverged"
    assert "10 times the error of the no-skill baseline for 500 steps" in result.message


def test_staying_at_the_trivial_error_is_a_result():
    result = train_run(small_run(recipe=Recipe(batch=16, learning_rate=1e-9)))
    assert result.status == "done"
    assert result.steps == 40


def test_a_crash_is_a_result_with_its_traceback(tmp_path):
    result = train_run(broken_run(tmp_path, "raise RuntimeError('the disk ate it')"))
    assert result.status == "failed"
    assert "the disk ate it" in result.message
    assert "Traceback" in result.message


def test_probes_are_measured_on_a_schedule_and_change_nothing():
    probed = train_run(small_run(probes=("qk-rank", "vo-rank", "attention-entropy")))
    names = {name for _, name, _ in probed.probes}
    last = {name: value for step, name, value in probed.probes if step == 40}
    assert probed.metrics == train_run(small_run()).metrics | last
    assert names == {f"{probe}.layer0" for probe in ("qk-rank", "vo-rank", "attention-entropy")}
    assert [step for step, name, _ in probed.probes if name == "qk-rank.layer0"] == [10, 20, 30, 40]
    for _, name, value in probed.probes:
        assert 0 < value <= {"q": 4, "v": 4, "a": math.log(6)}[name[0]] + 1e-5


def test_probes_of_known_matrices():
    assert effective_rank(torch.eye(5)).item() == pytest.approx(5)
    assert effective_rank(torch.ones(4, 4)).item() == pytest.approx(1, abs=1e-3)
    with pytest.raises(SpecError, match="no probe 'mood'"):
        measure_probe("mood", build("w8-h2"), torch.randn(1, 3, 8))


def test_weights_are_kept_with_their_hash(tmp_path):
    run = small_run()
    result = train_run(run, keep_weights=tmp_path)
    tensors, facts = checkpoint.read(tmp_path / f"{run.key}.safetensors")
    model = build_model(run, TASK)
    model.load_state_dict(tensors)
    assert Run(**facts["run"]) == run
    assert len(result.weights) == 64


@pytest.mark.parametrize(
    ("kind", "middle", "end"), [("cosine", 0.5, 0.0), ("linear", 0.5, 0.0), ("constant", 1.0, 1.0)]
)
def test_schedules(kind, middle, end):
    recipe = Recipe(schedule=kind, warm_up=0.1)
    factors = [schedule(step, 1000, recipe) for step in range(1000)]
    assert factors[0] == pytest.approx(0.01)
    assert factors[99] == 1.0
    assert factors[550] == pytest.approx(middle, abs=0.01)
    assert factors[-1] == pytest.approx(end, abs=0.01)


def test_a_schedule_ends_at_a_part_of_the_highest_learning_rate():
    """nanoGPT's: cosine from the end of the warm-up to 10 %."""
    recipe = Recipe(warm_up=0.1, final_learning_rate=0.1)
    for step in (100, 550, 999):
        expected = 0.1 + 0.5 * (1 + math.cos(math.pi * (step - 100) / 900)) * 0.9
        assert schedule(step, 1000, recipe) == pytest.approx(expected)


# ---- optimisers ----------------------------------------------------------------------------------------------------


def steps_with(optimizer_step, model, count=5):
    for i in range(count):
        torch.manual_seed(i)
        x = torch.randn(2, 4, 8, dtype=torch.float64)
        loss = (model(x) * torch.linspace(-1, 1, 8, dtype=torch.float64)).sum()
        optimizer_step(loss)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("large", [optim.LARGE, 50])
def test_the_flat_adamw_is_torchs(large, monkeypatch):
    """Decay on matrices, none on vectors; clipping as torch clips; so do large parameters, each a tensor of its own."""
    monkeypatch.setattr(optim, "LARGE", large)
    recipe = Recipe(weight_decay=0.1, learning_rate=0.01, clip=0.5)
    first = build("w8-h2-m16", preset("encoder", norm="layer"), dtype=torch.float64)
    second = copy.deepcopy(first)
    flat = FlatOptimizer(first, recipe)
    matrices, rest = ([p for p in second.parameters() if (p.dim() > 1) == wanted] for wanted in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    usual = torch.optim.AdamW(groups, lr=0.01, betas=recipe.betas)

    def flat_step(loss):
        flat.zero_grad()
        loss.backward()
        flat.step(1.0)

    def usual_step(loss):
        usual.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(second.parameters(), 0.5)
        usual.step()

    for one, other in zip(steps_with(flat_step, first), steps_with(usual_step, second), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_large_parameters_alone_train_as_in_one_tensor_and_continue_from_a_checkpoint(monkeypatch):
    """With several backward passes a step, and a parameter that no loss uses, which decays all the same."""
    results = []
    for large, groups, saved in ((optim.LARGE, 2, False), (200, 6, False), (200, 6, True)):  # five matrices are alone
        monkeypatch.setattr(optim, "LARGE", large)
        torch.manual_seed(0)
        model = build("w16-h2-m32", preset("encoder", norm="layer"), dtype=torch.float64)
        model.unused = torch.nn.Parameter(torch.ones(16, 16, dtype=torch.float64))
        flat = FlatOptimizer(model, Recipe(weight_decay=0.1, learning_rate=0.01))
        assert len(flat.groups) == groups
        for step in range(4):
            if saved and step == 2:
                state = {name: tensor.clone() for name, tensor in flat.state().items()}
                flat = FlatOptimizer(model, flat.recipe)
                flat.load(state)
            flat.zero_grad()
            numbers = torch.Generator().manual_seed(step)
            for part in torch.randn(2, 2, 4, 16, generator=numbers, dtype=torch.float64):
                (model(part) * torch.linspace(-1, 1, 16)).sum().backward()
            assert all(gradient.isfinite().all() for gradient in flat.gradients())
            flat.step(1.0)
        assert (model.unused < 1).all()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-12)
    assert torch.equal(results[2], results[1])


def test_muon_trains_a_model_of_matrices_alone(tmp_path):
    """Nothing is left for AdamW; and such a run goes on from its checkpoint."""
    run = small_run(options=ModelOptions(), recipe=Recipe(batch=4, optimizer="muon"), steps=6)
    whole = train_run(run)
    assert whole.status == "done", whole.message
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        train_run(run, checkpoints=tmp_path, should_stop=lambda: next(asked))
    assert train_run(run, checkpoints=tmp_path).metrics == whole.metrics


def test_muon_treats_queries_keys_values_and_outputs_apart():
    model = build("w8-h2-r3-v5-g1-L2", preset("nanochat", vocab=10))
    parts = muon_matrices(model)
    attention = model.body.blocks[0].attention
    assert parts[attention.input.weight] == [6, 3, 5]
    assert parts[attention.output.weight] == [8]
    assert not any(p is model.embedding.weight or p is model.head.weight for p in parts)


def test_orthogonalising_brings_singular_values_near_one():
    for rows, columns in ((8, 8), (4, 20), (20, 4)):
        found = torch.linalg.svdvals(orthogonalised(torch.randn(rows, columns)))
        assert found.max() < 1.3
        assert found.min() > 0.3


MUON_PROBE = """
import torch
from headwise.training.optim import FlatOptimizer
from headwise.training.run import Recipe
from headwise.models import build
from headwise.options import ModelOptions, preset
torch.manual_seed(0)
model = build("w16-h2-m16", preset("encoder"))
parts = {name: module.weight for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
pieces = []
for name, weight in parts.items():
    rows = [16, 16, 16] if name.endswith("attention.input") else [weight.shape[0]]
    pieces += [piece.detach().clone().requires_grad_() for piece in weight.split(rows)]
theirs = torch.optim.Muon(pieces, lr=0.02, weight_decay=0.0, momentum=0.95)
ours = FlatOptimizer(model, Recipe(optimizer="muon", learning_rate=0.02, momentum=0.95))
for step in range(3):
    torch.manual_seed(step)
    i = 0
    ours.zero_grad()
    for name, weight in parts.items():
        weight.grad.normal_()
        rows = [16, 16, 16] if name.endswith("attention.input") else [weight.shape[0]]
        for piece in weight.grad.split(rows):
            pieces[i].grad = piece.clone(); i += 1
    theirs.step(); ours.step(1.0)
i, worst = 0, 0.0
for name, weight in parts.items():
    rows = [16, 16, 16] if name.endswith("attention.input") else [weight.shape[0]]
    for piece in weight.split(rows):
        worst = max(worst, (piece - pieces[i]).abs().max().item()); i += 1
print(worst)
"""


def test_muon_is_torchs_but_for_its_precision():
    """torch's works in bfloat16, which kills some processors, so it runs in a child with those instructions off."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    done = subprocess.run([sys.executable, "-c", MUON_PROBE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.02 * 3 * 0.05  # three steps of 0.02, equal to five hundredths of an update
    assert math.isfinite(float(done.stdout))


def test_a_held_out_sample_is_drawn_once_while_it_is_small(monkeypatch):
    drawn = []

    def draw(index):
        drawn.append(index)
        return torch.zeros(8), torch.zeros(8)  # 64 bytes

    monkeypatch.setattr("headwise.training.evaluation.KEPT_BYTES", 130)
    sample = Sample(draw, 3)
    assert len(list(sample)) == len(list(sample)) == 3
    assert drawn == [0, 1, 2, 2]
