"""Write the golden files anew: only when a verdict or a preset was meant to change, with the reason in the commit.

python tests/helpers/golden.py
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"
RESULTS = FOLDER.parents[1] / "results"
PINNED = ("verdict", "preset", "estimate", "low", "high", "published", "seeds")


def ledger():
    """Every verdict of the committed rows, with the numbers and the runs behind it."""
    command = [sys.executable, "-m", "headwise", "claims", "--from", str(RESULTS), "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {
        claim["id"]: {name: claim[name] for name in PINNED} | {"runs": digest(claim["runs"])}
        for claim in json.loads(printed)
    }


def keys():
    """Every run of every preset, done or not: how many, and a digest of the keys that a study asks for."""
    from headwise.studies import load_all

    found = {}
    for study in load_all():
        asked = {preset: [cell.run.cell_key for cell in study.of(preset)] for preset in study.presets}
        tried = {preset: [cell.run.cell_key for cell in study.trials(preset)] for preset in study.presets}
        found[study.name] = {preset: [digest(asked[preset]), digest(tried[preset])] for preset in asked}
    return found


def digest(keys):
    return f"{len(keys)} runs, {hashlib.sha256(' '.join(sorted(keys)).encode()).hexdigest()[:16]}"


def read(name):
    return json.loads((FOLDER / name).read_text())


if __name__ == "__main__":
    for name, found in (("ledger.json", ledger()), ("keys.json", keys())):
        (FOLDER / name).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
