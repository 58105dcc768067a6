"""Training steps on a GPU: the table of `steps.py`, by the usual means there.

    make bench-gpu

bfloat16 by autocast, scaled-dot-product attention, torch.compile, fused AdamW; the same for every side, one after
another in one process, medians of turns that alternate. `memory` is the most that was allocated.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median

WARM_UP, STEPS, REPEATS = 5, 20, 5
MODELS = [("w256-h8-L4", 256, 64), ("w512-h8-L6", 256, 64), ("w768-h12-L12", 1024, 8)]  # shape, tokens, batch


def ours(whole, options):
    import torch

    from headwise import build

    model, loss = build(str(whole), options), torch.nn.functional.cross_entropy
    return lambda x, y: loss(model(x).flatten(0, 1).float(), y.flatten()), model


def stepper(make):
    """A function that does one training step."""
    import torch

    loss, model = make
    model.cuda()
    compiled = torch.compile(loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)

    def step(batch):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            value = compiled(*batch)
        value.backward()
        optimizer.step()

    return step


def milliseconds(step, batch, count):
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        step(batch)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count


def row(shape, tokens, batch):
    import steps
    import torch

    from headwise import ModelShape
    from headwise.cost import training_flops

    whole, options = ModelShape.parse(shape), steps.options_of("gpt2", tokens)
    sizes = (whole.layers[0], options, whole.depth)
    sides = {"headwise": stepper(ours(whole, options)), "gpt2": stepper(steps.hugging_face("gpt2", *sizes))}
    if steps.nanogpt_file():
        sides["nanogpt"] = stepper(steps.nanogpt(*sizes))
    given, times = tuple(part.cuda() for part in steps.data("gpt2", options, batch)), {kind: [] for kind in sides}
    needed = {}
    for kind, step in sides.items():
        torch.cuda.reset_peak_memory_stats()
        milliseconds(step, given, WARM_UP)
        needed[kind] = torch.cuda.max_memory_allocated()
    for _ in range(REPEATS):
        for kind, step in sides.items():
            times[kind].append(milliseconds(step, given, STEPS))
    middle = {kind: round(median(values), 2) for kind, values in times.items()}
    speed = batch * training_flops(whole, options, tokens) / middle["headwise"] / 1e9  # TFLOP/s
    result = {"shape": shape, "tokens": tokens, "batch": batch, "ms": middle, "tflops": round(speed, 1)}
    return (
        result
        | {"faster_than": {kind: round(ms / middle["headwise"], 2) for kind, ms in middle.items() if ms}}
        | {"bytes": needed}
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print(
            "headwise: torch finds no GPU on this machine, so there is nothing to measure; make bench measures the CPU"
        )
        return
    sys.path.insert(0, str(Path(__file__).parent))
    rows = [row(*model) for model in MODELS]
    if options.json:
        return print(json.dumps(rows, indent=2))
    for one in rows:
        print(json.dumps(one))


if __name__ == "__main__":
    main()
