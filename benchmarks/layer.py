"""Speed of the layer against other people's, as ratios in one run: above 1, headwise is faster.

    make bench

Each pair alternates, so that whatever else the machine does hits both; the ratio is of medians. Forward and backward of
one layer at conventional shapes, the only ones the others can express.
"""

import argparse
import json
from statistics import median
from time import perf_counter

import torch
from torch import nn

from headwise import Attention, AttentionShape, MultiheadAttention
from headwise.training.machine import keep_memory

REPEATS = 9
CASES = [("w64-h4", 256, 16), ("w256-h8", 16, 128), ("w512-h8", 4, 256), ("w768-h12", 2, 256)]


def torchs(shape):
    layer = nn.MultiheadAttention(shape.width, shape.heads, bias=False, batch_first=True)
    return lambda x: layer(x, x, x, need_weights=False)[0]


def drop_in(shape):
    layer = MultiheadAttention(shape.width, shape.heads, bias=False, batch_first=True)
    return lambda x: layer(x, x, x, need_weights=False)[0]


def x_transformers(shape):
    from x_transformers.x_transformers import Attention as Other

    return Other(dim=shape.width, heads=shape.heads, dim_head=shape.qk_rank, flash=True)


def seconds(layer, x):
    start = perf_counter()
    out = layer(x)
    (out[0] if isinstance(out, tuple) else out).sum().backward()
    return perf_counter() - start


def compare(text, batch, tokens):
    shape = AttentionShape.parse(text)
    layers = {"headwise": Attention(shape), "drop-in": drop_in(shape)}
    layers |= {"torch": torchs(shape), "x-transformers": x_transformers(shape)}
    x = torch.randn(batch, tokens, shape.width, requires_grad=True)
    times = {name: [] for name in layers}
    for _ in range(REPEATS + 2):
        for name, layer in layers.items():
            times[name].append(seconds(layer, x))
    middle = {name: median(values[2:]) for name, values in times.items()}
    return {
        "shape": text,
        "batch": batch,
        "tokens": tokens,
        "milliseconds": round(1000 * middle["headwise"], 2),
        "faster_than_torch": round(middle["torch"] / middle["headwise"], 2),
        "faster_than_x_transformers": round(middle["x-transformers"] / middle["headwise"], 2),
        "drop_in_faster_than_torch": round(middle["torch"] / middle["drop-in"], 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    keep_memory()
    rows = [compare(*case) for case in CASES]
    if options.json:
        return print(json.dumps(rows, indent=2))
    heading = ("shape", "batch", "tokens", "ms", "vs torch", "vs x-transf.", "drop-in vs torch")
    print("{:10} {:>6} {:>7} {:>8} {:>9} {:>13} {:>17}".format(*heading))
    for row in rows:
        shape, batch, tokens, ms, torch_ratio, other, drop = row.values()
        print(f"{shape:10} {batch:>6} {tokens:>7} {ms:>8} {torch_ratio:>8}× {other:>12}× {drop:>16}×")


if __name__ == "__main__":
    main()
