"""A round: a command on a fresh store, faults while it runs, the same command until it ends, and what became of it."""

import shutil
import signal
import time
from collections import Counter
from contextlib import suppress

from headwise.spec import SpecError
from headwise.store.store import Store
from soak.faults import FAULTS, WEIGHTS
from soak.processes import HERE, Drivers, send

STUDY = ("study", "run", "study.py", "--preset", "smoke", "--workers", "2", "--device", "cpu")
COMPARE = ("compare", "--task", "nearest-neighbor,dim=8,points=6", "--base", "w8-h2-m16", "--arms", "w8-h1-m16")
COMPARE += ("--steps", "300", "--seeds", "3", "--lr", "0.003,0.01", "--batch-size", "16", "--workers", "2")
WORK = {"study run": STUDY, "compare": COMPARE}
FAULTS_A_ROUND = (10, 30)


def prepared(folder):
    folder.mkdir(parents=True)
    shutil.copyfile(HERE / "study.py", folder / "study.py")
    return folder


def rows_of(folder):
    """Finished rows by key: when each was written, and its numbers. A file that is not there yet has none."""
    if not (folder / "runs.db").exists():
        return {}
    with Store(folder / "runs.db") as store:
        written = dict(store._query("SELECT key, created FROM runs WHERE status != 'failed'"))
        results = {result.key: result for _, result in store.runs() if result.status != "failed"}
        return {key: (written[key], result.metrics, result.curve) for key, result in results.items()}


def reference(words, folder):
    """The same command without faults: what every round must come to."""
    drivers = Drivers(words, prepared(folder), 1)
    if drivers.running[0].wait():
        raise SystemExit((folder / "drivers.log").read_text())
    return {key: row[1:] for key, row in rows_of(folder).items()}


class Round:
    """One command, some drivers, some faults."""

    def __init__(self, work, expected, folder, drivers, chance):
        self.expected, self.folder, self.chance = expected, prepared(folder), chance
        self.drivers = Drivers(self.words(work), folder, drivers)
        self.counts, self.seen, self.rewritten = Counter(), {}, set()

    def words(self, work=""):
        return WORK[work]

    def attack(self, until):
        """Faults at random moments, each after a sign of work; then the commands are left in peace until they end."""
        for _ in range(self.chance.randint(*FAULTS_A_ROUND)):
            if not self._wait_for_work(until):
                break
            time.sleep(self.chance.uniform(0.0, 1.0))
            (name,) = self.chance.choices(list(FAULTS), WEIGHTS)
            self.counts[name] += bool(FAULTS[name](self.drivers, self.chance))
            self._look()
        self._wait_until_ended()
        return self.counts

    def _wait_until_ended(self):
        while self.drivers.running:
            self.drivers.restart()
            time.sleep(0.1)

    def _wait_for_work(self, until):
        """Until a worker is there, starting what was killed again; no longer than the soak has."""
        while time.monotonic() < until:
            self.drivers.restart()
            if not self.drivers.running:
                return False
            if self.drivers.marked()["worker"]:
                return True
            time.sleep(0.1)
        return False

    def _look(self):
        """What is committed stays as it is."""
        with suppress(SpecError):
            now = rows_of(self.folder)
            self.rewritten |= {key for key, row in self.seen.items() if now.get(key) != row}
            self.seen = now

    def verdict(self):
        """At the end: all of these should be 0."""
        refused = [driver.wait() for driver in self.drivers.limited]
        orphans = self.drivers.orphans()
        final = rows_of(self.folder)
        self._look()
        with Store(self.folder / "runs.db") as store:
            sound = store._query("PRAGMA integrity_check") == [("ok",)]
            leases = store._query("SELECT count(*) FROM leases")[0][0]
        kept = ("drivers.log", "study.py", "runs.db", "runs.db-wal", "runs.db-shm")
        files = [file for file in self.folder.rglob("*") if file.is_file() and file.name not in kept]
        left = [
            file for file in files if file.suffix in (".new", ".partial", ".damaged") or "checkpoints" in file.parts
        ]
        wrong = sum(1 for key, row in final.items() if key in self.expected and row[1:] != self.expected[key])
        return {
            "runs lost": len(self.expected.keys() - final.keys()),
            "runs duplicated or rewritten": len(self.rewritten) + len(final.keys() - self.expected.keys()),
            "runs differing": wrong,
            "orphans": orphans,
            "leftovers": len(left) + leases,
            "damaged stores": int(not sound),
            "full disks without a sentence": sum(code not in (0, 2) for code in refused),
            "tracebacks": (self.folder / "drivers.log").read_bytes().count(b"Traceback (most recent call last)"),
        }


def end_all(one):
    for pids in one.drivers.marked().values():
        for pid in pids:
            send(pid, signal.SIGKILL)
    one.drivers.end()
