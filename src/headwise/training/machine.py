"""What this machine allows, and how a process should use it.

Measured on CPUs: big steps spend most of their time in page faults, because the allocator gives memory back to the
system after every step; and two processes of one thread each beat one process of two threads.
"""

import ctypes
import sys


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
    import os
    import platform

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
