"""Attack for some minutes, and add what came of it to one table.

    make soak MINUTES=20            # again and again: the table grows

The table is kept in SOAK_FOLDER (default: soak/ in the folder it is started in). Exit code 1 where anything was lost.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from fuzz.targets import TARGETS, attack_for
from soak import ray_rounds
from soak.faults import FAULTS
from soak.rounds import WORK, Round, end_all, reference

FUZZED_A_TURN = {"shapes": 400, "specs": 200, "configs": 100, "tables": 100, "safetensors": 100, "parquet": 20}
FUZZED_A_TURN |= {"commands": 3}
MEMORY_BYTES = 8 * 2**30  # of any process: a case that needs more is a finding, and must not end the machine


def main():
    arguments = argparse.ArgumentParser(prog="make soak", description=__doc__)
    arguments.add_argument("--minutes", type=float, default=20)
    arguments.add_argument("--folder", type=Path, default=Path(os.environ.get("SOAK_FOLDER", "soak")))
    arguments.add_argument("--ray-turn", type=int, default=2, help="of every four turns, the one with a Ray cluster")
    arguments.add_argument("--table", action="store_true", help="print the table so far, and stop")
    given = arguments.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    table = Table(folder / "table.json")
    if given.table:
        return print("\n".join(table.lines()))
    if "convert" not in subprocess.run([sys.executable, "-m", "headwise"], capture_output=True, text=True).stdout:
        table.not_made("faults during `convert --heal`", "there is no such command")
    work, chance, turn = folder / "work", random.Random(), 0
    shutil.rmtree(work, ignore_errors=True)
    expected = {name: reference(words, work / f"reference {name}") for name, words in WORK.items()}
    table.say(f"without faults: {', '.join(f'{len(runs)} runs of {name}' for name, runs in expected.items())}")
    until = time.monotonic() + 60 * given.minutes
    while time.monotonic() < until:
        turn += 1
        if turn % ray_rounds.EVERY == given.ray_turn:
            ray_rounds.one_round(table, expected["study run"], work / f"{turn} ray", chance)
        for name in chance.sample(list(WORK), len(WORK)):
            if time.monotonic() < until:
                one_round(table, name, expected[name], work / f"{turn} {name}", chance, until)
        fuzz(table, work, chance)
    print("\n".join(table.lines()))
    sys.exit(table.failed)


def one_round(table, name, expected, folder, chance, until):
    drivers = chance.choice([1, 1, 4])
    one = Round(name, expected, folder, drivers, chance)
    try:
        counts = one.attack(until)
        table.add(f"{name}, {drivers} drivers" if drivers > 1 else name, counts, one.verdict(), len(expected))
    finally:
        end_all(one)
    shutil.rmtree(folder) if not table.failed else table.say(f"kept: {folder}")


def fuzz(table, folder, chance):
    for name in TARGETS:
        place = folder / "fuzz"
        place.mkdir()
        try:
            attack_for(name, FUZZED_A_TURN[name], place, chance.random())
            table.fuzzed(name, FUZZED_A_TURN[name], 0)
        except (AssertionError, MemoryError) as finding:
            table.fuzzed(name, FUZZED_A_TURN[name], 1)
            table.say(f"finding: {finding}")
        shutil.rmtree(place)


class Table:
    """What was done and what came of it, over all invocations; written after every round."""

    def __init__(self, file):
        self.file = file
        kept = json.loads(file.read_text()) if file.exists() else {}
        names = ("rounds", "runs", "faults", "outcome", "fuzz cases", "fuzz findings", "not made here")
        self.counts = {name: Counter(kept.get(name, {})) for name in names}

    @property
    def failed(self):
        return int(bool(self.counts["outcome"].total() or self.counts["fuzz findings"].total()))

    def add(self, name, faults, outcome, runs):
        self.counts["rounds"][name] += 1
        self.counts["runs"][name] += runs
        self.counts["faults"].update(faults)
        self.counts["outcome"].update(outcome)
        self._write()
        bad = {what: number for what, number in outcome.items() if number}
        self.say(f"{name}: {sum(faults.values())} faults, {bad or 'nothing lost'}; {self.kills} kills in all")

    def fuzzed(self, name, cases, findings):
        self.counts["fuzz cases"][name] += cases
        self.counts["fuzz findings"][name] += findings
        self._write()

    def not_made(self, what, why):
        self.counts["not made here"] = Counter({**self.counts["not made here"], f"{what}: {why}": 1})
        self._write()

    @property
    def kills(self):
        return sum(number for name, number in self.counts["faults"].items() if "SIGKILL" in name)

    def _write(self):
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(self.counts, indent=2))
        partial.replace(self.file)

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def lines(self):
        yield from ("| fault | times |", "|---|---|")
        for name in dict.fromkeys([*FAULTS, *ray_rounds.FAULTS, *self.counts["faults"]]):
            yield f"| {name} | {self.counts['faults'][name]} |"
        for what in self.counts["not made here"]:
            yield f"| {what} | not made here |"
        yield f"| **kills in all** | **{self.kills}** |"
        yield from ("", "| after it | times |", "|---|---|")
        for name, number in self.counts["rounds"].items():
            yield f"| rounds of `{name}` (runs) | {number} ({self.counts['runs'][name]}) |"
        for name, number in self.counts["outcome"].items():
            yield f"| {name} | {number} |"
        yield from ("", "| fuzzer | cases | findings |", "|---|---|---|")
        for name, number in self.counts["fuzz cases"].items():
            yield f"| {name} | {number:,} | {self.counts['fuzz findings'][name]} |"


if __name__ == "__main__":
    main()
