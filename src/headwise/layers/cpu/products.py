"""Products with weights, by whichever of torch's two libraries is faster on this processor.

Torch takes MKL for float32, which on processors that Intel did not make leaves the wider vectors unused: on one with
AVX-512 it reaches 110 to 120 GFLOP/s of 275 at every size, and oneDNN, which torch has too, 210 to 255. Which one is
taken is found out once per machine, in a child process (instructions that a processor cannot run kill it), and kept
in the machine's cache: then a run that is resumed multiplies as it did before.
"""

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from platformdirs import user_cache_dir
from torch import Tensor

from headwise.layers.cpu.compiled import processor

CLEARLY_FASTER = 1.25  # times: where they are about equal, torch's own choice stays
SECONDS = 60
_RACE = """
import time, torch
torch.set_num_threads(1)
torch.set_grad_enabled(False)
x, w = torch.randn(2048, 64), torch.randn(256, 64)
linear = torch.ops.mkldnn._linear_pointwise
ways = [lambda: torch.nn.functional.linear(x, w), lambda: linear(x, w, None, "none", [], "")]
assert torch.allclose(ways[0](), ways[1](), rtol=1e-4, atol=1e-4)
best = [float("inf")] * 2
for turn in range(40):
    start = time.perf_counter()
    ways[turn % 2]()
    best[turn % 2] = min(best[turn % 2], time.perf_counter() - start)
print(best[0] / best[1])
"""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (N, K) times weight (M, K) transposed, plus bias: (N, M). No derivatives: callers have their own."""
    if x.dtype == torch.float32 and onednn_wins():
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return result
    return F.linear(x, weight, bias)


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """gradient (N, M) transposed times x (N, K): (M, K). The smaller factor is the one to be transposed."""
    if gradient.dtype != torch.float32 or not onednn_wins():
        return gradient.mT @ x
    if x.shape[1] < gradient.shape[1]:
        return linear(x.mT, gradient.mT).mT
    return linear(gradient.mT, x.mT)


@cache
def onednn_wins() -> bool:
    """Whether oneDNN's products are clearly faster here than those torch would take."""
    place = _verdict()
    try:
        return bool(json.loads(place.read_text())["ratio"] >= CLEARLY_FASTER)
    except (OSError, ValueError, KeyError):
        ratio = _race()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"ratio": ratio}))
        part.replace(place)
    except OSError:  # a cache that cannot be written: the next process asks again
        pass
    return ratio >= CLEARLY_FASTER


def _race() -> float:
    """MKL's time over oneDNN's, 0 if that fails or gives other numbers."""
    try:
        told = subprocess.run(
            [sys.executable, "-c", _RACE], check=True, capture_output=True, text=True, timeout=SECONDS
        ).stdout
        return float(told)
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0.0


def _verdict() -> Path:
    """Where the machine keeps it: its processor and torch's version are part of the name."""
    settings = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(("MKL_", "ONEDNN_"))]
    name = hashlib.sha256("\0".join([processor(), torch.__version__, *settings]).encode()).hexdigest()[:24]
    return Path(user_cache_dir("headwise")) / "products" / f"{name}.json"
