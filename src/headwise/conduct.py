"""A study from plan to verdict: price it, do the runs the store lacks, read the rows back, judge the claims."""

import json
import math
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from headwise.claims import Judgement, Row, judge
from headwise.compiled import Size
from headwise.run import Execution, Run, RunResult
from headwise.spec import SpecError
from headwise.store import Store
from headwise.studies import PRESETS, Cell, Study, rows
from headwise.sweep import Plan, Summary, Watch, make_plan, tokens, work

CALIBRATED_CELLS, CALIBRATED_STEPS = 4, 3
RACE_ORDER: tuple[Literal["fast", "generated"], ...] = ("fast", "generated") * 5
GPU_HOUR = 3600 * 10**14  # FLOPs, at a third of what a data centre's card could do: small models get less
FLOPS_WORTH = 2 * 10**10  # of a run: a second or so, which is what compiling a kernel takes


@dataclass(frozen=True)
class Price:
    """What a plan would cost here."""

    runs: int
    found: int
    flops: int
    parameters: int
    seconds: float
    workers: int


def resolve(device: str, precision: str) -> Execution:
    """What 'auto' means on this machine: the fastest device; bfloat16 on CUDA, or where tried, safe and faster."""
    import torch

    kinds = ("cpu", "cuda", "mps")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in kinds or (device == "cuda" and not torch.cuda.is_available()):
        raise SpecError(f"no device '{device}' here; use auto or one of {', '.join(kinds)} that headwise doctor lists")
    if precision not in ("auto", "float32", "bfloat16"):
        raise SpecError(f"no precision '{precision}'; there are auto, float32 and bfloat16")
    if precision != "float32" and device == "cpu":
        from headwise.doctor import worth_using

        if worth_using("bfloat16"):
            precision = "bfloat16"
        elif precision == "bfloat16":
            raise SpecError("bfloat16 is not safe, or not faster, on this processor; headwise doctor says why")
    if precision == "auto":
        precision = "bfloat16" if device == "cuda" else "float32"
    return Execution.model_validate({"device": device, "precision": precision})


def fitted(
    runs: list[Run], execution: Execution, store: Store | None = None, sources: dict[str, str] | None = None
) -> list[Run]:
    """The runs as they are planned here: as the store already holds them, else with the path that pays.

    Runs of a task that reads data learn which data it is; `sources` says where, by the task's name.

    Kernels take a second or two to compile, so they are for runs that are not over by then, on a machine where they can
    be compiled and win a race.
    """
    held = {_identity(run): run for run, _ in store.runs(status="done")} if store else {}
    planned = [_with_data(run, sources or {}).replace(execution=execution) for run in runs]
    asked = execution.path != "fast"
    pays = [not asked and work(run) >= FLOPS_WORTH and bool(_kernels(run)) for run in planned]
    if any(pays) and _generated_wins():
        generated = execution.replace(path="generated")
        planned = [run.replace(execution=generated) if paid else run for run, paid in zip(planned, pays, strict=True)]
    return [held.get(_identity(run), run) for run in planned]


def _identity(run: Run) -> tuple[str, str]:
    """Equal for runs that differ only in what was resolved for a machine."""
    return run.cell_key, _content(run)


def _content(run: Run) -> str:
    """What data a run reads, in its pre-training too."""
    tasks = (run.begin.get("run", {}).get("task", {}), run.task)
    return " ".join(str(task.get("content", "")) for task in tasks)


def _with_data(run: Run, sources: dict[str, str]) -> Run:
    """The run with the hash of its data, and of its pre-training's, and the sizes that a model must have for it."""
    before = run.begin.get("run", {})
    if "task" in before:
        learned, _ = _found(before["task"], sources)
        run = run.replace(begin=run.begin | {"run": before | {"task": before["task"] | learned}})
    found, facts = _found(run.task, sources)
    return run.replace(task=run.task | found, options=run.options.replace(**facts)) if found else run


def _found(task: dict[str, Any], sources: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    name = task["name"]
    if task.get("content") or name.endswith(".py"):
        return {}, {}
    place = {"source": sources[name]} if name in sources else {}
    return _read(json.dumps(task | place, sort_keys=True))


@cache
def _read(spec: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What enters a run of a task that reads data: where it is, its hash, and the options that it decides."""
    from headwise.options import FACTS
    from headwise.tasks import DataTask, load

    task = load(json.loads(spec)).resolved()
    if not isinstance(task, DataTask):
        return {}, {}
    usual = task.default_options()
    facts = {name: getattr(usual, name) for name in FACTS if getattr(usual, name)}
    return {"source": task.source, "content": task.content}, facts


def _kernels(run: Run) -> set[Size]:
    """The compiled kernels that a run could use."""
    from headwise.tiled import attention_size, mlp_size, norm_size

    options, execution, shape = run.options, run.execution, run.model_shape
    if (execution.device, execution.precision, execution.compiled) != ("cpu", "float32", False):
        return set()
    between = options.positions == "rotary" or options.qk_norm != "none" or options.logit_scale or options.dropout
    bare = not (options.causal or between or options.hardmax)
    attention = [attention_size(layer, tokens(run)) for layer in shape.layers] if bare else []
    simple = options.activation == "relu" and options.mlp_kind != "gated"
    mlps = [mlp_size(shape.width, hidden) for hidden in shape.mlps if hidden] if simple else []
    norm = norm_size(shape.width) if options.norm == "unit" else None
    return {size for size in (*attention, *mlps, norm) if size}


def _compile_kernels(runs: Iterable[Run], watch: Watch) -> None:
    """What the runs will want, if this machine does not have it yet."""
    sizes = set().union(*(_kernels(run) for run in runs if run.execution.path == "generated"))
    if not sizes:
        return
    from headwise.compiled import missing, prepare
    from headwise.tiled import works

    lacking = missing(sizes) if works() else []
    if lacking:
        watch.on_compile(len(lacking))
        prepare(lacking)


@cache
def _generated_wins() -> bool:
    """A race of one small layer, trained both ways."""
    import torch

    from headwise.attention import Attention
    from headwise.machine import use_one_core
    from headwise.shape import AttentionShape
    from headwise.tiled import works

    use_one_core()
    if not works():
        return False
    tokens, times = torch.randn(32, 16, 64), {"fast": math.inf, "generated": math.inf}
    for path in RACE_ORDER:
        layer = Attention(AttentionShape.parse("w64-h64-r2"), path=path)
        layer(tokens).sum().backward()
        start = time.perf_counter()
        layer(tokens).sum().backward()
        times[path] = min(times[path], time.perf_counter() - start)
    return times["generated"] < times["fast"]


def study_rows(study: Study, preset: str, store: Store) -> list[Row]:
    """What the store holds of a study's preset."""
    trials = study.trials(preset)
    cells = study.judged(preset, rows(trials, results_of(store, trials)))
    return rows(cells, results_of(store, cells))


def best_rate(trials: list[Run], store: Store) -> float:
    """Of runs that differ in their learning rate, the rate with the least validation error."""
    errors = {}
    for run in trials:
        held = store.get(run.key)
        errors[run.recipe.learning_rate] = held[1].validation_error if held else math.inf
    if min(errors.values()) == math.inf:
        raise SpecError(f"no run with a learning rate of {', '.join(map(str, errors))} came to an end; try lower ones")
    return min(errors, key=lambda rate: errors[rate])


def results_of(store: Store, cells: list[Cell]) -> dict[str, RunResult]:
    """Results by the key of a cell: a GPU's row counts as well as a laptop's.

    Rows on different data are never mixed: of a task's data sets, the one that most of the runs were done on counts,
    and of several such the newest.
    """
    keys = {cell.run.cell_key for cell in cells}
    found: dict[tuple[str, str], dict[str, RunResult]] = {}
    for run, result in store.runs() if keys else ():
        if run.cell_key in keys:
            same = found.setdefault((run.task["name"], _content(run)), {})
            if run.cell_key not in same or run.execution == Execution():
                same[run.cell_key] = result
    largest: dict[str, dict[str, RunResult]] = {}
    for (task, _), same in found.items():
        largest[task] = max(same, largest.get(task, {}), key=len)
    chosen = {key: result for same in largest.values() for key, result in same.items()}
    return dict(zip(chosen, store.with_points(chosen.values()), strict=True))


def stages(
    study: Study, preset: str, store: Store, execution: Execution, sources: dict[str, str]
) -> Iterator[list[Run]]:
    """A study's runs as they are planned here: trials of learning rates, then the grid they decide."""
    trials = study.trials(preset)
    study.check_data(preset, sources)
    if trials:
        yield fitted([cell.run for cell in trials], execution, store, sources)
    cells = study.judged(preset, rows(trials, results_of(store, trials)))
    yield fitted([cell.run for cell in cells], execution, store, sources)


def judge_all(study: Study, store: Store) -> list[Judgement]:
    """Every claim of a study, from the largest preset whose every cell has rows; without one, claims stay open."""
    found = {preset: study_rows(study, preset, store) for preset in PRESETS if preset in study.presets}
    whole = (preset for preset, held in found.items() if held and _covers(study, preset, held))
    used = next(whole, next((preset for preset, held in found.items() if held), "laptop"))
    larger = "paper" if used == "laptop" and found[used] and "paper" in study.presets else "laptop"
    settle = _settling(study, larger, found.get(larger, []))
    done = _covers(study, used, found.get(used, []))
    return [judge(claim, used, found.get(used, []), settle, done) for claim in study.claims]


def _settling(study: Study, preset: str, held: list[Row]) -> str:
    """What would decide a claim that is open, and what that costs."""
    from headwise.report.tables import short

    found = [(row.cell, row.seed) for row in held]
    todo = [cell.run for cell in study.of(preset) if (cell.place, cell.run.seed) not in found]
    if not todo:
        return f"more seeds than the {preset} preset of {study.name} has"
    flops = sum(work(run) for run in todo + [cell.run for cell in study.trials(preset) if not held])
    cost = f"{len(todo)} runs to do" + (f", {short(flops, 'FLOP')}" if flops else "")
    if flops > GPU_HOUR:
        cost += f", {flops / GPU_HOUR:,.0f} GPU hours at 100 TFLOP/s"
    return f"headwise study run {study.name} --preset {preset} ({cost})"


def _covers(study: Study, preset: str, held: list[Row]) -> bool:
    """Whether every place of the grid has a row: a comparison that is missing could have failed."""
    return all(cell.place in [row.cell for row in held] for cell in study.of(preset))


def conduct(
    runs: list[Run],
    store: Store,
    *,
    folder: Path,
    workers: int = 0,
    watch: Watch | None = None,
    shard: tuple[int, int] = (0, 1),
    ray_address: str | None = None,
    keep_weights: bool = False,
    checkpoint_seconds: float = 20.0,
) -> Summary:
    """Do what the store lacks, here or on a Ray cluster; Ctrl-C and SIGTERM checkpoint and stop."""
    plan = make_plan(runs, store, shard)
    weights = folder / "weights" if keep_weights else None
    with _stoppable(watch or Watch()) as watching:
        settings: dict[str, Any] = {"weights": weights, "watch": watching, "checkpoint_seconds": checkpoint_seconds}
        settings |= {"checkpoints": folder / "checkpoints"}
        if ray_address is None:
            from headwise.sweep import local

            _compile_kernels(plan.todo, watching)
            return local.sweep(plan, store, workers=workers, **settings)
        from headwise.sweep import ray_cluster

        return ray_cluster.sweep(plan, store, address=ray_address, **settings)


@contextmanager
def _stoppable(watch: Watch) -> Iterator[Watch]:
    """Count Ctrl-C and SIGTERM instead of dying of them: one asks runs to checkpoint, two stop now."""
    asked = [0]

    def count(number: int, frame: Any) -> None:
        asked[0] += 1

    kinds = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {kind: signal.signal(kind, count) for kind in kinds}
    except ValueError:  # not the main thread: somebody else answers signals
        yield watch
        return
    try:
        yield replace(watch, stop_asked=lambda: asked[0])
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def price(plan: Plan, workers: int) -> Price:
    """FLOPs are exact; time comes from a few steps of a few of the plan's runs, here and now."""
    from headwise.cost import parameters

    rates = _calibrate(plan)
    seconds = sum(work(run) / _nearest(rates, work(run)) for run in plan.todo if run.steps)
    count = sum(parameters(run.model_shape, run.options)["total"] for run in plan.todo)
    return Price(len(plan.todo), len(plan.found), plan.flops, count, seconds / workers, workers)


def _calibrate(plan: Plan) -> dict[int, float]:
    """FLOPs a second, by the work of a run: a few steps of runs from the smallest to the largest."""
    from headwise.machine import keep_memory
    from headwise.train import train

    keep_memory()
    order = sorted({work(run): run for run in plan.todo if run.steps}.items())
    chosen = order[:: max(1, len(order) // CALIBRATED_CELLS)] + order[-1:]
    rates = {}
    for flops, run in chosen:
        few = run.replace(steps=CALIBRATED_STEPS, evaluations=1)
        train(few)  # warms up
        start = time.perf_counter()
        result = train(few)
        seconds = result.seconds if result.steps else time.perf_counter() - start
        rates[flops] = flops * CALIBRATED_STEPS / run.steps / max(seconds, 1e-9)
    return rates


def _nearest(rates: dict[int, float], flops: int) -> float:
    return rates[min(rates, key=lambda known: abs(known - flops))]
