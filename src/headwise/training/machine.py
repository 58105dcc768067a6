"""What this machine allows, and how a process should use it.

Measured on CPUs: big steps spend most of their time in page faults, because the allocator gives memory back to the
system after every step; and two processes of one thread each beat one process of two threads.
"""

import ctypes
import hashlib
import os
import platform
import sys
import time
from functools import cache
from pathlib import Path


def use_one_core() -> None:
    """For a worker: one thread, and memory that is kept between steps. One thread is also bit-reproducible."""
    import torch

    torch.set_num_threads(1)
    keep_memory()


def keep_memory() -> None:
    """Tell glibc to reuse freed memory instead of returning it; elsewhere nothing happens."""
    if not sys.platform.startswith("linux"):
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no separate mapping for large blocks
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: never shrink the heap
    except (OSError, AttributeError):  # another C library: the default behaviour is only slower
        return


def environment() -> dict[str, str]:
    """What a number may depend on beside its run: versions and the kind of machine."""
    import numpy
    import torch

    import headwise
    from headwise.layers.cpu.compiled import processor

    facts = {
        "headwise": headwise.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": str(os.cpu_count()),
    }
    if torch.cuda.is_available():
        facts["cuda"] = torch.cuda.get_device_name()
    return facts


def reset_peak_memory(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()


def synchronize(device: str) -> None:
    """Wait until the device has done what it was asked for: only then does a clock tell how long that took."""
    import torch

    if device != "cpu":
        getattr(torch, device).synchronize()


def peak_memory(device: str) -> int:
    """Bytes: of the device where torch counts them, else of the whole process so far."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---- processes in time and by name -----------------------------------------------------------------------------------


class Awake:
    """A clock for patience: it goes on only while this process is there to look at it.

    Where the process was stopped for an hour (Ctrl-Z, a machine that slept) between two looks, so were others, perhaps:
    what was not heard in that hour is no sign that anything is wrong.
    """

    LONGEST = 10.0  # seconds between two looks that count

    def __init__(self) -> None:
        self.looked, self.seconds = time.monotonic(), 0.0

    def __call__(self) -> float:
        now = time.monotonic()
        self.seconds += min(max(now - self.looked, 0.0), self.LONGEST)
        self.looked = now
        return self.seconds


def process_name(pid: int) -> str:
    """A name that no other process ever has, on any machine; it can stand in the name of a file."""
    return "-".join((*_machine(), str(pid), str(_started(pid) or 0)))


def is_gone(name: str) -> bool:
    """Whether the process of that name is known to have ended: it was on this machine, and is not there any more."""
    host, boot, pid, started = (name.split("-") + [""] * 4)[:4]
    if host != _machine()[0] or sys.platform == "win32" or not (pid.isdigit() and started.isdigit()):
        return False
    return boot != _machine()[1] or _started(int(pid)) != int(started)


@cache
def _machine() -> tuple[str, str]:
    """Which one, and which of its starts. Containers may share a host's name, but not the numbers of processes."""
    try:
        space, boot = os.readlink("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        space = boot = ""
    host, boot = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in (platform.node() + space, boot))
    return host, boot


def _started(pid: int) -> int | None:
    """When a process began, in the system's ticks; 0 where it does not say, None where there is no such process."""
    if Path("/proc/self/stat").exists():  # elsewhere than on Linux there is none
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return None if fields[0] in "ZX" else int(fields[19])
        except (OSError, IndexError, ValueError):
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:  # another user's
        pass
    return 0
