"""The rank paper's grid, a training step at a time, against the model as its authors wrote it.

    make bench

A cell is (heads of a module, modules, layers); rank = 64 / heads; d 64, N 16, batch 256, MLP 2048. The reference is
torch's encoder layer with its one attention replaced by `modules` nn.MultiheadAttention, called in a Python loop and
averaged. `step` compares training steps on given data; `end to end` adds the data: theirs from a DataLoader over a
generator of single samples, ours drawn by the task. Each side is a process of one thread, as it would be run; they take
turns, so that whatever else the machine does hits both. Ratios above 1: headwise is faster.
"""

import argparse
import json
import math
import multiprocessing
from statistics import median
from time import perf_counter

CELLS = [(1, 1, 1), (64, 1, 1), (1, 8, 1), (8, 8, 1), (64, 8, 1), (1, 64, 1), (64, 64, 1), (8, 8, 3)]
DIM, POINTS, BATCH, HIDDEN = 64, 16, 256, 2048
REPEATS = 5


# ---- theirs --------------------------------------------------------------------------------------------------------


def reference_model(heads, modules, layers):
    import torch
    from torch import nn

    from headwise.models.blocks import UnitNorm

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attentions = nn.ModuleList(nn.MultiheadAttention(DIM, heads, batch_first=True) for _ in range(modules))
            self.mlp = nn.Sequential(nn.Linear(DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
            self.norms = nn.ModuleList([UnitNorm(), UnitNorm()])

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


def our_steps(cell, with_data):
    """What `train` does for one step."""
    import torch

    from headwise.machine import use_one_core
    from headwise.optim import FlatOptimizer
    from headwise.tasks import load
    from headwise.train import _step, _Workers, build_model

    use_one_core()
    run = our_run(cell)
    task = load(run.task)
    model = build_model(run, task)
    optimizer = FlatOptimizer(model, run.recipe)
    if not with_data:
        fixed = task.draw(0, "train", 0, BATCH)
        task = FixedData(task, fixed)
    step = 0
    assert torch.get_num_threads() == 1
    while True:
        _step(run, task, model, optimizer, step, _Workers(run))
        step += 1
        yield


class FixedData:
    """The task, with one batch for ever."""

    def __init__(self, task, batch):
        self.loss, self.batch = task.loss, batch

    def draw(self, *address):
        return self.batch


def our_run(cell):
    from headwise.conduct import fitted
    from headwise.run import Execution
    from headwise.studies.rank_cliff import PRESETS, run_of

    heads, modules, layers = cell
    return fitted([run_of(PRESETS["paper"], layers, modules, DIM // heads, 0)], Execution())[0]


# ---- measuring -----------------------------------------------------------------------------------------------------


def serve(pipe, kind, cell, with_data):
    steps = {"theirs": reference_steps, "ours": our_steps}[kind](cell, with_data)
    next(steps)
    next(steps)
    while pipe.recv():
        start = perf_counter()
        next(steps)
        pipe.send(perf_counter() - start)


def compare(cell, with_data, repeats):
    """Median seconds of a step of each side, in turns."""
    context = multiprocessing.get_context("spawn")
    sides = {}
    for kind in ("theirs", "ours"):
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, kind, cell, with_data), daemon=True)
        process.start()
        sides[kind] = (process, here)
    times = {kind: [] for kind in sides}
    for _ in range(repeats):
        for kind, (_, pipe) in sides.items():
            pipe.send(True)
            times[kind].append(pipe.recv())
    for process, pipe in sides.values():
        pipe.send(False)
        process.join()
    return {kind: median(values) for kind, values in times.items()}


def gemm_peak():
    """FLOPs a second of a large product on one thread."""
    import torch

    torch.set_num_threads(1)
    a = torch.randn(1024, 1024)
    seconds = []
    for _ in range(10):
        start = perf_counter()
        a @ a
        seconds.append(perf_counter() - start)
    return 2 * 1024**3 / min(seconds)


def row(cell, repeats, peak):
    from headwise.cost import forward_flops

    run = our_run(cell)
    step, whole = compare(cell, False, repeats), compare(cell, True, repeats)
    flops = 3 * BATCH * forward_flops(run.model_shape, run.options, POINTS)
    return {
        "cell": list(cell),
        "theirs_ms": round(1000 * step["theirs"], 1),
        "ours_ms": round(1000 * step["ours"], 1),
        "step": round(step["theirs"] / step["ours"], 2),
        "end_to_end": round(whole["theirs"] / whole["ours"], 2),
        "part_of_peak": round(flops / step["ours"] / peak, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--cells", type=int, default=len(CELLS), help="only the first so many")
    options = parser.parse_args()
    peak = gemm_peak()
    if not options.json:
        print(f"one thread, {peak / 1e9:.0f} GFLOP/s in a large product; medians of {options.repeats} steps in turns")
        print(f"{'cell':>12} {'theirs ms':>10} {'ours ms':>8} {'step':>7} {'end to end':>11} {'of peak':>8}")
    rows = []
    for cell in CELLS[: options.cells]:
        rows.append(row(cell, options.repeats, peak))
        if not options.json:
            c, theirs, ours, step, whole, part = rows[-1].values()
            print(f"{c!s:>12} {theirs:>10} {ours:>8} {step:>6}× {whole:>10}× {part:>7.0%}", flush=True)
    means = {
        name: round(math.exp(sum(math.log(r[name]) for r in rows) / len(rows)), 2) for name in ("step", "end_to_end")
    }
    if options.json:
        return print(json.dumps({"peak_flops": peak, "rows": rows, "geometric_mean": means}, indent=2))
    print(f"geometric mean: step {means['step']}×, end to end {means['end_to_end']}×")


if __name__ == "__main__":
    main()
