"""The rank paper's grid, a training step at a time, against the model as its authors wrote it.

    make bench

A cell is (heads of a module, modules, layers); rank = 64 / heads; d 64, N 16, batch 256, MLP 2048. The reference is
torch's encoder layer with its one attention replaced by `modules` nn.MultiheadAttention, called in a Python loop and
averaged. `step` compares training steps on given data; `end to end` adds the data: theirs from a DataLoader over a
generator of single samples, ours drawn by the task. Each side is two processes of one thread at once, as a sweep runs
on two cores, and a step's time is 1 / (1/a + 1/b) of theirs; the sides take turns, so that whatever else the machine
does hits both, and a turn is as many steps as fit half a second. `memory` is what a process grew by in its steps, as
part of what it grows by on the plain path. Ratios of time above 1: headwise is faster. `--grid` measures the paper's
whole grid, two turns of each cell.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import sys
from statistics import median
from time import perf_counter

CELLS = [(1, 1, 1), (64, 1, 1), (1, 8, 1), (8, 8, 1), (64, 8, 1), (1, 64, 1), (64, 64, 1), (8, 8, 3)]
GRID = [(2**i, modules, layers) for layers in (1, 3, 5) for modules in (1, 8, 64) for i in range(7)]
DIM, POINTS, BATCH, HIDDEN = 64, 16, 256, 2048
REPEATS = 3
TURN_SECONDS = 0.5


# ---- theirs --------------------------------------------------------------------------------------------------------


def reference_model(heads, modules, layers):
    import torch
    from torch import nn

    from headwise.models.blocks import Norm

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attentions = nn.ModuleList(nn.MultiheadAttention(DIM, heads, batch_first=True) for _ in range(modules))
            self.mlp = nn.Sequential(nn.Linear(DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
            self.norms = nn.ModuleList([Norm("unit", DIM), Norm("unit", DIM)])

        def forward(self, x):
            total = sum(attention(x, x, x, need_weights=False)[0] for attention in self.attentions)
            x = self.norms[0](x + total / len(self.attentions))
            return self.norms[1](x + self.mlp(x))

    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(layers)])


def reference_steps(cell, with_data):
    """A generator that does one training step each time it is asked."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Samples(IterableDataset):
        def __iter__(self):
            while True:
                x = torch.nn.functional.normalize(torch.randn(POINTS, DIM), dim=-1)
                yield x, x[(x @ x.T).argmin(-1)]

    torch.set_num_threads(1)
    model = reference_model(*cell)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    batches = iter(DataLoader(Samples(), batch_size=BATCH))
    fixed = next(batches)
    while True:
        x, y = next(batches) if with_data else fixed
        loss = (model(x) - y).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


# ---- ours ----------------------------------------------------------------------------------------------------------


def our_steps(cell, with_data, path=None):
    """What `train` does for one step."""
    import torch

    from headwise.tasks import load_task
    from headwise.training.distributed import Workers
    from headwise.training.loop import _step, build_model
    from headwise.training.machine import use_one_core
    from headwise.training.optim import FlatOptimizer

    use_one_core()
    run = our_run(cell)
    if path:
        run = run.replace(execution=run.execution.replace(path=path))
    task = load_task(run.task)
    model = build_model(run, task)
    optimizer = FlatOptimizer(model, run.recipe)
    if not with_data:
        fixed = task.draw(0, "train", 0, BATCH)
        task = FixedData(task, fixed)
    step = 0
    assert torch.get_num_threads() == 1
    while True:
        _step(run, task, model, optimizer, step, Workers(run))
        step += 1
        yield


class FixedData:
    """The task, with one batch for ever."""

    def __init__(self, task, batch):
        self.training_loss, self.batch = task.training_loss, batch

    def draw(self, *address):
        return self.batch


def our_run(cell):
    from headwise.studies._recipes.neighbors import neighbor_run
    from headwise.studies.rank_cliff import PRESETS
    from headwise.sweep.resolve import fitted
    from headwise.training.run import Execution

    heads, modules, layers = cell
    return fitted([neighbor_run(PRESETS["paper"], layers, modules, DIM // heads, 0)], Execution())[0]


# ---- measuring -----------------------------------------------------------------------------------------------------


class Side:
    """Two processes that train the same cell at once."""

    def __init__(self, kind):
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        for core in range(2):
            here, there = context.Pipe()
            context.Process(target=serve, args=(there, kind, core), daemon=True).start()
            self.pipes.append(here)

    def ask(self, *what):
        for pipe in self.pipes:
            pipe.send(what)
        return [pipe.recv() for pipe in self.pipes]

    def begin(self, cell, with_data):
        self.ask(cell, with_data)

    def step(self):
        """Seconds for one step of a sweep: the two processes share them."""
        return 1 / sum(1 / seconds for seconds in self.ask())


def serve(pipe, kind, core):
    """On a cell, prepare to train it; on None, take a turn and send the time of a step."""
    os.sched_setaffinity(0, {core % os.cpu_count()})
    steps = None
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        if asked:
            del steps
            steps = {"theirs": reference_steps, "ours": our_steps}[kind](*asked)
            next(steps)
        start, done = perf_counter(), 0
        while not done or (perf_counter() - start < TURN_SECONDS and not asked):
            next(steps)
            done += 1
        pipe.send((perf_counter() - start) / done)


def compare(sides, cell, with_data, repeats):
    """Median seconds of a step of each side, in turns."""
    for side in sides.values():
        side.begin(cell, with_data)
    times = {kind: [] for kind in sides}
    for _ in range(repeats):
        for kind, side in sides.items():
            times[kind].append(side.step())
    return {kind: median(values) for kind, values in times.items()}


def grown(pipe, cell, path):
    """Bytes that a process grows by, at most, when it trains the cell."""
    from headwise.training.machine import use_one_core

    use_one_core()
    our_run(cell)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = our_steps(cell, False, path)
    for _ in range(3):
        next(steps)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def memory(cell):
    """What our path needs, as part of what the plain one does."""
    context = multiprocessing.get_context("spawn")
    needed = []
    for path in (None, "plain"):
        here, there = context.Pipe()
        context.Process(target=grown, args=(there, cell, path), daemon=True).start()
        needed.append(here.recv())
    return needed[0] / needed[1]


def gemm_peak():
    """FLOPs per second of a large product on one thread."""
    import torch

    torch.set_num_threads(1)
    a = torch.randn(1024, 1024)
    seconds = []
    for _ in range(10):
        start = perf_counter()
        a @ a
        seconds.append(perf_counter() - start)
    return 2 * 1024**3 / min(seconds)


def row(sides, cell, repeats):
    from headwise.cost import training_flops

    run, peak = our_run(cell), gemm_peak()
    step, whole = compare(sides, cell, False, repeats), compare(sides, cell, True, repeats)
    flops = BATCH * training_flops(run.model_shape, run.options, POINTS)
    return {
        "cell": list(cell),
        "theirs_ms": round(1000 * step["theirs"], 1),
        "ours_ms": round(1000 * step["ours"], 1),
        "step": round(step["theirs"] / step["ours"], 2),
        "end_to_end": round(whole["theirs"] / whole["ours"], 2),
        "part_of_peak": round(flops / (2 * step["ours"]) / peak, 2),
        "memory": round(memory(cell), 2),
    }


def grid(sides, show):
    """Seconds of one step of every cell of the paper's grid, and the ratio of their sums."""
    rows = []
    for cell in GRID:
        times = compare(sides, cell, False, 2)
        rows.append({"cell": list(cell), **{f"{kind}_ms": round(1000 * t, 1) for kind, t in times.items()}})
        rows[-1]["step"] = round(times["theirs"] / times["ours"], 2)
        show(rows[-1])
    totals = {kind: round(sum(r[f"{kind}_ms"] for r in rows) / 1000, 2) for kind in sides}
    return {"rows": rows, "seconds": totals, "step": round(totals["theirs"] / totals["ours"], 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--cells", type=int, default=len(CELLS), help="only the first so many")
    parser.add_argument("--grid", action="store_true", help="the paper's 63 cells instead")
    options = parser.parse_args()

    def say(text):
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    sides = {kind: Side(kind) for kind in ("theirs", "ours")}
    if options.grid:
        say(f"{'cell':>12} {'theirs ms':>10} {'ours ms':>8} {'step':>7}")
        result = grid(sides, lambda r: say("{!s:>12} {:>10} {:>8} {:>6}×".format(*r.values())))
        theirs, ours = result["seconds"].values()
        say(f"one step of all: theirs {theirs} s, ours {ours} s: {result['step']}×")
        return options.json and print(json.dumps(result, indent=2))
    say(
        f"two processes of one thread, {gemm_peak() / 1e9:.0f} GFLOP/s in a large product of one; medians of "
        f"{options.repeats}"
    )
    say(f"{'cell':>12} {'theirs ms':>10} {'ours ms':>8} {'step':>7} {'end to end':>11} {'of peak':>8} {'memory':>7}")
    rows = []
    for cell in CELLS[: options.cells]:
        rows.append(row(sides, cell, options.repeats))
        c, theirs, ours, step, whole, part, needed = rows[-1].values()
        say(f"{c!s:>12} {theirs:>10} {ours:>8} {step:>6}× {whole:>10}× {part:>8.0%} {needed:>7.0%}")
    means = {
        name: round(math.exp(sum(math.log(r[name]) for r in rows) / len(rows)), 2) for name in ("step", "end_to_end")
    }
    say(f"geometric mean: step {means['step']}×, end to end {means['end_to_end']}×")
    return options.json and print(json.dumps({"rows": rows, "geometric_mean": means}, indent=2))


if __name__ == "__main__":
    main()
