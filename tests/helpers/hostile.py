"""A store that somebody made to break the ledger and the page: rows where they look, with whatever a file can say.

PYTHONPATH=tests python -m helpers.hostile 100000    # processor time and memory of each command that reads one
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from headwise import studies
from headwise.store.records import RUN_COLUMNS, blank
from headwise.store.store import Store
from helpers.pages import ENVIRONMENT, EVIL

NUMBERS = ("nan", "inf", "-inf", 0.0, -1.0, 1e308, -1e308, 5e-324, 0.5)
METRICS = ("error", "trivial_error", "validation_error", "standard_error", "bits_per_byte", EVIL)
POINTS_A_RUN = 3
COMMANDS = (
    "claims",
    "claims --json",
    "report --out page.html",
    "runs",
    "runs --json",
    "export runs.csv",
    "export runs.parquet",
)


def hostile_rows(count):
    """Records: first the runs that studies ask for, with odd metrics; then as many that only look like those."""
    presets = [(study, "laptop" if "laptop" in study.presets else "desktop") for study in studies.load_all()]
    cells = [(cell, study.registration(preset)) for study, preset in presets for cell in study.of(preset)]
    specs = [(cell.run.model_dump(), registered.column() if registered else "") for cell, registered in cells]
    template, numbers = blank(), itertools.cycle(NUMBERS)
    for number in range(count):
        turn, at = divmod(number, len(specs))
        spec, registration = specs[at]
        if turn:
            spec = spec | {"recipe": spec["recipe"] | {"learning_rate": 1e-9 * turn}}
        names = METRICS[number % 3 :]
        yield template | {
            "key": f"{number:016x}",
            "status": ("done", "done", "done", "diverged", "failed")[number % 5],
            "spec": json.dumps(spec),
            "metrics": json.dumps({name: next(numbers) for name in names}),
            "environment": json.dumps(ENVIRONMENT),
            "message": EVIL,
            "kernel": EVIL,
            "flops": "9" * (1 + number % 300),
            "seconds": 1e308,
            "numerics": 2,
            "registration": registration,
        }


def fill(path, count):
    """The store at `path`, straight into its tables: what `add` and `merge` check takes minutes for so many."""
    columns = ", ".join(RUN_COLUMNS)
    places = ", ".join("?" * len(RUN_COLUMNS))
    with Store(path) as store, store.transaction():
        for record in hostile_rows(count):
            store._connection.execute(
                f"INSERT INTO runs ({columns}) VALUES ({places})", [record[name] for name in RUN_COLUMNS]
            )
            points = [(record["key"], step, EVIL, "inf") for step in range(POINTS_A_RUN)]
            store._connection.executemany("INSERT INTO curves (key, step, name, value) VALUES (?, ?, ?, ?)", points)
    return path


def measure(words, folder):
    """What a command gave, the seconds of processor time that it took, and MiB of memory at its peak."""
    with (folder / "said").open("wb") as said:
        command = [sys.executable, "-m", "headwise", *words]
        store = {"HEADWISE_STORE": str(folder / "runs.db")}
        begun = subprocess.Popen(command, cwd=folder, env=os.environ | store, stdout=said, stderr=said)
        _, status, used = os.wait4(begun.pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        fill(Path(place) / "runs.db", int(sys.argv[1]))
        for line in COMMANDS:
            code, seconds, memory = measure(line.split(), Path(place))
            print(f"| `{line}` | {code} | {seconds:.1f} s | {memory:.0f} MiB |", flush=True)
