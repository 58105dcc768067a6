"""The command `headwise` as the soak starts it: its clocks jump on SIGUSR1, its files may not grow beyond a limit."""

import os
import random
import resource
import signal
import sys
import time

from headwise.cli.app import main
from headwise.store.leases import Leases

JUMPS = (-1e9, -3600.0, 3600.0, 1e9)
REAL = {name: getattr(time, name) for name in ("time", "monotonic")}
offset = [0.0]


def jump(number, frame):
    offset[0] += random.choice(JUMPS)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, jump)
    for name, real in REAL.items():
        setattr(time, name, lambda real=real: real() + offset[0])
    Leases.__init__.__defaults__ = (lambda: time.monotonic(),)
    if limit := int(os.environ.get("SOAK_FILE_BYTES", "0")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    sys.exit(main())
