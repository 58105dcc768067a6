"""The command `headwise` as the soak starts it: a process that has loaded what commands load forks one for each.

    {"words": ["study", ...], "folder": ..., "log": ..., "environment": {...}}   a line that starts one: its process id
    {"ended": 123}                                           its exit code, or null where it lives

Loading torch takes most of a driver's processor time, and a driver that is killed has to do it again. What a driver
does with its own processes, its files and its store is as ever. What takes its time is quicker here, so that faults
meet it: checkpoints, leases, healing by steps. Clocks jump on SIGUSR1; files may not grow beyond a limit.
"""

import json
import os
import random
import resource
import signal
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path

LOADED = "headwise.cli.app", "headwise.sweep.worker", "headwise.checkpoints.conversion", "torch._dynamo"
JUMPS = (-1e9, -3600.0, 3600.0, 1e9)
REAL = {name: getattr(time, name) for name in ("time", "monotonic")}
offset = dict.fromkeys(REAL, 0.0)


def jump(number, frame):
    """The time of day goes anywhere; the other clock only ever goes on."""
    seconds = random.choice(JUMPS)
    offset["time"] += seconds
    offset["monotonic"] += max(0.0, seconds)


def hasten_sweeps(deaths):
    """A run is checkpointed often, may die often, a driver without a sign is soon taken for lost; and no charts."""
    from headwise.comparison.answer import Answer
    from headwise.store import leases
    from headwise.sweep import drive, local, processes, ray_cluster

    Answer._drawn = lambda self, *given: self
    drive.conduct.__kwdefaults__["checkpoint_seconds"] = 0.3
    leases.BEAT_SECONDS, leases.LOST_SECONDS = 0.5, 4.0
    local.DEATHS = processes.DEATHS = ray_cluster.DEATHS = deaths
    local.SERVER_DEATHS = ray_cluster.NODE_DEATHS = 1000


def hasten_healing():
    """A sign that the work has begun; states that are saved often."""
    from headwise.checkpoints import conversion

    made = conversion.Converter.__init__
    conversion.healing.SAVE_SECONDS = 0.5
    conversion.Converter.__init__ = lambda *given: (Path(f"begun.{os.getpid()}").touch(), made(*given))[1]
    conversion.convert.__kwdefaults__["steps"] = 20


def nursery():
    """Start drivers and tell how they ended, as lines ask for it; returns in each driver, and ends with the soak."""
    for name in LOADED:
        import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        if "ended" in asked:
            pid, status = os.waitpid(asked["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                return asked
        print(json.dumps(answer), flush=True)
    sys.exit()


def become(words, folder, log, environment):
    """What a process is that a shell has started."""
    for file, mode, places in ((os.devnull, "rb", [0]), (log, "ab", [1, 2])):
        with open(file, mode) as opened:
            for place in places:
                os.dup2(opened.fileno(), place)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = ["headwise", *words]


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, jump)  # before there is a driver that it may be sent to
    become(**nursery())
    for name, real in REAL.items():
        setattr(time, name, partial(lambda name, real: real() + offset[name], name, real))
    if limit := int(os.environ.get("SOAK_FILE_BYTES", "0")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if sys.argv[1] == "convert":
        hasten_healing()
    else:
        hasten_sweeps(int(os.environ["SOAK_DEATHS"]))
    sys.exit(import_module("headwise.cli.app").main())
