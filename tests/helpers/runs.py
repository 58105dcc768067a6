"""Small runs, finished or to do, and the processes that do them."""

import time
from pathlib import Path

from headwise.tasks import load_task
from headwise.training.run import Recipe, Run, RunResult

TASK = load_task({"name": "nearest-neighbor", "dim": 8, "points": 6})
FAILING_TASK = """
from headwise.tasks.nearest_neighbor import NearestNeighbor
class Broken(NearestNeighbor):
    def draw(self, seed, stream, index, batch, device="cpu"):
        if stream == "train" and index == 3:
            {act}
        return super().draw(seed, stream, index, batch, device)
TASK = Broken
"""
SLOW_TASK = """
import time
from pathlib import Path
from headwise.tasks.nearest_neighbor import NearestNeighbor
class Slow(NearestNeighbor):
    def draw(self, seed, stream, index, batch, device="cpu"):
        if stream == "train" and not Path({released!r}).exists():
            time.sleep(0.5)
        return super().draw(seed, stream, index, batch, device)
TASK = Slow
"""


def slow_task(folder):
    """A task whose runs of some hundred steps last minutes and report every step; and the file that ends the delay."""
    file, released = folder / "slow.py", folder / "released"
    file.write_text(SLOW_TASK.format(released=str(released)))
    return load_task({"name": str(file), "dim": 8, "points": 6}), released


def small_run(**changes):
    given = {"task": TASK.spec(), "shape": "w8-h2-m16", "options": TASK.default_options(), "steps": 40}
    return Run(**{**given, "recipe": Recipe(batch=16), "evaluations": 4, **changes})


def some_runs(count=3, steps=300, task=None):
    task = task or load_task({"name": "nearest-neighbor", "dim": 8, "points": 6})
    return [
        Run(
            task=task.spec(),
            shape=f"w8-h{2 ** (seed % 3)}-m16",
            options=task.default_options(),
            recipe=Recipe(batch=16),
            steps=steps,
            seed=seed,
            evaluations=2,
        )
        for seed in range(count)
    ]


def make_run(seed=0, shape="w8-h2-L2", task="toy", **fields):
    return Run(task={"name": task, "dim": 4}, shape=shape, steps=10, seed=seed, **fields)


def make_result(run, status="done", error=0.5, **fields):
    curve = [(5, "loss", 1.0), (10, "loss", error)]
    values = {"metrics": {"error": error}, "curve": curve, "steps": 10, "seconds": 1.5, "flops": 10**20} | fields
    return RunResult(run.key, status, **values)


def descendants(pid):
    """Processes below a process, deepest last."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
    found, layer = [], {pid}
    while layer:
        layer = {child for child, parent in parents.items() if parent in layer}
        found += sorted(layer)
    return found


def wait_until(sign, process=None):
    """Until the sign is there, however long it takes, or the process has ended: pytest ends what hangs."""
    while not sign() and (process is None or process.poll() is None):
        time.sleep(0.05)


def wait_for_workers(driver, workers=2):
    """Below a driver there are also a server, which its workers come from, and a tracker of what they share."""
    wait_until(lambda: len(descendants(driver.pid)) >= 2 + workers, driver)
