"""What drawing a batch costs beside the training step that waits for it, for every task at its usual shape.

    make bench

One thread; medians of draws and of whole steps, in turns. A part above 10 % means that training waits for data.
"""

import argparse
import json
from statistics import median
from time import perf_counter

BATCH, REPEATS = 64, 7


def timed(action):
    start = perf_counter()
    action()
    return perf_counter() - start


def row(name):
    from headwise.tasks import load_task
    from headwise.training.distributed import Workers
    from headwise.training.loop import _step, build_model
    from headwise.training.optim import FlatOptimizer
    from headwise.training.run import Recipe, Run

    task = load_task({"name": name})
    run = Run(
        task=task.spec(),
        shape=task.usual_shape,
        options=task.default_options(),
        recipe=Recipe(batch=BATCH),
        steps=100,
    )
    model = build_model(run, task)
    optimizer, workers = FlatOptimizer(model, run.recipe), Workers(run)
    draws, steps = [], []
    for index in range(REPEATS + 2):
        draws.append(timed(lambda index=index: task.draw(0, "train", 1000 + index, BATCH)))
        steps.append(timed(lambda index=index: _step(run, task, model, optimizer, index, workers)))
    return median(draws[2:]), median(steps[2:])


def main():
    from headwise.tasks import names
    from headwise.training.machine import use_one_core

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    use_one_core()
    rows = {name: row(name) for name in names()}
    if options.json:
        return print(
            json.dumps([{"task": n, "draw": draw, "step": step} for n, (draw, step) in rows.items()], indent=2)
        )
    print(f"{'task':>18} {'draw ms':>8} {'step ms':>8} {'part':>6}   batches of {BATCH}, one thread")
    for name, (draw, step) in rows.items():
        print(f"{name:>18} {1000 * draw:>8.2f} {1000 * step:>8.1f} {draw / step:>6.1%}")


if __name__ == "__main__":
    main()
