"""Runs of somebody's own trainer: a command for each variant, learning rate and seed, or a table of finished runs.

A command names what it wants in braces, as in 'python train.py --heads {heads} --lr {lr} --seed {seed}', and writes a
JSON file with its number: {"metric": 2.31}, smaller being better. It may also write `validation_metric` (what learning
rates are then chosen by), `curve` (pairs of step and validation metric) and `tokens` (how many it trained on). Runs
follow each other, because such a trainer usually takes the whole machine; each is a row of the store like any other,
one that fails with the end of what it printed. No torch here.
"""

import json
import math
import re
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from headwise.cost import parameters
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.store.rows import Row
from headwise.store.store import Store
from headwise.sweep.plan import Stopped, Summary, Watch, make_plan, record
from headwise.training.run import Run, RunResult

COMMAND_TASK = "command"  # of the task, in a run of this kind
SHAPE_FIELDS = ("width", "heads", "qk_rank", "v_rank", "kv_heads", "kv_latent", "q_latent", "rope_rank", "depth", "mlp")
WORDS = ("shape", *SHAPE_FIELDS, "lr", "seed", "steps", "key")
WORD = re.compile(r"(?<![\w$])\{(\w+)\}")  # not a shell's ${variable}
KEPT_OUTPUT = 2000  # characters of what a failed command printed


def command_task(command: str, metric_json: str, metric: str) -> dict[str, str]:
    """Somebody's trainer as the task of a run."""
    if not metric_json:
        raise SpecError("--command needs --metric-json: the file in which your trainer writes its number")
    words = {word for text in (command, metric_json) for word in WORD.findall(text)}
    if wrong := sorted(words - {*WORDS}):
        raise SpecError(f"the command asks for {{{wrong[0]}}}, which is none of {', '.join(WORDS)}")
    asked = set(WORD.findall(command))
    if "seed" not in asked:
        raise SpecError("the command has no {seed}: without seeds there is nothing to tell chance from an effect by")
    if not asked & {"shape", *SHAPE_FIELDS}:
        raise SpecError("the command names no size, such as {heads} or {shape}: all variants would be the same")
    return {"name": COMMAND_TASK, "command": command, "metric_json": metric_json, "metric": metric}


def filled_in(text: str, run: Run) -> str:
    """The text with a run's values in the place of their names."""
    shape = run.model_shape.model_dump()
    sizes = {
        name: shape[name] if isinstance(shape[name], int) else ",".join(map(str, shape[name])) for name in SHAPE_FIELDS
    }
    words = {"shape": run.shape, "lr": f"{run.recipe.learning_rate:g}", "seed": run.seed, "steps": run.steps}
    values = {**sizes, **words, "key": run.key}
    return WORD.sub(lambda word: str(values[word[1]]), text)


class CommandTrainer:
    """Somebody's trainer, as a comparison uses it."""

    workers = 1

    def __init__(self, store: Store) -> None:
        self.store = store

    def fit(self, runs: list[Run]) -> list[Run]:
        return runs

    def step_seconds(self, runs: list[Run]) -> list[float]:
        """From one run of the base, which is kept: the others are taken to be as fast."""
        base = runs[0]
        self.do([base], Watch())
        stored = self.store.get(base.key)
        assert stored is not None
        if stored[1].status == "failed":
            raise SpecError(f"the first run failed: {stored[1].message.strip()}")
        return [stored[1].seconds / base.steps] * len(runs)

    def do(self, runs: list[Run], watch: Watch) -> Summary:
        """One after the other; Ctrl-C ends the one that runs, and those before it are kept."""
        plan = make_plan(runs, self.store)
        summary = Summary(planned=len(plan.todo) + len(plan.found), found=len(plan.found))
        for run in plan.todo:
            watch.on_start(run)
            try:
                result = execute(run)
            except KeyboardInterrupt:
                summary.stopped += 1
                raise Stopped(summary) from None
            record(run, result, self.store, summary, watch)
        return summary


def execute(run: Run) -> RunResult:
    """One command, from start to its number."""
    command, file = filled_in(run.task["command"], run), Path(filled_in(run.task["metric_json"], run))
    before = file.stat().st_mtime_ns if file.exists() else None
    start = time.perf_counter()
    with TemporaryFile("w+", errors="replace") as printed:
        done = subprocess.run(command, shell=True, stdout=printed, stderr=subprocess.STDOUT)
        seconds = time.perf_counter() - start
        printed.seek(0)
        printed_last = printed.read()[-KEPT_OUTPUT:]
    try:
        if done.returncode:
            raise ValueError(f"exit code {done.returncode}")
        if not file.exists() or file.stat().st_mtime_ns == before:
            raise ValueError(f"it wrote no {file}")
        return _result(run, seconds, json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return RunResult(run.key, "failed", seconds=seconds, message=f"{printed_last}\n{command}: {error}")


def _result(run: Run, seconds: float, written: dict[str, Any]) -> RunResult:
    name = run.task["metric"]
    if name not in written:
        raise ValueError(f"{filled_in(run.task['metric_json'], run)} has no '{name}' (--metric names another)")
    metrics = {"error": float(written[name])}
    if f"validation_{name}" in written:
        metrics["validation_error"] = float(written[f"validation_{name}"])
    return RunResult(
        run.key,
        "done" if all(map(math.isfinite, metrics.values())) else "diverged",
        metrics=metrics,
        curve=[(int(step), "error", float(value)) for step, value in written.get("curve", [])],
        steps=run.steps,
        seconds=seconds,
        tokens=int(written.get("tokens", 0)),
        parameters=parameters(run.model_shape, run.options)["body"],
    )


# ---- finished runs -------------------------------------------------------------------------------------------------


def read_rows(path: Path, metric: str) -> list[Row]:
    """Finished runs from a CSV file: variant (`arm`), seed and metric in each line; other numbers are averaged."""
    import polars as pl

    try:
        frame = pl.read_csv(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise SpecError(f"cannot read runs from {path}: {str(error).splitlines()[0]}") from None
    if missing := [name for name in ("arm", "seed", metric) if name not in frame.columns]:
        raise SpecError(
            f"{path} has no column '{missing[0]}'; it needs arm, seed and {metric} (--metric names another), "
            f"and has {', '.join(frame.columns)}"
        )
    if not (frame[metric].dtype.is_numeric() and frame["seed"].dtype.is_integer()) or frame.is_empty():
        raise SpecError(f"{path} must have a whole number as seed and a number as {metric} in every line")
    if frame.select("arm", "seed").is_duplicated().any():
        raise SpecError(f"{path} has two lines for the same arm and seed; each pair of them may have one line")
    return [_row(line, metric) for line in frame.to_dicts()]


def _row(line: dict[str, Any], metric: str) -> Row:
    """No number, or none that is finite: the run diverged."""
    error = line[metric] if line[metric] is not None and math.isfinite(line[metric]) else math.inf
    numbers = {name: float(value) for name, value in line.items() if isinstance(value, int | float)}
    return Row({"arm": str(line["arm"])}, line["seed"], {**numbers, "error": error}, f"{line['arm']}/{line['seed']}")


def sizes_of(name: str) -> dict[str, Any]:
    """Of a variant that is named by its shape; nothing where it has another name."""
    try:
        shape = ModelShape.parse(name)
    except SpecError:
        return {}
    return {**shape.model_dump(), "parameters": parameters(shape, ModelOptions())["body"]}
