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
