"""How fast variants train, measured apart from their training: some steps of each in turn, in one process of its own.

Training cannot tell: its processes slow each other, and a machine is not equally busy all day. Taken in turns the
variants share what happens meanwhile; how much other processes did meanwhile is noted, and where that was a lot there
is no answer but a sentence. A measurement is kept beside the plan, and made again only where the machine was not quiet.
No torch here.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from pydantic import Field

from headwise.spec import JsonSpec
from headwise.store.notes import keep
from headwise.training.run import Run

QUIET = 0.1  # of all cores: what other processes may use while steps are measured
STEPS = 3  # of a variant at its turn; the first one warms up
TURNS, SECONDS = 7, 1.0  # of each variant, at least
MANY, RATE = 10**9, 0.001  # steps that no measurement reaches; a learning rate at which nothing diverges


class Throughput(JsonSpec):
    """Seconds of a training step by variant, and what other processes did meanwhile."""

    step_seconds: dict[str, float] = Field(default={}, description="by shape; the median of some steps")
    others: float = Field(default=0.0, description="share of all cores that other processes used meanwhile")
    problem: str = Field(default="", description="why it could not be measured")

    @property
    def quiet(self) -> bool:
        """Whether it tells the variants' speed."""
        return not self.problem and self.others <= QUIET

    def in_words(self, again: str) -> str:
        """Where the speeds come from, or why there are none; `again` is the command that measures again."""
        if self.quiet:
            how = "some training steps of each variant in turn, in one process, apart from the runs"
            return f"{how}; other processes used {self.others:.0%} of the cores"
        used = f"{self.others:.0%} of the cores" if math.isfinite(self.others) else "an unknown part of the cores"
        why = self.problem or f"other processes used {used} while it was measured"
        return f"not shown, because {why}; on a quiet machine, {again} measures it (runs are not repeated)"


def throughput(runs: list[Run], folder: Path) -> Throughput:
    """Of one run for each variant: as measured before where the machine was quiet, else measured now and kept."""
    measured = [
        run.replace(steps=MANY, seed=0, evaluations=1, recipe=run.recipe.replace(learning_rate=RATE)) for run in runs
    ]
    names = " ".join(sorted(run.key for run in measured))
    file = folder / "compare" / f"{hashlib.sha256(names.encode()).hexdigest()[:16]}.speed.json"
    if file.exists() and (kept := Throughput(**json.loads(file.read_text()))).quiet:
        return kept
    new = _measure_apart(measured)
    keep(file, json.dumps(new.model_dump()), replace=True)
    return new


def _measure_apart(runs: list[Run]) -> Throughput:
    """In a process that does nothing else."""
    from headwise.sweep.processes import each

    (measured,) = each(partial(measure, seconds=SECONDS), [runs], 1)
    return measured


def measure(runs: list[Run], seconds: float) -> Throughput:
    """Here and now, with a model of each run in memory."""
    from headwise.training.loop import training_steps
    from headwise.training.machine import use_one_core

    use_one_core()
    try:
        steps = {run.shape: training_steps(run).__next__ for run in runs}
        for step in steps.values():
            step()
        before = load()
        times = in_turns(steps, seconds)
        others = used_by_others(before, load())
    except Exception as error:  # an answer does not depend on it
        return Throughput(problem=f"it could not be measured here ({type(error).__name__}: {error})")
    return Throughput(step_seconds=times, others=others)


def in_turns(
    steps: Mapping[str, Callable[[], object]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The median time of each one's steps; those that come first at a turn are not counted."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    start, turns = clock(), 0
    while turns < TURNS or clock() - start < seconds * len(steps):
        turns += 1
        for name, step in steps.items():
            step()
            for _ in range(STEPS - 1):
                began = clock()
                step()
                times[name].append(clock() - began)
    return {name: median(one) for name, one in times.items()}


# ---- the load of the machine ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Seconds since some moment: of all cores at work, of this process, and of the clock."""

    busy: float
    own: float
    clock: float


def load(stat: Path = Path("/proc/stat")) -> Load:
    """Now; what is stolen by other guests of a virtual machine counts as work. NaN where the system does not tell."""
    busy = math.nan
    if stat.exists():
        user, nice, system, _idle, _waiting, *interrupts = map(int, stat.read_text().split("\n", 1)[0].split()[1:9])
        busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return Load(busy, time.process_time(), time.perf_counter())


def used_by_others(before: Load, after: Load, cores: int = os.cpu_count() or 1) -> float:
    """Share of all cores that other processes used between two moments; else the system's average, without this one."""
    if math.isnan(before.busy):
        average = os.getloadavg()[0] if hasattr(os, "getloadavg") else math.inf
        return max(0.0, average - 1) / cores
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, others / (cores * (after.clock - before.clock)))
