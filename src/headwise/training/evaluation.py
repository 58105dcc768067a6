"""Evaluation of a run: metrics on held-out streams, points of its curve, the time of a forward pass."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from headwise.measure.probes import measure_probe
from headwise.tasks import Batch, Task
from headwise.training import machine
from headwise.training.progress import Progress
from headwise.training.run import Point, Run

TEST_SAMPLES, VALIDATION_SAMPLES, PROBED_SAMPLES = 8192, 2048, 64
KEPT_BYTES = 2**25  # of a held-out sample
LATENCY_REPEATS = 5


def autocast(run: Run) -> Any:
    """Products in the precision that the run was planned with."""
    if run.execution.precision == "float32":
        return nullcontext()
    return torch.autocast(run.execution.device, torch.bfloat16)


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, run: Run, stream: Any, samples: int) -> dict[str, float]:
    """Metrics over a fixed part of a held-out stream, in batches of the run's size.

    The same for every seed, so that variants are compared on equal terms; but where nothing is trained the sample may
    be all that seeds differ in.
    """
    scores: dict[str, list[Tensor]] = {}
    training = model.training
    model.eval()
    for inputs, labels in _sample(run, task, stream, samples):
        with autocast(run):
            batch_scores = task.scores(model(inputs), labels)
        for name, values in batch_scores.items():
            scores.setdefault(name, []).append(values.cpu())
    model.train(training)
    return task.metrics({name: torch.cat(values) for name, values in scores.items()})


class Sample:
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


_samples: dict[str, Sample] = {}  # of validation and test, for all runs of a task in this process


def _sample(run: Run, task: Task, stream: Any, samples: int) -> Sample:
    seed, batch, device = 0 if run.steps else run.seed, run.recipe.batch, run.execution.device
    key = json.dumps([run.task, seed, stream, samples, batch, device], sort_keys=True)
    if key not in _samples:
        if len(_samples) > 1:
            _samples.clear()
        count = max(1, math.ceil(samples / batch))
        _samples[key] = Sample(lambda index: task.draw(seed, stream, index, batch, device), count)
    return _samples[key]


@torch.no_grad()
def latency(run: Run, task: Task, forward: nn.Module, model: nn.Module) -> float:
    """Median seconds of a forward pass of one batch of the test stream."""
    inputs, _ = task.draw(0, "test", 0, run.recipe.batch, run.execution.device)
    seconds = []
    model.eval()
    for _ in range(LATENCY_REPEATS):
        machine.synchronize(run.execution.device)
        start = time.perf_counter()
        with autocast(run):
            forward(inputs)
        machine.synchronize(run.execution.device)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def add_points(
    run: Run, task: Task, forward: nn.Module, model: nn.Module, progress: Progress, loss: float
) -> list[Point]:
    """Points of the curve at a step: the last loss, the mean since those before, metrics on validation; and probes."""
    before = len(progress.curve)
    progress.curve.append((progress.step, "loss", loss))
    if progress.summed:
        progress.curve.append((progress.step, "mean_loss", progress.losses / progress.summed))
        progress.losses, progress.summed = 0.0, 0
    samples = min(VALIDATION_SAMPLES, task.samples("validation") or VALIDATION_SAMPLES)
    for name, value in evaluate(task, forward, run, "validation", samples).items():
        progress.curve.append((progress.step, name, value))
    inputs, _ = task.draw(0, "validation", 0, min(run.recipe.batch, PROBED_SAMPLES), run.execution.device)
    for probe in run.probes:
        values = measure_probe(probe, model, inputs)
        progress.probes += [(progress.step, name, value) for name, value in values.items()]
    return progress.curve[before:]
