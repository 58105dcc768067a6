"""What a soak has done and what came of it, over all its calls: a file, written after every round, and a table."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from soak import converting, ray_rounds
from soak.faults import FAULTS
from soak.rounds import WORK

NAMES = [*FAULTS, ray_rounds.WORKER, ray_rounds.NODE, ray_rounds.HEAD]
WORKS = [*WORK, ray_rounds.NAME, converting.NAME]
KINDS = ("rounds", "runs", "faults", "outcome", "fuzz cases", "fuzz findings", "not made here", "commits")


class Table:
    """Counts by what was done, and by what it was done to."""

    def __init__(self, file):
        self.file = file
        kept = json.loads(file.read_text()) if file.exists() else {}
        self.counts = {kind: Counter(kept.get(kind, {})) for kind in KINDS}

    @classmethod
    def of(cls, folders):
        """Of several soaks side by side."""
        whole = cls(Path("none"))
        for folder in folders:
            for kind, counts in cls(folder / "table.json").counts.items():
                whole.counts[kind].update(counts)
        return whole

    @property
    def failed(self):
        return int(bool(self.counts["outcome"].total() or self.counts["fuzz findings"].total()))

    @property
    def kills(self):
        return sum(number for name, number in self.counts["faults"].items() if "SIGKILL" in name)

    def add(self, work, faults, outcome, runs):
        """A round's; gives whether anything was lost."""
        self.counts["rounds"][work] += 1
        self.counts["runs"][work] += runs
        self.counts["commits"][commit()] += 1
        self.counts["faults"].update({f"{name} | {work}": number for name, number in faults.items()})
        self.counts["outcome"].update({f"{what} | {work}": number for what, number in outcome.items()})
        self._write()
        bad = {what: number for what, number in outcome.items() if number}
        self.say(f"{work}: {sum(faults.values())} faults, {bad or 'nothing lost'}; {self.kills} kills in all")
        return bool(bad)

    def fuzzed(self, name, cases, findings):
        self.counts["fuzz cases"][name] += cases
        self.counts["fuzz findings"][name] += findings
        self._write()

    def not_made(self, what, why):
        self.counts["not made here"] = Counter({**self.counts["not made here"], f"{what}: {why}": 1})
        self._write()

    def _write(self):
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(self.counts, indent=2))
        partial.replace(self.file)

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def lines(self):
        yield f"Made at {', '.join(self.counts['commits'])}."
        yield ""
        yield f"| fault | {' | '.join(f'`{work}`' for work in WORKS)} | all |"
        yield f"|---|{'---|' * len(WORKS)}---|"
        for name in NAMES:
            yield self._row(name, "faults")
        of_work = [self._kills_of(work) for work in WORKS]
        yield f"| **kills** | {' | '.join(map(str, of_work))} | **{self.kills}** |"
        yield ""
        yield f"| after it | {' | '.join(f'`{work}`' for work in WORKS)} | all |"
        yield f"|---|{'---|' * len(WORKS)}---|"
        for kind in ("rounds", "runs"):
            numbers = [self.counts[kind][work] for work in WORKS]
            yield f"| {kind} | {' | '.join(map(str, numbers))} | {sum(numbers)} |"
        for name in dict.fromkeys(name.partition(" | ")[0] for name in self.counts["outcome"]):
            yield self._row(name, "outcome")
        yield from ("", "| fuzzer | cases | findings |", "|---|---|---|")
        for name, number in self.counts["fuzz cases"].items():
            yield f"| {name} | {number:,} | {self.counts['fuzz findings'][name]} |"
        yield from ("", *(f"Not made here: {what}." for what in self.counts["not made here"]))

    def _row(self, name, kind):
        numbers = [self.counts[kind].get(f"{name} | {work}") for work in WORKS]
        shown = ["–" if number is None else str(number) for number in numbers]
        return f"| {name} | {' | '.join(shown)} | {sum(number or 0 for number in numbers)} |"

    def _kills_of(self, work):
        return sum(n for name, n in self.counts["faults"].items() if "SIGKILL" in name and name.endswith(f"| {work}"))


def commit():
    """What is attacked; with a plus where files differ from it."""
    asked = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=Path(__file__).parent)
    return done.stdout.strip() or "no commit"
