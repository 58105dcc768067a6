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
PATIENCE_SECONDS = 60.0  # until what should end has ended, on a busy machine


class Drivers:
    """Processes of one command on one store: one or several drivers, and all that they start."""

    def __init__(self, words, folder, count):
        self.words, self.folder, self.mark = [str(word) for word in words], folder, uuid4().hex
        self.running = [self.start() for _ in range(count)]
        self.limited = []  # drivers whose files may not grow

    def start(self, **settings):
        environment = {**os.environ, MARK: self.mark, "PYTHONPATH": os.pathsep.join(sys.path), **settings}
        environment |= {"HEADWISE_STORE": str(self.folder / "runs.db")}
        log = open(self.folder / "drivers.log", "ab")  # noqa: SIM115 (the process's from here on)
        command = [sys.executable, str(HERE / "driver.py"), *self.words]
        with log:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def restart(self):
        """Another in the place of each that was killed or refused; those that have done all leave."""
        left = []
        for driver in self.running:
            code = driver.poll()
            if code is None:
                left.append(driver)
            else:
                if code != 0:
                    left.append(self.start())
        self.running = left

    def marked(self):
        """Every living process of theirs, by what it is."""
        drivers = {driver.pid for driver in self.running}
        kinds = {"driver": [], "server": [], "worker": []}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError):
                if f"{MARK}={self.mark}".encode() not in (folder / "environ").read_bytes():
                    continue
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if fields[0] in "ZX":
                    continue
                words = (folder / "cmdline").read_bytes()
                server = b"forkserver" in words
                kind = "driver" if int(folder.name) in drivers else "other"
                if server:
                    kind = "server" if int(fields[1]) in drivers or int(fields[1]) == 1 else "worker"
                kinds.setdefault(kind, []).append(int(folder.name))
        return kinds

    def orphans(self):
        """Those that are still there when no driver is, after a while."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            left = [pid for pids in self.marked().values() for pid in pids]
            if not left:
                return 0
            time.sleep(0.2)
        for pid in left:
            send(pid, signal.SIGKILL)
        return len(left)

    def end(self):
        for driver in (*self.running, *self.limited):
            driver.kill()
            driver.wait()


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
