"""A study from plan to verdict: price it, do the runs the store lacks, read the rows back, judge the claims."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from headwise.claims import Judgement, Row, judge
from headwise.run import Execution, Run, RunResult
from headwise.spec import SpecError
from headwise.store import Store
from headwise.studies import PRESETS, Study, rows
from headwise.sweep import Plan, Summary, Watch, make_plan, tokens, work

CALIBRATED_CELLS, CALIBRATED_STEPS = 4, 3
RACE_ORDER: tuple[Literal["fast", "generated"], ...] = ("fast", "generated") * 5
SCORES_WORTH = 6 * 10**9  # at some 5 ns gained a score, half a minute: what generating kernels may take


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


def fitted(runs: list[Run], execution: Execution, store: Store | None = None) -> list[Run]:
    """The runs as they are planned here: as the store already holds them, else with the attention path that pays.

    Kernels for small ranks take seconds to generate, so they are for runs with many scores to compute, on a machine
    where they can be generated and win a race.
    """
    held = {_plain(run).key: run for run, _ in store.runs(status="done")} if store else {}
    planned = [run.replace(execution=execution) for run in runs]
    pays = [_scores(run) >= SCORES_WORTH for run in planned]
    if any(pays) and _generated_wins():
        generated = execution.replace(path="generated")
        planned = [run.replace(execution=generated) if paid else run for run, paid in zip(planned, pays, strict=True)]
    return [held.get(_plain(run).key, run) for run in planned]


def _plain(run: Run) -> Run:
    """The run with nothing resolved for a machine."""
    return run.replace(execution=Execution())


def _scores(run: Run) -> int:
    """Attention scores of small rank that a run computes in training, where nothing but a softmax is asked of them."""
    from headwise.small_rank import LARGEST_RANK

    options, execution = run.options, run.execution
    between = options.positions == "rotary" or options.qk_norm != "none" or options.logit_scale or options.dropout
    if options.causal or between or options.hardmax or execution.compiled or execution.path != "fast":
        return 0
    if (execution.device, execution.precision) != ("cpu", "float32"):
        return 0
    layers = [shape for shape in run.model_shape.layers if shape.group == 1 and not shape.kv_latent]
    heads = sum(shape.heads for shape in layers if max(shape.qk_rank, shape.v_rank) <= LARGEST_RANK)
    return run.steps * run.recipe.batch * heads * tokens(run) ** 2


@cache
def _generated_wins() -> bool:
    """A race of one small layer, trained both ways."""
    import torch

    from headwise.attention import Attention
    from headwise.machine import use_one_core
    from headwise.shape import AttentionShape
    from headwise.small_rank import works

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
    cells = study.of(preset)
    return rows(cells, results_of(store, {cell.run.key for cell in cells}))


def results_of(store: Store, keys: set[str]) -> dict[str, RunResult]:
    """Results by the key a run has with nothing resolved for a machine: a GPU's row counts as well as a laptop's."""
    found: dict[str, RunResult] = {}
    for run, result in store.runs():
        plain = _plain(run).key
        if plain in keys and (plain not in found or plain == run.key):
            found[plain] = result
    return found


def judge_all(study: Study, store: Store) -> list[Judgement]:
    """Every claim of a study, from the largest preset whose every cell has rows; without one, claims stay open."""
    found = {preset: study_rows(study, preset, store) for preset in PRESETS if preset in study.presets}
    whole = (preset for preset, held in found.items() if held and _covers(study, preset, held))
    used = next(whole, next((preset for preset, held in found.items() if held), "laptop"))
    larger = "paper" if used == "laptop" and found[used] and "paper" in study.presets else "laptop"
    missing = len(study.of(larger)) - len(found.get(larger, []))
    settle = f"headwise study run {study.name} --preset {larger} ({missing} runs to do)"
    if not missing:
        settle = f"more seeds than the {larger} preset of {study.name} has"
    done = _covers(study, used, found.get(used, []))
    return [judge(claim, used, found.get(used, []), settle, done) for claim in study.claims]


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
