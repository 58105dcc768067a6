"""A round: a command on a fresh store, faults while it runs, the same command until it ends, and what became of it."""

import json
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress

from headwise.spec import SpecError
from headwise.store.store import Store
from soak.faults import FAULTS
from soak.processes import EXITS, HERE, Drivers, send

STUDY = ("study", "run", "study.py", "--preset", "smoke", "--workers", "2", "--device", "cpu")
COMPARE = ("compare", "--task", "nearest-neighbor,dim=8,points=6", "--base", "w8-h2-m16", "--arms", "w8-h1-m16")
COMPARE += ("--steps", "200", "--seeds", "3", "--lr", "0.003,0.01", "--batch-size", "16", "--workers", "2")
WORK = {"study run": STUDY, "compare": COMPARE}
FAULTS_A_ROUND = (40, 200)
PAUSE_SECONDS = 1.0  # at most, between a sign of work and a fault
FUTILE = 20  # starts of a driver that is left in peace
KEPT = ("study.py", "runs.db", "runs.db-wal", "runs.db-shm")
UNFINISHED = (".new", ".partial", ".damaged")


def prepared(folder):
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(HERE / "study.py", folder / "study.py")
    return folder


def rows_of(folder):
    """Finished rows by key: when each was written, and its numbers as text. A file that is not there yet has none."""
    if not (folder / "runs.db").exists():
        return {}
    with Store(folder / "runs.db") as store:
        written = dict(store._query("SELECT key, created FROM runs WHERE status != 'failed'"))
        results = {result.key: result for _, result in store.runs() if result.status != "failed"}
        return {key: (written[key], json.dumps([one.metrics, one.curve])) for key, one in results.items()}


def reference(words, folder):
    """The same command without faults: what every round must come to."""
    drivers = Drivers(words, prepared(folder), 1, {"SOAK_DEATHS": "3"})
    if drivers.running[0].wait():
        raise SystemExit(drivers.log.read_text())
    return {key: numbers for key, (_, numbers) in rows_of(folder).items()}


class Round:
    """One command, some drivers, some faults."""

    faults = FAULTS

    def __init__(self, work, expected, folder, drivers, chance):
        self.expected, self.folder, self.chance = expected, prepared(folder), chance
        self.drivers = Drivers(self.words(work), folder, drivers, self.settings())
        self.counts, self.seen, self.rewritten, self.endless = Counter(), {}, set(), False

    def words(self, work=""):
        return WORK[work]

    def settings(self):
        return {"SOAK_DEATHS": self.chance.choice(["3", "1000", "1000"])}  # of a run's processes, after which it failed

    def attack(self, enough):
        """Faults at random moments, each after a sign of work; then the commands are left in peace until they end."""
        for _ in range(self.chance.randint(*FAULTS_A_ROUND)):
            if not self._wait_for_work(enough):
                break
            time.sleep(self.chance.uniform(0.0, PAUSE_SECONDS) * self.chance.choice([0, 1]))
            (name,) = self.chance.choices(list(self.faults), [weight for _, weight in self.faults.values()])
            self.counts[name] += bool(self.faults[name][0](self.drivers, self.chance))
            self._look()
        self._wait_until_ended()
        return self.counts

    def _wait_until_ended(self):
        started = 0
        while self.drivers.running:
            started += self.drivers.restart()
            if started > FUTILE:
                self.endless = True
                return
            time.sleep(0.1)

    def _wait_for_work(self, enough):
        """Until a worker is there, starting what was killed again; no longer than the soak has."""
        while not enough():
            self.drivers.restart()
            if not self.drivers.running:
                return False
            if self.working():
                return True
            time.sleep(0.1)
        return False

    def working(self):
        return bool(self.drivers.marked()["worker"])

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
        files = [file for file in self.folder.rglob("*") if file.is_file() and file.name not in KEPT]
        left = [file for file in files if file.suffix in UNFINISHED or "checkpoints" in file.parts]
        wrong = sum(1 for key, (_, numbers) in final.items() if self.expected.get(key, numbers) != numbers)
        return {
            "runs lost": len(self.expected.keys() - final.keys()),
            "runs duplicated or rewritten": len(self.rewritten) + len(final.keys() - self.expected.keys()),
            "runs differing": wrong,
            "orphans": orphans,
            "leftovers": len(left) + leases,
            "damaged stores": int(not sound),
            **self.ends(refused),
        }

    def ends(self, refused):
        strange = [code for code in self.drivers.exits if code not in EXITS]
        if strange:
            print(f"other exit codes: {strange}", file=sys.stderr)
        return {
            "full disks without a sentence": sum(code not in (0, 2, -signal.SIGKILL) for code in refused),
            "other exit codes": len(strange),
            "commands that never ended": int(self.endless),
            "tracebacks": self.drivers.log.read_bytes().count(b"Traceback (most recent call last)"),
        }


def end_all(one):
    for pid in one.drivers.everything():
        send(pid, signal.SIGKILL)
    one.drivers.end()
