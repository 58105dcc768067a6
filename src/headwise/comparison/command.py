"""Somebody's own trainer: a command for each variant, learning rate and seed.

A command names what it wants in braces, as in 'python train.py --heads {heads} --lr {lr} --seed {seed}', and writes a
JSON file with its number: {"metric": 2.31}. It may also write `validation_metric` (what learning rates are then chosen
by), `curve` (pairs of step and validation metric), `tokens` (how many it trained on) and `seconds` (how long that took
without the start of the process). Each run is a row of the store like any other, one that fails with the end of what
it printed. Scripts and configurations that the command names are part of a run's key by their content, so that a
trainer that was changed makes new runs. No torch here.
"""

import hashlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from statistics import mean
from tempfile import TemporaryFile
from typing import Any

from headwise.cost import parameters
from headwise.spec import SpecError
from headwise.store.store import Store
from headwise.sweep.drive import stoppable
from headwise.sweep.plan import Stopped, Summary, Watch, make_plan, record
from headwise.sweep.sharing import Sharing
from headwise.sweep.watching import Watching, unwatched
from headwise.training.run import Run, RunResult

COMMAND_TASK = "command"  # of the task, in a run of this kind
SHAPE_FIELDS = ("width", "heads", "qk_rank", "v_rank", "kv_heads", "kv_latent", "q_latent", "rope_rank", "depth", "mlp")
WORDS = ("shape", *SHAPE_FIELDS, "lr", "seed", "steps", "key", "device")
WORD = re.compile(r"(?<![\w$])\{(\w+)\}")  # not a shell's ${variable}
KEPT_OUTPUT = 2000  # characters of what a failed command printed
CODE = {".py", ".sh", ".bash", ".pl", ".rb", ".r", ".jl", ".lua", ".js", ".ts"}
CODE |= {".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".json", ".gin"}
GUARD = Path(__file__).with_name("guard.py")
TICK_SECONDS = 0.05
GRACE_SECONDS = 10.0  # between asking a command to end and ending it


def command_task(command: str, metric_json: str, metric: str) -> dict[str, Any]:
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
    task: dict[str, Any] = {"name": COMMAND_TASK, "command": command, "metric_json": metric_json, "metric": metric}
    scripts = script_hashes(command, metric_json)
    return task | ({"scripts": scripts} if scripts else {})


def filled_in(text: str, run: Run, device: str = "") -> str:
    """The text with a run's values in the place of their names."""
    shape = run.model_shape.model_dump()
    sizes = {
        name: shape[name] if isinstance(shape[name], int) else ",".join(map(str, shape[name])) for name in SHAPE_FIELDS
    }
    words = {"shape": run.shape, "lr": f"{run.recipe.learning_rate:g}", "seed": run.seed, "steps": run.steps}
    values = {**sizes, **words, "key": run.key, "device": device}
    return WORD.sub(lambda word: str(values[word[1]]), text)


# ---- the version of a trainer --------------------------------------------------------------------------------------


def script_hashes(command: str, metric_json: str = "") -> dict[str, str]:
    """Content of the scripts and configurations that a command names, by name; not its interpreter, data or output."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = re.split(r"[\s'\"]+", command)
    names = {name for word in words for name in (word, word.partition("=")[2], *re.split(r"[\s=;|&<>()]+", word))}
    for option, module in pairwise(words):
        if option == "-m":  # python -m my.train
            names |= {f"{module.replace('.', '/')}{ending}" for ending in (".py", "/__main__.py")}
    return {name: _hash(Path(name)) for name in sorted(names - {metric_json}) if _is_code(name)}


def _is_code(name: str) -> bool:
    try:
        file = Path(name)
        if WORD.search(name) or not file.is_file():
            return False
        with file.open("rb") as opened:
            return file.suffix.lower() in CODE or opened.read(2) == b"#!"
    except (OSError, ValueError):  # no name that a file can have, or none that may be read
        return False


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def version_notices(store: Store, task: dict[str, Any], shapes: Collection[str]) -> list[str]:
    """What to know about versions of the trainer: runs of others that are not used, or that none is recorded."""
    if task["name"] != COMMAND_TASK:
        return []
    scripts = task.get("scripts", {})
    if not scripts:
        return ["no script of the command was found, so a changed trainer is not noticed: its old runs count"]
    asked = _without_version(task)
    others = [
        run.task.get("scripts", {})
        for run, _ in store.runs(task=COMMAND_TASK)
        if run.shape in shapes and run.task != task and _without_version(run.task) == asked
    ]
    changed = sorted({name for other in others for name in scripts if other.get(name) != scripts[name]})
    if not changed:
        return []
    many = "1 run was" if len(others) == 1 else f"{len(others)} runs were"
    names = ", ".join(changed)
    return [f"{many} made by an older or unrecorded version of {names}: not used"]


def _without_version(task: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name != "scripts"}


# ---- slots ---------------------------------------------------------------------------------------------------------


def device_slots(command: str, parallel: int, devices: Sequence[str]) -> tuple[str, ...]:
    """The devices of each of the commands that run at once; as many commands as devices, if their number is not given.

    More devices than commands are divided among them, more commands than devices share them, both evenly.
    """
    if parallel < 0:
        raise SpecError(f"--parallel is a number of commands, not {parallel}")
    if "device" in WORD.findall(command) and not devices:
        raise SpecError("the command asks for {device}: give --devices, as in --devices 0,1")
    if len(set(devices)) < len(devices):
        raise SpecError(f"--devices names a device twice: {', '.join(devices)}; --parallel lets commands share one")
    count = parallel or len(devices) or 1
    if not devices:
        return ("",) * count
    if max(count, len(devices)) % min(count, len(devices)):
        raise SpecError(
            f"{len(devices)} devices cannot be divided evenly among {count} commands; "
            f"give --parallel {len(devices)}, or another number that divides it or is a multiple of it"
        )
    each = max(1, len(devices) // count)
    return tuple(
        ",".join(devices[first : first + each]) for first in (slot * each % len(devices) for slot in range(count))
    )


class CommandTrainer:
    """Somebody's trainer, as a comparison uses it: so many commands at once as there are slots."""

    def __init__(self, store: Store, slots: Sequence[str] = ("",), watching: Watching = unwatched) -> None:
        self.store, self.slots, self.watching = store, tuple(slots), watching
        self.workers = len(self.slots)

    def fit(self, runs: list[Run]) -> list[Run]:
        return runs

    def step_seconds(self, runs: list[Run]) -> list[float]:
        """From as many first runs as go at once, the base's among them; they are kept. Others are taken to be alike."""
        first = runs[: self.workers]
        self._check_files(runs)
        with self.watching(list(make_plan(first, self.store).todo), "the first run, to time it") as watch:
            self.do(first, watch)
        stored = [pair[1] for pair in map(self.store.get, (run.key for run in first)) if pair]
        if stored[0].status == "failed":
            raise SpecError(f"the first run failed: {stored[0].message.strip()}")
        times = [
            (stored[0] if result.status == "failed" else result).seconds / run.steps
            for run, result in zip(first, stored, strict=True)
        ]
        return times + [max(times)] * (len(runs) - len(first))

    def do(self, runs: list[Run], watch: Watch) -> Summary:
        """Ctrl-C and SIGTERM end the commands that run, and raise `Stopped`; those that have ended are kept."""
        plan = make_plan(runs, self.store)
        self._check_files(plan.todo)
        summary = Summary(planned=len(plan.todo) + len(plan.found), found=len(plan.found))
        queue, running = list(plan.todo), dict[int, Command]()
        pace = [pair[1].seconds / pair[0].steps for pair in map(self.store.get, plan.found) if pair]
        with stoppable(watch) as watch, closing(Sharing(self.store)) as sharing:
            try:
                while (queue or running) and not watch.stop_asked():
                    for slot in [slot for slot in range(self.workers) if slot not in running]:
                        if run := sharing.next(queue, lambda run: True, summary, watch):
                            running[slot] = self._start(run, slot, watch)
                    time.sleep(TICK_SECONDS)
                    sharing.beat()  # a command that another driver has begun again meanwhile still has its result
                    for slot, command in list(running.items()):
                        if not command.ended:
                            watch.on_part(command.run, command.part(pace))
                            continue
                        result = running.pop(slot).result()
                        pace += [result.seconds / command.run.steps] if result.status != "failed" else []
                        record(command.run, result, self.store, summary, watch)
                        sharing.release([command.run])
            finally:
                summary.stopped += len(running)
                end_all(running.values(), lambda: watch.stop_asked() > 1)
            if watch.stop_asked():
                raise Stopped(summary, checkpoints=False)
        return summary

    def _start(self, run: Run, slot: int, watch: Watch) -> "Command":
        task = run.task
        scripts, now = task.get("scripts", {}), script_hashes(task["command"], task["metric_json"])
        if changed := sorted(name for name in scripts if now.get(name) != scripts[name]):
            raise SpecError(
                f"{changed[0]} changed while the comparison ran: if you changed it, ask again, and all runs will be of "
                "the new version; if your trainer writes it, put {key} in its name"
            )
        watch.on_start(run)
        return Command(run, self.slots[slot])

    def _check_files(self, runs: Sequence[Run]) -> None:
        """Commands that run at once must not write to the same file."""
        files = {filled_in(run.task["metric_json"], run) for run in runs}
        if self.workers > 1 and len(files) < len(runs):
            raise SpecError("commands that run at once need a file each: put {key} in --metric-json")


# ---- one command ---------------------------------------------------------------------------------------------------


class Command:
    """A command that was started, with every process that it starts in one group; it ends with this process."""

    def __init__(self, run: Run, device: str = "") -> None:
        self.run, self.text = run, filled_in(run.task["command"], run, device)
        self.file = Path(filled_in(run.task["metric_json"], run, device))
        self.before = self.file.stat().st_mtime_ns if self.file.exists() else None
        self.printed, self.started = TemporaryFile(), time.perf_counter()  # noqa: SIM115
        own = {"CUDA_VISIBLE_DEVICES": device} if device and "device" not in WORD.findall(run.task["command"]) else {}
        line, self.lifeline = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), self.text],
            stdin=line,
            stdout=self.printed,
            stderr=subprocess.STDOUT,
            env={**os.environ, **own},
            start_new_session=True,
        )
        os.close(line)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def part(self, pace: list[float]) -> float:
        """How much of it should be done, if it takes as long as others did; nothing is known of the first."""
        expected = mean(pace) * self.run.steps if pace else math.inf
        return min(0.99, (time.perf_counter() - self.started) / expected) if expected else 0.0

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def result(self) -> RunResult:
        """What it wrote, or why there is nothing."""
        seconds, code = time.perf_counter() - self.started, self.process.returncode
        try:
            if code:
                raise ValueError(f"exit code {code}" if code > 0 else f"signal {-code}")
            if not self.file.exists() or self.file.stat().st_mtime_ns == self.before:
                raise ValueError(f"it wrote no {self.file}")
            return _result(self.run, seconds, json.loads(self.file.read_text()))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            message = f"{self._last_output()}\n{self.text}: {error}"
            return RunResult(self.run.key, "failed", seconds=seconds, message=message)
        finally:
            self.close()

    def close(self) -> None:
        self.printed.close()
        os.close(self.lifeline)

    def _last_output(self) -> str:
        size = self.printed.seek(0, os.SEEK_END)
        self.printed.seek(max(0, size - KEPT_OUTPUT))
        return self.printed.read().decode(errors="replace")


def end_all(commands: Iterable[Command], now: Callable[[], bool]) -> None:
    """Ask all of them to end, and end those that do not in time; their whole groups."""
    left = list(commands)
    for command in left:
        command.signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while not all(command.ended for command in left) and time.monotonic() < deadline and not now():
        time.sleep(TICK_SECONDS)
    for command in left:
        command.signal(signal.SIGKILL)  # also what a command that ended has left behind
        command.process.wait()
        command.close()


def training_seconds(run: Run, result: RunResult) -> float:
    """How long training took, without the start of a process; NaN where the trainer did not write it."""
    return result.metrics.get("train_seconds", math.nan) if run.task["name"] == COMMAND_TASK else result.seconds


def _result(run: Run, seconds: float, written: dict[str, Any]) -> RunResult:
    name = run.task["metric"]
    if name not in written:
        raise ValueError(f"{filled_in(run.task['metric_json'], run)} has no '{name}' (--metric names another)")
    metrics = {"error": float(written[name])}
    if f"validation_{name}" in written:
        metrics["validation_error"] = float(written[f"validation_{name}"])
    finite = all(map(math.isfinite, metrics.values()))
    if "seconds" in written:
        metrics["train_seconds"] = float(written["seconds"])
    return RunResult(
        run.key,
        "done" if finite else "diverged",
        metrics=metrics,
        curve=[(int(step), "error", float(value)) for step, value in written.get("curve", [])],
        steps=run.steps,
        seconds=seconds,
        tokens=int(written.get("tokens", 0)),
        parameters=parameters(run.model_shape, run.options)["body"],
    )
