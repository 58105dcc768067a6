"""Attack for some minutes, and add what came of it to one table.

    make soak MINUTES=20            # again and again: the table grows
    python -m soak --table soak     # the table so far; of several folders, their sum

The table is kept in SOAK_FOLDER (default: soak/ in the folder it is started in). Exit code 1 where anything was lost.
"""

import argparse
import json
import os
import random
import resource
import shutil
import sys
import time
from pathlib import Path

from fuzz.targets import TARGETS, attack_for
from soak import converting, disks, ray_rounds
from soak.rounds import WORK, Round, end_all, reference
from soak.table import WORKS, Table, commit

FUZZED_A_TURN = {"commands": 3, "parquet": 20, "shapes": 400, "specs": 200}
FUZZED = 100  # of the others
MEMORY_BYTES = 8 * 2**30  # of any process: a case that needs more is a finding, and must not end the machine


def main():
    arguments = argparse.ArgumentParser(prog="make soak", description=__doc__)
    arguments.add_argument("--minutes", type=float, default=20)
    arguments.add_argument("--folder", type=Path, default=Path(os.environ.get("SOAK_FOLDER", "soak")))
    arguments.add_argument("--works", default=",".join([*WORKS, "fuzz"]), help="which to attack, in turn")
    arguments.add_argument("--table", nargs="+", type=Path, help="print the table of these folders, and stop")
    given = arguments.parse_args()
    if given.table:
        return print("\n".join(Table.of(given.table).lines()))
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    table = Table(folder / "table.json")
    table.not_made("Windows and macOS", "unit tests go through each platform's branch only")
    soak = Soak(table, folder / "work", given.works.split(","), time.monotonic() + 60 * given.minutes)
    soak.go_on()
    print("\n".join(table.lines()))
    sys.exit(table.failed)


class Soak:
    """Rounds of these kinds in turn, until the time is over."""

    def __init__(self, table, folder, works, until):
        self.table, self.folder, self.works = table, folder, works
        self.chance, self.turn = random.Random(), 0
        self.enough = lambda: time.monotonic() > until
        disks.remove(folder)
        folder.mkdir()
        needed = {"study run" if work == ray_rounds.NAME else work for work in works}
        self.expected = {work: self._without_faults(work) for work in WORK if work in needed}
        if converting.NAME in works:
            self.command = converting.model_and_text(folder)
            self.converted = converting.reference(self.command, folder / "reference convert")

    def _without_faults(self, work):
        """What a command comes to when it is left in peace; known from another call at the same commit."""
        file = self.table.file.parent / f"expected {work} {commit()}.json"
        if not file.exists():
            found = reference(WORK[work], self.folder / f"reference {work}")
            file.write_text(json.dumps(found))
        return json.loads(file.read_text())

    def go_on(self):
        while not self.enough():
            self.turn += 1
            for work in self.chance.sample(self.works, len(self.works)):
                if not self.enough():
                    self._one(work, self.folder / f"{self.turn} {work}")

    def _one(self, work, folder):
        if work == "fuzz":
            return self._fuzz(folder)
        if work == ray_rounds.NAME:
            lost = ray_rounds.one_round(self.table, self.expected["study run"], folder, self.chance)
        elif work == converting.NAME:
            lost = converting.one_round(self.table, self.command, self.converted, folder, self.chance, self.enough)
        else:
            lost = self._round(work, folder)
        if lost:
            return self.table.say(f"kept: {folder}")
        shutil.rmtree(folder, ignore_errors=True)

    def _round(self, work, folder):
        with disks.small_disk(folder) as own:
            if not own:
                self.table.not_made(disks.NAME, "mounting one takes rights; a limit on the size of files stands for it")
            one = Round(work, self.expected[work], folder, self.chance.choice([1, 1, 1, 1, 1, 1, 1, 4]), self.chance)
            try:
                return self.table.add(work, one.attack(self.enough), one.verdict(), len(one.expected))
            finally:
                end_all(one)

    def _fuzz(self, folder):
        for name in TARGETS:
            folder.mkdir()
            cases = FUZZED_A_TURN.get(name, FUZZED)
            try:
                attack_for(name, cases, folder, self.chance.random())
                self.table.fuzzed(name, cases, 0)
            except (AssertionError, MemoryError) as finding:
                self.table.fuzzed(name, cases, 1)
                self.table.say(f"finding: {finding}")
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
