"""One training loop, a function: `train(run)` gives the run's result.

It never asks which task or study it serves. The same run gives the same numbers when it is interrupted and resumed from
its checkpoint: batches are drawn by their number, and everything a later step depends on is in the checkpoint.
"""

import json
import math
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.cost import training_flops
from headwise.layers.paths import set_path, shared_weights
from headwise.measure.probes import measure
from headwise.tasks import Batch, Task, load
from headwise.theory.constructions import construct
from headwise.training import machine, pretrained
from headwise.training import resume as checkpoint
from headwise.training.optim import FlatOptimizer
from headwise.training.run import Recipe, Run, RunResult

TEST_SAMPLES, VALIDATION_SAMPLES, PROBED_SAMPLES = 8192, 2048, 64
KEPT_BYTES = 2**25  # of a held-out sample
DIVERGED_AT, DIVERGED_FOR = 10.0, 500  # this many times the trivial error, for so many steps in a row
LATENCY_REPEATS = 5
REPORT_SECONDS = 0.2


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint holds the step it reached."""


@dataclass
class _Progress:
    """What a checkpoint holds beside tensors."""

    step: int = 0
    bad_steps: int = 0
    losses: float = 0.0  # their sum since the last evaluation, and how many they are
    summed: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, str, float]] = field(default_factory=list)
    probes: list[tuple[int, str, float]] = field(default_factory=list)
    known: dict[str, float] = field(default_factory=dict)  # what a construction says of itself


def schedule(step: int, steps: int, recipe: Recipe) -> float:
    """The learning rate of a step as a part of the highest."""
    rising = max(1, round(recipe.warm_up * steps))
    if step < rising:
        return (step + 1) / rising
    if recipe.schedule == "constant":
        return 1.0
    done = (step - rising) / max(1, steps - rising)
    return 1 - done if recipe.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def train(
    run: Run,
    *,
    checkpoints: checkpoint.Place | None = None,
    checkpoint_seconds: float = 20.0,
    keep_weights: checkpoint.Place | None = None,
    on_step: Callable[[int], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Train and evaluate. A crash inside the run is a result with status `failed`; only `Interrupted` gets out.

    `checkpoints` is a folder for this run's checkpoint, `keep_weights` one for its final weights. `should_stop` is
    asked after every step; `on_step` hears a few times a second how far the run is.
    """
    try:
        return _train(run, checkpoints, checkpoint_seconds, keep_weights, on_step, should_stop)[1]
    except (Interrupted, checkpoint.DiskError):
        raise
    except Exception:
        return RunResult(run.key, "failed", message=traceback.format_exc(), environment=machine.environment())


def _train(
    run: Run,
    checkpoints: checkpoint.Place | None,
    checkpoint_seconds: float,
    keep_weights: checkpoint.Place | None,
    on_step: Callable[[int], None],
    should_stop: Callable[[], bool],
) -> tuple[nn.Module, RunResult]:
    torch.set_num_threads(run.execution.threads)
    task = load(run.task)
    model = build_model(run, task)
    path = checkpoints / f"{run.key}.safetensors" if checkpoints else None
    workers = _Workers(run)
    found = workers.share(checkpoint.read(path) if path and workers.first else None)

    def pretrain(before: Run) -> nn.Module:
        return _train(before, checkpoints, checkpoint_seconds, keep_weights, lambda step: on_step(0), should_stop)[0]

    known = _begin(run, model, keep_weights, workers, pretrain) if run.begin and found is None else {}
    optimizer = FlatOptimizer(model, run.recipe)
    progress = _resume(found, optimizer)
    forward = cast(nn.Module, torch.compile(model, fullgraph=True)) if run.execution.compiled else model
    progress.known |= known
    trivial = task.trivial_error()
    if not run.steps:
        _evaluate(run, task, forward, model, progress, math.nan)
    marks = {round(run.steps * (i + 1) / run.evaluations) for i in range(run.evaluations)}
    began = told = saved = time.monotonic()
    machine.reset_peak_memory(run.execution.device)
    message = ""
    while progress.step < run.steps:
        loss = _step(run, task, forward, optimizer, progress.step, workers)
        progress.step, progress.losses, progress.summed = progress.step + 1, progress.losses + loss, progress.summed + 1
        message = _diverged(loss, trivial, progress)
        if message:
            break
        if progress.step in marks:
            _evaluate(run, task, forward, model, progress, loss)
        now = time.monotonic()
        if now - told > REPORT_SECONDS:
            told = now
            on_step(progress.step)
        stop = should_stop()
        if path and workers.first and (stop or now - saved > checkpoint_seconds):
            progress.seconds, began, saved = progress.seconds + now - began, now, now
            checkpoint.write(path, _state(optimizer), {**vars(progress)})
        if stop:
            raise Interrupted(f"run {run.key} stopped at step {progress.step} of {run.steps}")
    progress.seconds += time.monotonic() - began
    on_step(progress.step)
    result = _result(run, task, forward, model, progress, message, keep_weights if workers.first else None)
    if path and workers.first:
        checkpoint.remove(path)
    return model, result


def build_model(run: Run, task: Task) -> nn.Module:
    """The run's model with its first weights, the same on every device."""
    torch.manual_seed(run.seed)
    model = task.build(run.model_shape, run.options)
    set_path(model, run.execution.path)
    return model.to(run.execution.device)


def _begin(
    run: Run,
    model: nn.Module,
    keep_weights: checkpoint.Place | None,
    workers: "_Workers",
    pretrain: Callable[[Run], nn.Module],
) -> dict[str, float]:
    """First weights that are not random: a construction's, with what is known of it, or a pre-training's.

    Kept weights of that very pre-training save its time and change nothing else.
    """
    if run.begin.get("name") != pretrained.NAME:
        return construct(run.begin, model, run.seed)
    before = pretrained.earlier(run)
    path = keep_weights / f"{before.key}.safetensors" if keep_weights else None
    kept = workers.share(checkpoint.read(path) if path and workers.first else None)
    with torch.random.fork_rng():  # what this run draws later is the same, whether or not it trains first
        weights = kept[0] if kept else pretrain(before).state_dict()
    pretrained.carry_over(weights, model)
    return {}


# ---- one step ------------------------------------------------------------------------------------------------------


class _Workers:
    """The processes that share a run (one, unless torchrun started more): each computes a part of every batch."""

    def __init__(self, run: Run) -> None:
        self.count, self.number = run.execution.devices, 0
        if self.count > 1:
            import torch.distributed as dist

            if not dist.is_initialized():
                dist.init_process_group("nccl" if run.execution.device == "cuda" else "gloo")
            if dist.get_world_size() != self.count:
                raise ValueError(f"the run wants {self.count} processes, but {dist.get_world_size()} were started")
            self.number = dist.get_rank()

    @property
    def first(self) -> bool:
        return self.number == 0

    def share(self, value: Any) -> Any:
        """What the first process has: the others may not reach its files, or look for them too early."""
        if self.count > 1:
            import torch.distributed as dist

            box = [value]
            dist.broadcast_object_list(box)
            value = box[0]
        return value

    def average(self, tensors: list[Tensor]) -> None:
        if self.count > 1:
            import torch.distributed as dist

            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.count


def _step(run: Run, task: Task, model: nn.Module, optimizer: FlatOptimizer, step: int, workers: _Workers) -> float:
    """One optimiser step; gives the batch's mean loss."""
    recipe = run.recipe
    inputs, labels = task.draw(run.seed, "train", step, recipe.batch, run.execution.device)
    parts = recipe.micro_batches * workers.count
    chunks = list(zip(inputs.chunk(parts), labels.chunk(parts), strict=True))
    mine = chunks[workers.number :: workers.count]
    optimizer.zero_grad()
    total = torch.zeros((), device=inputs.device)
    with shared_weights(model) if len(mine) > 1 else nullcontext():
        for part, wanted in mine:
            with _autocast(run):
                loss = task.loss(model(part), wanted) * (len(part) * workers.count / len(inputs))
            loss.backward()
            total += loss.detach()
    workers.average([*optimizer.gradients(), total])
    optimizer.step(schedule(step, run.steps, recipe))
    return float(total)


def _autocast(run: Run) -> Any:
    if run.execution.precision == "float32":
        return nullcontext()
    return torch.autocast(run.execution.device, torch.bfloat16)


def _diverged(loss: float, trivial: float, progress: _Progress) -> str:
    if not math.isfinite(loss):
        return f"the loss was {loss} at step {progress.step}"
    progress.bad_steps = progress.bad_steps + 1 if loss > DIVERGED_AT * trivial else 0
    if progress.bad_steps >= DIVERGED_FOR:
        return f"the loss was over {DIVERGED_AT:g} times the trivial error for {DIVERGED_FOR} steps, to {progress.step}"
    return ""


# ---- evaluation ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, run: Run, stream: Any, samples: int) -> dict[str, float]:
    """Metrics over a fixed part of a held-out stream, in batches of the run's size.

    The same for every seed, so that arms are compared on equal terms; but where nothing is trained the sample may be
    all that seeds differ in.
    """
    scores: dict[str, list[Tensor]] = {}
    training = model.training
    model.eval()
    for inputs, labels in _sample(run, task, stream, samples):
        with _autocast(run):
            found = task.scores(model(inputs), labels)
        for name, values in found.items():
            scores.setdefault(name, []).append(values.cpu())
    model.train(training)
    return task.metrics({name: torch.cat(values) for name, values in scores.items()})


class _Sample:
    """Batches of a held-out stream; those that fit in `KEPT_BYTES` are drawn only once."""

    def __init__(self, draw: Callable[[int], Batch], batches: int) -> None:
        self.draw, self.batches = draw, batches
        self.kept: list[Batch] = []
        self.room = KEPT_BYTES

    def __iter__(self) -> Iterator[Batch]:
        for index in range(self.batches):
            yield self.kept[index] if index < len(self.kept) else self._next(index)

    def _next(self, index: int) -> Batch:
        batch = self.draw(index)
        size = sum(tensor.nbytes for tensor in batch)
        if index == len(self.kept) and size <= self.room:
            self.kept.append(batch)
            self.room -= size
        return batch


_samples: dict[str, _Sample] = {}  # of validation and test, for all runs of a task in this process


def _sample(run: Run, task: Task, stream: Any, samples: int) -> _Sample:
    seed, batch, device = 0 if run.steps else run.seed, run.recipe.batch, run.execution.device
    key = json.dumps([run.task, seed, stream, samples, batch, device], sort_keys=True)
    if key not in _samples:
        if len(_samples) > 1:
            _samples.clear()
        count = max(1, math.ceil(samples / batch))
        _samples[key] = _Sample(lambda index: task.draw(seed, stream, index, batch, device), count)
    return _samples[key]


@torch.no_grad()
def _latency(run: Run, task: Task, forward: nn.Module, model: nn.Module) -> float:
    """Median seconds of a forward pass of one batch of the test stream."""
    inputs, _ = task.draw(0, "test", 0, run.recipe.batch, run.execution.device)
    seconds = []
    model.eval()
    for _ in range(LATENCY_REPEATS):
        machine.synchronize(run.execution.device)
        start = time.perf_counter()
        with _autocast(run):
            forward(inputs)
        machine.synchronize(run.execution.device)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _evaluate(run: Run, task: Task, forward: nn.Module, model: nn.Module, progress: _Progress, loss: float) -> None:
    progress.curve.append((progress.step, "loss", loss))
    if progress.summed:
        progress.curve.append((progress.step, "mean_loss", progress.losses / progress.summed))
        progress.losses, progress.summed = 0.0, 0
    samples = min(VALIDATION_SAMPLES, task.samples("validation") or VALIDATION_SAMPLES)
    for name, value in evaluate(task, forward, run, "validation", samples).items():
        progress.curve.append((progress.step, name, value))
    inputs, _ = task.draw(0, "validation", 0, min(run.recipe.batch, PROBED_SAMPLES), run.execution.device)
    for probe in run.probes:
        found = measure(probe, model, inputs).items()
        progress.probes += [(progress.step, name, value) for name, value in found]


def _result(
    run: Run,
    task: Task,
    forward: nn.Module,
    model: nn.Module,
    progress: _Progress,
    message: str,
    keep_weights: checkpoint.Place | None,
) -> RunResult:
    metrics = {} if message else evaluate(task, forward, run, "test", task.samples("test") or TEST_SAMPLES)
    metrics |= progress.known
    metrics |= {name: value for step, name, value in progress.probes if step == progress.step}
    last = {name: value for step, name, value in progress.curve if step == progress.step}
    means = [value for _, name, value in progress.curve if name == "mean_loss"]
    metrics |= {"least_mean_loss": min(means)} if means else {}
    metrics |= {"trivial_error": task.trivial_error()} | (
        {"validation_error": last["error"]} if "error" in last else {}
    )
    samples = progress.step * run.recipe.batch
    digest = ""
    if keep_weights and not message:
        digest = checkpoint.write(
            keep_weights / f"{run.key}.safetensors", model.state_dict(), {"run": run.model_dump()}
        )
    return RunResult(
        run.key,
        "diverged" if message else "done",
        metrics=metrics,
        curve=progress.curve,
        probes=progress.probes,
        steps=progress.step,
        seconds=progress.seconds,
        latency=0.0 if message else _latency(run, task, forward, model),
        tokens=samples * task.tokens,
        flops=samples * training_flops(run.model_shape, run.options, task.tokens),
        parameters=sum(p.numel() for p in model.parameters()),
        peak_bytes=machine.peak_memory(run.execution.device),
        kernel=f"{run.execution.path} on {run.execution.device}",
        weights=digest,
        message=message,
        environment=machine.environment(),
    )


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def _state(optimizer: FlatOptimizer) -> dict[str, Tensor]:
    return {**optimizer.state(), "random": torch.get_rng_state()}


def _resume(found: checkpoint.Contents | None, optimizer: FlatOptimizer) -> _Progress:
    if found is None:
        return _Progress()
    tensors, facts = found
    torch.set_rng_state(tensors.pop("random"))
    optimizer.load(tensors)
    facts |= {name: [tuple(row) for row in facts[name]] for name in ("curve", "probes")}
    return _Progress(**facts)
