"""The processes of a soak: each is marked in its environment, so that those that outlive their driver are found."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

HERE = Path(__file__).parent
MARK = "HEADWISE_SOAK"
LOOKS, LOOK_SECONDS = 400, 0.2  # until what should end has ended; counted, for a soak may be stopped as a whole
EXITS = (0, 1, 2, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
EXITS += (-signal.SIGUSR1,)  # the sign of a clock that jumps, to a driver that is about to leave and listens no more
KINDS = ("driver", "server", "worker", "tracker", "other")


class Drivers:
    """Processes of one command on one store: one or several drivers, and all that they start."""

    def __init__(self, words, folder, count, settings):
        self.words, self.folder, self.mark = [str(word) for word in words], folder, uuid4().hex
        self.log = folder.with_name(f"{folder.name}.log")  # beside it: the folder may have a full disk
        self.settings = settings
        self.exits = []
        self.all_done = lambda: False  # although the driver that did the last of it was killed before it said so
        self.running = [self.start() for _ in range(count)]
        self.limited = []  # drivers whose files may not grow

    def start(self, **more):
        environment = {MARK: self.mark, "HEADWISE_STORE": str(self.folder / "runs.db"), **self.settings, **more}
        return Driver(self.words, self.folder, self.log, environment)

    def restart(self):
        """Another in the place of each that was killed or refused, and how many; those that have done all leave."""
        left, started = [], 0
        for driver in self.running:
            code = driver.poll()
            if code is not None:
                self.exits.append(code)
            if code is None:
                left.append(driver)
            elif code != 0 and not self.all_done():
                left.append(self.start())
                started += 1
        self.running = left
        return started

    def marked(self):
        """Every living process that a driver has, by what it is."""
        kinds = {kind: [] for kind in KINDS}
        for driver in [driver.pid for driver in self.running if driver.poll() is None]:
            kinds["driver"].append(driver)
            for pid, words in _children(driver):
                kind = "server" if b"forkserver" in words else "tracker" if b"resource_tracker" in words else "other"
                kinds[kind].append(pid)
                kinds["worker"] += [worker for worker, _ in _children(pid)] if kind == "server" else []
        return kinds

    def everything(self):
        """Every living process of theirs, whether or not it has a driver."""
        return [*self.marked()["driver"], *_marked(f"{MARK}={self.mark}".encode())]

    def orphans(self):
        """Those that are still there when no driver is, after a while."""
        for _ in range(LOOKS):
            left = self.everything()
            if not left:
                return 0
            time.sleep(LOOK_SECONDS)
        for pid in left:
            send(pid, signal.SIGKILL)
        return len(left)

    def end(self):
        for driver in (*self.running, *self.limited):
            driver.kill()
            driver.wait()


class Driver:
    """A command in a process of its own, which the nursery has forked."""

    def __init__(self, words, folder, log, environment):
        self.pid = nursery().ask(words=words, folder=str(folder), log=str(log), environment=environment)
        self.code = None

    def poll(self):
        if self.code is None:
            self.code = nursery().ask(ended=self.pid)
        return self.code

    def wait(self):
        while self.poll() is None:
            time.sleep(LOOK_SECONDS)
        return self.code

    def kill(self):
        if self.poll() is None:
            send(self.pid, signal.SIGKILL)


class Nursery:
    """Where drivers come from (`driver.py`); it ends with the soak."""

    def __init__(self):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "driver.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes)

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        return json.loads(self.process.stdout.readline())


@cache
def nursery():
    return Nursery()


def _marked(mark):
    """By their environment, which a process has from the one that started it: all but drivers have this one."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            if mark in (folder / "environ").read_bytes() and _lives(folder):
                yield int(folder.name)


def _children(pid):
    """Those that live, with the words that started them."""
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):
                if _lives(folder := Path("/proc", child)):
                    yield int(child), (folder / "cmdline").read_bytes()


def _lives(process):
    return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
