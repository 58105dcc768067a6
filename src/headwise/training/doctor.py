"""What this machine can do: devices, memory, precisions that are safe, and the kernel a shape gets."""

import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from platformdirs import user_cache_dir
from torch.nn.attention import SDPBackend, sdpa_kernel

from headwise.known import find
from headwise.layers.cpu import tiled
from headwise.layers.functional import pad_ranks
from headwise.shape import AttentionShape
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.training import machine
from headwise.training.run import Run

PROBE_SECONDS = 60
USUAL_SHAPES = ("w512-h8", "w512-h8-g2", "w512-h8-r64-v128", "w512-h512")
_KERNELS = {
    SDPBackend.CUDNN_ATTENTION: "cudnn",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "memory-efficient",
    SDPBackend.MATH: "math",
}


@dataclass(frozen=True)
class Precision:
    """Whether a type can be used here: `safe` is proven by running it; `speed` is relative to float32."""

    name: str
    safe: bool
    speed: float | None
    why: str


@dataclass(frozen=True)
class Kernel:
    """Which of torch's attention kernels a shape gets, and what keeps the faster ones away."""

    shape: str
    device: str
    kernel: str
    why: str


def devices() -> list[str]:
    """The processor, then every accelerator torch sees."""
    names = [f"cpu ({platform.processor() or platform.machine()}, {os.cpu_count()} cores, {_memory()})"]
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        names.append(f"cuda:{i} ({properties.name}, {properties.total_memory / 2**30:.0f} GiB)")
    if torch.backends.mps.is_available():
        names.append("mps (Apple)")
    return names


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError, AttributeError):
        return "memory unknown"


# ---- precisions ----------------------------------------------------------------------------------------------------

# Some processors advertise instructions they cannot run: the first bfloat16 product kills the process. So a child
# process tries it, and says how long it took.
_PROBE = """
import time, torch
torch.set_num_threads(1)
def seconds(dtype):
    a = torch.randn(384, 384).to(dtype)
    best = 1e9
    for _ in range(8):
        start = time.perf_counter(); b = a @ a; best = min(best, time.perf_counter() - start)
    assert b.isfinite().all()
    return best
print(seconds(torch.float32) / seconds(torch.{name}))
"""


def probe_precision(name: str) -> Precision:
    """Run a product of that type in a child process."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE.replace("{name}", name)],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Precision(name, False, None, f"no answer in {PROBE_SECONDS} seconds")
    if done.returncode < 0:
        return Precision(name, False, None, f"killed by signal {-done.returncode}: the processor cannot run it")
    if done.returncode:
        return Precision(name, False, None, done.stderr.strip().splitlines()[-1])
    speed = float(done.stdout)
    return Precision(name, True, speed, f"{speed:.2g} × the speed of float32 in a product")


def worth_using(name: str) -> bool:
    """Whether a type is safe and faster here."""
    tried = _remembered(name)
    return bool(tried["safe"] and (tried["speed"] or 0.0) > 1.1)


def _remembered(name: str) -> dict[str, Any]:
    """How a trial of a type ended: made once for a processor and a version of torch."""
    memory = Path(user_cache_dir("headwise")) / "precisions.json"
    key = f"{name}, torch {torch.__version__}, {machine.environment()['processor']}"
    try:
        known = dict(json.loads(memory.read_text()))
    except (OSError, ValueError, TypeError):
        known = {}
    if not isinstance(known.get(key), dict):
        tried = probe_precision(name)
        known[key] = {"safe": tried.safe, "speed": tried.speed}
        with suppress(OSError):  # an unwritable cache only means trying again
            memory.parent.mkdir(parents=True, exist_ok=True)
            memory.write_text(json.dumps(known))
    return dict(known[key])


def check_runnable(run: Run) -> None:
    """A run as it is given names its own devices and precision: refuse what would kill this process, or hang it."""
    execution = run.execution
    started = os.environ.get("WORLD_SIZE", "1")
    if started != str(execution.devices):
        raise SpecError(
            f"the run is shared by {execution.devices} processes, and {started} was started: "
            f"torchrun --nproc-per-node {execution.devices} -m headwise train RUN.json starts as many"
        )
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here[execution.device]:
        raise SpecError(f"the run is for {execution.device}, which is not there; headwise doctor lists what is")
    if (execution.device, execution.precision) == ("cpu", "bfloat16") and not _remembered("bfloat16")["safe"]:
        raise SpecError("the run is in bfloat16, which is not safe on this processor; headwise doctor says why")


def precisions() -> list[Precision]:
    """float32 always works; the others are tried on the processor, and asked about on CUDA."""
    known = [Precision("float32", True, 1.0, "the reference")]
    known += [probe_precision(name) for name in ("bfloat16", "float16")]
    if torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        known.append(Precision("bfloat16 on cuda", native, None, "native" if native else "this GPU only emulates it"))
    return known


# ---- kernels -------------------------------------------------------------------------------------------------------


def kernel_for(shape: AttentionShape, device: str = "cpu", dropout: float = 0.0) -> Kernel:
    """Try torch's kernels from the fastest on, with the tensors this shape would give them."""
    half = torch.bfloat16 if device.startswith("cuda") else torch.float32
    sizes = [(shape.heads, shape.qk_rank), (shape.kv_heads, shape.qk_rank), (shape.kv_heads, shape.v_rank)]
    tensors = [torch.randn(1, heads, 16, rank, device=device, dtype=half) for heads, rank in sizes]
    if device.startswith("cuda"):
        tensors = [pad_ranks(tensor) for tensor in tensors]
    reasons: list[str] = []
    for backend, name in _KERNELS.items():
        refused = _refusal(backend, tensors, dropout, shape.group > 1)
        if refused is None:
            why = "the fastest there is" if name != "math" else "; ".join(dict.fromkeys(reasons))
            return Kernel(str(shape), device, name, why)
        reasons += refused
    raise RuntimeError(f"no attention kernel at all for {shape} on {device}")


def _refusal(backend: SDPBackend, tensors: list[torch.Tensor], dropout: float, shared: bool) -> list[str] | None:
    """None where the kernel runs, else what torch says against it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel([backend]):
                query, key, value = tensors
                F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, enable_gqa=shared)
            return None
        except RuntimeError:
            said = [str(warning.message).split("(Triggered")[0].strip() for warning in caught]
            return [one for one in said if one and not one.endswith("because:")]


@dataclass(frozen=True)
class Examination(Shown):
    """What this machine can do."""

    python: str
    torch: str
    devices: list[str]
    threads: int
    precisions: list[Precision]
    training: str  # which kernels train on the processor
    kernels: list[Kernel]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def records(self) -> list[dict[str, Any]]:
        return [asdict(kernel) for kernel in self.kernels]

    @property
    def headline(self) -> str:
        return f"Python {self.python}, torch {self.torch}, {self.threads} threads"


def doctor(shapes: Sequence[str | AttentionShape] = USUAL_SHAPES) -> Examination:
    """Devices, precisions that are safe, and which of torch's attention kernels each shape gets here.

    A shape is written like `w512-h8-v128`, is a known model's name, or an `AttentionShape`.
    """
    layers = [find(shape).shape.layers[0] if isinstance(shape, str) else shape for shape in shapes]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Examination(
        python=platform.python_version(),
        torch=torch.__version__,
        devices=devices(),
        threads=torch.get_num_threads(),
        precisions=precisions(),
        training="compiled here" if tiled.works() else "torch's kernels, because no C++ compiler works here",
        kernels=[kernel_for(layer, device) for layer in layers],
    )
