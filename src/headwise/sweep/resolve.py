"""Runs as they are planned on this machine: device and precision, which data, and the kernels worth compiling."""

import json
import math
import time
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal

from headwise.layers.cpu.compiled import KernelSize, StripSize
from headwise.options import FACTS, ModelOptions
from headwise.spec import SpecError
from headwise.store.store import Store
from headwise.sweep.known import as_known
from headwise.sweep.plan import Watch, work
from headwise.sweep.tokens import sample_tokens
from headwise.training.run import Execution, Run

RACE_ORDER: tuple[Literal["fast", "generated"], ...] = ("fast", "generated") * 5
RACES = {"tiles": ("w64-h64-r2", 16), "strips": ("w64-h4", 64)}  # a layer and its sequences' length
FLOPS_WORTH = 2 * 10**10  # of a run: a second or so, which is what compiling a kernel takes


def resolve(device: str, precision: str) -> Execution:
    """What 'auto' means on this machine: the fastest device, and bfloat16 on CUDA.

    On a processor it is float32, also where bfloat16 is the faster: an answer must not depend on which processor gave
    it, and compiled kernels compute in it. There bfloat16 is for those who ask for it, where it is safe.
    """
    import torch

    kinds = ("cpu", "cuda", "mps")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in kinds or (device == "cuda" and not torch.cuda.is_available()):
        raise SpecError(f"no device '{device}' here; use auto or one of {', '.join(kinds)} that headwise doctor lists")
    if precision not in ("auto", "float32", "bfloat16"):
        raise SpecError(f"no precision '{precision}'; there are auto, float32 and bfloat16")
    if precision == "bfloat16" and device == "cpu":
        from headwise.training.doctor import worth_using

        if not worth_using("bfloat16"):
            raise SpecError("bfloat16 is not safe, or not faster, on this processor; headwise doctor says why")
    if precision == "auto":
        precision = "bfloat16" if device == "cuda" else "float32"
    return Execution.model_validate({"device": device, "precision": precision})


def fitted(
    runs: list[Run], execution: Execution, store: Store | None = None, sources: dict[str, str] | None = None
) -> list[Run]:
    """The runs as they are planned here: as the store already knows them, else with the faster path.

    Runs of a task that reads data get the hash of that data; `sources` says where, by the task's name.

    Kernels take a second or two to compile, so they are for runs that are not over by then, on a machine where they can
    be compiled and win a race.
    """
    planned = [_with_data(run, sources or {}).replace(execution=execution) for run in runs]
    if execution.path == "fast":
        generated = execution.replace(path="generated")
        planned = [run.replace(execution=generated) if _pays(run) else run for run in planned]
    return as_known(planned, store)


def _with_data(run: Run, sources: dict[str, str]) -> Run:
    """The run with the hash of its data, and of its pre-training's, and the sizes that a model must have for it."""
    before = run.begin.get("run", {})
    if "task" in before:
        learned, _ = _data_of(before["task"], sources)
        run = run.replace(begin=run.begin | {"run": before | {"task": before["task"] | learned}})
    data, facts = _data_of(run.task, sources)
    return run.replace(task=run.task | data, options=run.options.replace(**facts)) if data else run


def _data_of(task: dict[str, Any], sources: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    name = task["name"]
    if task.get("content") or name.endswith(".py"):
        return {}, {}
    place = {"source": sources[name]} if name in sources else {}
    return _read(json.dumps(task | place, sort_keys=True))


@cache
def _read(spec: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What enters a run of a task that reads data: where it is, its hash, and the options that it decides."""
    from headwise.tasks import DataTask, load_task

    task = load_task(json.loads(spec)).resolved()
    if not isinstance(task, DataTask):
        return {}, {}
    usual = task.default_options()
    facts = {name: getattr(usual, name) for name in FACTS if getattr(usual, name)}
    return {"source": task.source, "content": task.content}, facts


def _pays(run: Run) -> bool:
    """Whether a run is long enough for kernels, has some, and they win here."""
    kernels = _kernels(run) if work(run) >= FLOPS_WORTH else frozenset()
    strips = any(isinstance(size, StripSize) for size in kernels)
    return bool(kernels) and _generated_wins("strips" if strips else "tiles")


def _kernels(run: Run) -> frozenset[KernelSize]:
    """The compiled kernels that a run could use."""
    execution = run.execution
    if (execution.device, execution.precision, execution.compiled) != ("cpu", "float32", False):
        return frozenset()
    return _model_kernels(run.shape, run.options, sample_tokens(run))


@cache
def _model_kernels(shape: str, options: ModelOptions, tokens: int) -> frozenset[KernelSize]:
    """As the model's own layers say, which need no weights for that."""
    from headwise.layers.paths import kernels
    from headwise.models import build

    return frozenset(kernels(build(shape, options, device="meta"), tokens))


def compile_kernels(runs: Iterable[Run], watch: Watch) -> None:
    """Compile what the runs will use, where this machine has not done so yet."""
    sizes: set[KernelSize] = set().union(*(_kernels(run) for run in runs if run.execution.path == "generated"))
    if not sizes:
        return
    from headwise.layers.cpu.compiled import prepare, uncompiled
    from headwise.layers.cpu.tiled import works

    lacking = uncompiled(sizes) if works() else []
    if lacking:
        watch.on_compile(len(lacking))
        prepare(lacking)


@cache
def _generated_wins(kind: Literal["tiles", "strips"]) -> bool:
    """A race of one small layer, trained both ways."""
    import torch

    from headwise.layers.attention import Attention
    from headwise.layers.cpu.tiled import works
    from headwise.shape import AttentionShape
    from headwise.training.machine import use_one_core

    use_one_core()
    if not works():
        return False
    shape, length = RACES[kind]
    tokens, times = torch.randn(512 // length, length, 64), {"fast": math.inf, "generated": math.inf}
    for path in RACE_ORDER:
        layer = Attention(AttentionShape.parse(shape), causal=kind == "strips", path=path)
        layer(tokens).sum().backward()
        start = time.perf_counter()
        layer(tokens).sum().backward()
        times[path] = min(times[path], time.perf_counter() - start)
    return times["generated"] < times["fast"]
