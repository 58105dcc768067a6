"""C++ that is compiled on the machine it runs on, for one size, and kept in the machine's cache.

A size says which source, and has a field for each of its macros: `NormSize(width=64)`. Compiling takes a second or two,
once per machine, and needs g++ or clang++. A processor may advertise instructions that it cannot run, so before
anything else a child process runs one of them (`tried`).
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headwise.layers.cpu.kernel_cache import compile_into, discard, is_sound, kernel_folder, notice

if TYPE_CHECKING:
    from torch import Tensor

COMPILERS = ("g++", "clang++", "c++")
FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class KernelSize:
    """What a kernel is compiled for; subclasses add their source and their sizes."""

    source: ClassVar[str]
    real: str = "float"  # the type of its numbers


@dataclass(frozen=True, kw_only=True)
class AttentionSize(KernelSize):
    source: ClassVar[str] = "tiled_attention"
    tokens: int
    width: int
    qk_rank: int
    v_rank: int
    group: int  # heads at a time
    unit: int  # columns at a time: whole samples
    merged: bool  # queries and keys as one matrix, values and outputs as another


@dataclass(frozen=True, kw_only=True)
class StripSize(KernelSize):
    source: ClassVar[str] = "strip_attention"
    qk_rank: int
    v_rank: int


@dataclass(frozen=True, kw_only=True)
class MLPSize(KernelSize):
    source: ClassVar[str] = "tiled_mlp"
    width: int
    activation: str  # as activations.h calls it
    gated: bool


@dataclass(frozen=True, kw_only=True)
class WideMLPSize(KernelSize):
    source: ClassVar[str] = "wide_mlp"
    activation: str  # as activations.h calls it
    gated: bool


@dataclass(frozen=True, kw_only=True)
class NormSize(KernelSize):
    source: ClassVar[str] = "tiled_norm"
    width: int
    kind: str  # as tiled_norm.cpp calls it


@dataclass(frozen=True, kw_only=True)
class CrossEntropySize(KernelSize):
    source: ClassVar[str] = "cross_entropy"
    capped: bool


MACROS = {
    "real": "REAL",
    "tokens": "N",
    "width": "W",
    "qk_rank": "R",
    "v_rank": "V",
    "group": "GROUP",
    "unit": "UNIT",
    "merged": "MERGED",
    "activation": "ACTIVATION",
    "gated": "GATED",
    "kind": "KIND",
    "capped": "CAPPED",
}


def uncompiled(sizes: Iterable[KernelSize]) -> list[KernelSize]:
    """Those that this machine has not compiled yet."""
    return [size for size in sorted(set(sizes), key=_command) if not is_sound(_place(_command(size)))]


def prepare(sizes: Iterable[KernelSize]) -> None:
    """Compile them all at once, before workers need them one by one; what fails is their fallback's (`usable`)."""

    def attempt(size: KernelSize) -> None:
        with suppress(OSError, subprocess.SubprocessError):
            _compiled(size)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(attempt, sizes))


@cache
def library(size: KernelSize) -> Any:
    """The compiled source; its functions take addresses and numbers, and return nothing."""
    try:
        return ctypes.CDLL(str(_compiled(size)))
    except OSError:  # whole, but not for this system
        discard(_place(_command(size)))
        return ctypes.CDLL(str(_compiled(size)))


@cache
def usable(size: KernelSize) -> bool:
    """Whether it can be compiled and loaded here; if not, a warning says why, once."""
    try:
        library(size)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        reason = next((line for line in said if "error" in line), str(error))
        notice(f"{size} could not be compiled or loaded ({reason})")
        return False
    return True


def call(function: Any, tensors: Sequence["Tensor | None"], *numbers: int | float) -> None:
    """A compiled function of tensors (None is no address) and numbers."""
    if function.argtypes is None:
        kinds = [ctypes.c_double if isinstance(number, float) else ctypes.c_long for number in numbers]
        function.argtypes = [*[ctypes.c_void_p] * len(tensors), *kinds]
        function.restype = None
    function(*(None if tensor is None else tensor.data_ptr() for tensor in tensors), *numbers)


def tried(size: KernelSize, code: str) -> None:
    """Run `code` in a child process, with the compiled source as its argument; an error if that dies."""
    command = [sys.executable, "-c", code, str(_compiled(size))]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _compiled(size: KernelSize) -> Path:
    command = _command(size)
    place = _place(command)
    if not is_sound(place):
        _compile(command)
    return place


def _command(size: KernelSize) -> list[str]:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError(f"no C++ compiler: none of {', '.join(COMPILERS)} is on the path")
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    flags = ["-O3", native, "-std=c++17", "-ffp-contract=fast", "-shared", "-fPIC"]
    return [compiler, *flags, *_macros(size), str(FOLDER / f"{size.source}.cpp")]


def _macros(size: KernelSize) -> list[str]:
    values = {field.name: getattr(size, field.name) for field in fields(size)}
    texts = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
    return [f"-D{MACROS[name]}={text}" for name, text in texts.items()]


def _place(command: list[str]) -> Path:
    """Where the machine keeps what a command compiles; its processor is part of the name, since homes are shared."""
    sources = [path.read_text() for path in (Path(command[-1]), *sorted(FOLDER.glob("*.h")))]
    name = hashlib.sha256("\0".join([*command[:-1], processor(), _instructions(), *sources]).encode()).hexdigest()[:24]
    return kernel_folder() / f"{name}.so"


def processor() -> str:
    """Its name, as the system gives it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        import platform

        return platform.processor() or "unknown"


@cache
def _instructions() -> str:
    """Which ones the processor says it has: its name alone may be that of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(command: list[str]) -> None:
    compile_into(_place(command), command)
