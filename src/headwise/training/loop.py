"""One training loop, a function: `train_run(run)` gives the run's result.

It never asks which task or study it serves. The same run gives the same numbers when it is interrupted and resumed from
its checkpoint: batches are drawn by their number, and everything a later step depends on is in the checkpoint.
"""

import math
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import cast

import torch
from torch import nn

from headwise.cost import training_flops
from headwise.layers.paths import set_path, shared_weights
from headwise.tasks import Task, load_task
from headwise.theory.constructions import construct
from headwise.training import machine, pretrained
from headwise.training import resume as checkpoint
from headwise.training.distributed import Workers
from headwise.training.evaluation import TEST_SAMPLES, add_points, autocast, evaluate, latency
from headwise.training.optim import FlatOptimizer
from headwise.training.progress import Progress, restore, state
from headwise.training.run import Point, Recipe, Run, RunResult

DIVERGED_AT, DIVERGED_FOR = 10.0, 500  # times the no-skill baseline, for so many steps in a row
REPORT_SECONDS = 0.2


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint holds the step it reached."""


def schedule(step: int, steps: int, recipe: Recipe) -> float:
    """The learning rate of a step as a part of the highest."""
    rising = max(1, round(recipe.warm_up * steps))
    if step < rising:
        return (step + 1) / rising
    if recipe.schedule == "constant":
        return 1.0
    done = (step - rising) / max(1, steps - rising)
    falling = 1 - done if recipe.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return recipe.final_learning_rate + (1 - recipe.final_learning_rate) * falling


def train_run(
    run: Run,
    *,
    checkpoints: checkpoint.Location | None = None,
    checkpoint_seconds: float = 20.0,
    keep_weights: checkpoint.Location | None = None,
    on_step: Callable[[int], None] = lambda step: None,
    on_points: Callable[[list[Point]], None] = lambda points: None,
    on_loss: Callable[[float], None] = lambda loss: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Train and evaluate. A crash inside the run is a result with status `failed`; only `Interrupted` gets out.

    `checkpoints` is a folder for this run's checkpoint, `keep_weights` one for its final weights. `should_stop` is
    asked after every step; `on_step` hears where the run begins, then a few times a second how far it is, and before
    it `on_loss` the mean training loss since it last did;
    `on_points` hears each evaluation's points of the curve, and first those that a checkpoint had.
    """
    try:
        return _train(run, checkpoints, checkpoint_seconds, keep_weights, on_step, on_points, on_loss, should_stop)[1]
    except (Interrupted, checkpoint.DiskError):
        raise
    except Exception:
        return RunResult(run.key, "failed", message=traceback.format_exc(), environment=machine.environment())


def _train(
    run: Run,
    checkpoints: checkpoint.Location | None,
    checkpoint_seconds: float,
    keep_weights: checkpoint.Location | None,
    on_step: Callable[[int], None],
    on_points: Callable[[list[Point]], None],
    on_loss: Callable[[float], None],
    should_stop: Callable[[], bool],
) -> tuple[nn.Module, RunResult]:
    torch.set_num_threads(run.execution.threads)
    task = load_task(run.task)
    model = build_model(run, task)
    path = checkpoints / f"{run.key}.safetensors" if checkpoints else None
    workers = Workers(run)
    saved = workers.share(checkpoint.read(path) if path and workers.first else None)

    def pretrain(before: Run) -> nn.Module:
        unheard = lambda step: on_step(0), lambda points: None, lambda loss: None  # the run itself has not begun
        return _train(before, checkpoints, checkpoint_seconds, keep_weights, *unheard, should_stop)[0]

    known = _begin(run, task, model, keep_weights, workers, pretrain) if run.begin and saved is None else {}
    optimizer = FlatOptimizer(model, run.recipe)
    progress = restore(saved, optimizer)
    forward = cast(nn.Module, torch.compile(model, fullgraph=True)) if run.execution.compiled else model
    progress.known |= known
    trivial = task.trivial_error()
    on_step(progress.step)
    on_points(progress.curve)
    if not run.steps:
        on_points(add_points(run, task, forward, model, progress, math.nan))
    marks = {round(run.steps * (i + 1) / run.evaluations) for i in range(run.evaluations)}
    began = reported = written = time.monotonic()
    machine.reset_peak_memory(run.execution.device)
    message, losses = "", []
    while progress.step < run.steps:
        loss = _step(run, task, forward, optimizer, progress.step, workers)
        progress.step, progress.losses, progress.summed = progress.step + 1, progress.losses + loss, progress.summed + 1
        losses.append(loss)
        message = _diverged(loss, trivial, progress)
        if message:
            break
        if progress.step in marks:
            on_points(add_points(run, task, forward, model, progress, loss))
        now = time.monotonic()
        if now - reported > REPORT_SECONDS:
            reported = now
            on_loss(sum(losses) / len(losses))
            losses.clear()
            on_step(progress.step)
        stop = should_stop()
        if path and workers.first and (stop or now - written > checkpoint_seconds):
            progress.seconds, began, written = progress.seconds + now - began, now, now
            checkpoint.write(path, state(optimizer), {**vars(progress)})
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
    task: Task,
    model: nn.Module,
    keep_weights: checkpoint.Location | None,
    workers: Workers,
    pretrain: Callable[[Run], nn.Module],
) -> dict[str, float]:
    """First weights that are not random: a construction's, with what is known of it, or a pre-training's.

    Kept weights of that very pre-training save its time and change nothing else.
    """
    if run.begin.get("name") != pretrained.PRETRAINED:
        return construct(run.begin, model, run.seed)
    before = pretrained.earlier(run)
    path = keep_weights / f"{before.key}.safetensors" if keep_weights else None
    kept = workers.share(checkpoint.read(path) if path and workers.first else None)
    with torch.random.fork_rng():  # what this run draws later is the same, whether or not it trains first
        weights = kept[0] if kept else pretrain(before).state_dict()
    task.carry_over(weights, model)
    return {}


# ---- one step ------------------------------------------------------------------------------------------------------


def training_steps(run: Run) -> Iterator[float]:
    """A run's training steps as they are asked for, with their losses; nothing is evaluated and nothing kept."""
    torch.set_num_threads(run.execution.threads)
    task, workers = load_task(run.task), Workers(run)
    model = build_model(run, task)
    optimizer = FlatOptimizer(model, run.recipe)
    forward = cast(nn.Module, torch.compile(model, fullgraph=True)) if run.execution.compiled else model
    for step in range(run.steps):
        loss = _step(run, task, forward, optimizer, step, workers)
        machine.synchronize(run.execution.device)
        yield loss


def _step(run: Run, task: Task, model: nn.Module, optimizer: FlatOptimizer, step: int, workers: Workers) -> float:
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
            with autocast(run):
                loss = task.training_loss(model, part, wanted) * (len(part) * workers.count / len(inputs))
            loss.backward()
            total += loss.detach()
    workers.average([*optimizer.gradients(), total])
    optimizer.step(schedule(step, run.steps, recipe))
    return float(total)


def _diverged(loss: float, trivial: float, progress: Progress) -> str:
    if not math.isfinite(loss):
        return f"the loss was {loss} at step {progress.step}"
    progress.bad_steps = progress.bad_steps + 1 if loss > DIVERGED_AT * trivial else 0
    if progress.bad_steps >= DIVERGED_FOR:
        baseline = f"{DIVERGED_AT:g} times the error of the no-skill baseline"
        return f"the loss was over {baseline} for {DIVERGED_FOR} steps, up to step {progress.step}"
    return ""


def _result(
    run: Run,
    task: Task,
    forward: nn.Module,
    model: nn.Module,
    progress: Progress,
    message: str,
    keep_weights: checkpoint.Location | None,
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
    samples, tokens = progress.step * run.recipe.batch, task.tokens_in(run.options)
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
        latency=0.0 if message else latency(run, task, forward, model),
        tokens=samples * tokens,
        flops=samples * training_flops(run.model_shape, run.options, tokens),
        parameters=sum(p.numel() for p in model.parameters()),
        peak_bytes=machine.peak_memory(run.execution.device),
        kernel=f"{run.execution.path} on {run.execution.device}",
        weights=digest,
        message=message,
        environment=machine.environment(),
    )
