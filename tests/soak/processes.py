"""The processes of a soak: each is marked in its environment, so that those that outlive their driver are found."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

HERE = Path(__file__).parent
MARK = "HEADWISE_SOAK"
LOOKS, LOOK_SECONDS = 400, 0.2  # until what should end has ended; counted, for a soak may be stopped as a whole
EXITS = (0, 1, 2, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
KINDS = ("driver", "server", "worker", "tracker", "other")


class Drivers:
    """Processes of one command on one store: one or several drivers, and all that they start."""

    def __init__(self, words, folder, count, settings):
        self.words, self.folder, self.mark = [str(word) for word in words], folder, uuid4().hex
        self.settings = settings
        self.exits = []
        self.running = [self.start() for _ in range(count)]
        self.limited = []  # drivers whose files may not grow

    def start(self, **more):
        environment = {**os.environ, MARK: self.mark, "PYTHONPATH": os.pathsep.join(sys.path), **self.settings, **more}
        environment |= {"HEADWISE_STORE": str(self.folder / "runs.db")}
        log = open(self.folder / "drivers.log", "ab")  # noqa: SIM115 (the process's from here on)
        command = [sys.executable, str(HERE / "driver.py"), *self.words]
        with log:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def restart(self):
        """Another in the place of each that was killed or refused, and how many; those that have done all leave."""
        left, started = [], 0
        for driver in self.running:
            code = driver.poll()
            if code is not None:
                self.exits.append(code)
            if code is None:
                left.append(driver)
            elif code != 0:
                left.append(self.start())
                started += 1
        self.running = left
        return started

    def marked(self):
        """Every living process of theirs, by what it is."""
        drivers = {driver.pid for driver in self.running}
        found = dict(_marked(f"{MARK}={self.mark}".encode()))
        servers = {pid for pid, (parent, words) in found.items() if b"forkserver" in words and parent in drivers}
        kinds = {kind: [] for kind in KINDS}
        for pid, (parent, words) in found.items():
            if pid in drivers:
                kinds["driver"].append(pid)
            elif pid in servers:
                kinds["server"].append(pid)
            elif parent in servers:
                kinds["worker"].append(pid)
            else:
                kinds["tracker" if b"resource_tracker" in words and parent in drivers else "other"].append(pid)
        return kinds

    def everything(self):
        return [pid for pids in self.marked().values() for pid in pids]

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


def _marked(mark):
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            if mark not in (folder / "environ").read_bytes():
                continue
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                yield int(folder.name), (int(fields[1]), (folder / "cmdline").read_bytes())


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
