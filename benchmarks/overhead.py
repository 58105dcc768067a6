"""What of a run is not training: evaluation, probes and checkpoints, and how long a worker takes to start.

    make bench

Whole runs of the smallest size that a study trains (the rank cliff on a laptop), where evaluation weighs most, with
everything as a sweep does it. `start` is from asking for a worker to its first step, without the run that warms up.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

RANKS = (16, 4, 1)


class Clock:
    """Seconds spent in a function, wherever it is called from."""

    def __init__(self, module, name):
        self.seconds = 0.0
        self.function = getattr(module, name)
        setattr(module, name, self)

    def __call__(self, *given, **named):
        start = time.perf_counter()
        try:
            return self.function(*given, **named)
        finally:
            self.seconds += time.perf_counter() - start


def laptop_run(rank, seed=0):
    from headwise.studies._recipes.neighbors import neighbor_run
    from headwise.studies.rank_cliff import PRESETS
    from headwise.sweep.resolve import fitted
    from headwise.training.run import Execution

    return fitted([neighbor_run(PRESETS["laptop"], 1, 1, rank, seed).replace(evaluations=10)], Execution())[0]


def parts():
    """Parts of whole runs, one after another in this process."""
    from headwise.training import loop
    from headwise.training import resume as checkpoint
    from headwise.training.machine import use_one_core

    use_one_core()
    clocks = {"evaluation and probes": Clock(loop, "add_points"), "test": Clock(loop, "_result")}
    clocks["checkpoints"] = Clock(checkpoint, "write")
    rows = []
    for rank in RANKS:
        run = laptop_run(rank)
        with tempfile.TemporaryDirectory() as folder:
            loop.train_run(run.replace(steps=20), checkpoints=checkpoint.place(folder))
            for clock in clocks.values():
                clock.seconds = 0.0
            start = time.perf_counter()
            loop.train_run(run, checkpoints=checkpoint.place(folder))
            whole = time.perf_counter() - start
        shares = {name: round(clock.seconds / whole, 4) for name, clock in clocks.items()}
        rows.append({"rank": rank, "steps": run.steps, "seconds": round(whole, 2), **shares})
    return rows


def start_up():
    """Seconds until a sweep's first step, beyond the torch that its server loads once."""
    from headwise.store.store import Store
    from headwise.sweep import local
    from headwise.sweep.plan import Watch, make_plan

    times = []
    with tempfile.TemporaryDirectory() as folder, Store(":memory:") as store:
        for seed in range(2):  # the first loads the server
            run = laptop_run(4, 100 + seed).replace(steps=50)
            first: list[float] = []
            watch = Watch(on_step=lambda run, step, first=first: first.append(time.perf_counter()))
            start = time.perf_counter()
            local.sweep(make_plan([run], store), store, checkpoints=Path(folder), workers=1, watch=watch)
            times.append(first[0] - start)
    return {"first": round(times[0], 2), "later": round(times[1], 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    starts, rows = start_up(), parts()
    if options.json:
        return print(json.dumps({"start": starts, "rows": rows}, indent=2))
    print(f"a worker's first step: {starts['first']} s with torch, {starts['later']} s after that")
    print(f"{'rank':>4} {'steps':>6} {'seconds':>8} {'evaluation and probes':>22} {'test':>6} {'checkpoints':>12}")
    for row in rows:
        rank, steps, seconds, *shares = row.values()
        print(f"{rank:>4} {steps:>6} {seconds:>8} {shares[0]:>22.1%} {shares[1]:>6.1%} {shares[2]:>12.1%}")


if __name__ == "__main__":
    main()
