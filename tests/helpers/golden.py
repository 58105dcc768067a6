"""Write the golden files anew: only when a verdict or a preset was meant to change, with the reason in the commit.

python tests/helpers/golden.py

What docs quote of the ledger is found here too. An effect is marked by the claim's id in a comment right behind it, as
`headwise claims` prints it, with or without its interval: `+3.3 % [+2.6 %, +4.0 %]<!-- L6 -->`; a verdict likewise,
`fails<!-- L6 -->`. In running text "L6 fails", "L12 is open" and "Q7, Q9 and Q12 hold" are verdicts without a mark.
"""

import hashlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"
ROOT = FOLDER.parents[1]
RESULTS = ROOT / "results"
PINNED = ("verdict", "preset", "estimate", "low", "high", "published", "seeds")


MARK = re.compile(r"<!--\s*([A-Z]+\d+)\s*-->")
VERDICT = re.compile(r"((?:[QNL]\d+(?:, | and |, and ))*[QNL]\d+) (hold|fail|is open|are open)s?\b")


@cache
def claims():
    """The ledger of the committed rows, as `headwise claims --json` says it."""
    command = [sys.executable, "-m", "headwise", "claims", "--from", str(RESULTS), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def ledger():
    """Every verdict of the committed rows, with the numbers and the runs behind it."""
    return {claim["id"]: {name: claim[name] for name in PINNED} | {"runs": digest(claim["runs"])} for claim in claims()}


def quotable(claim):
    """What may be quoted of a claim: its verdict, and each effect with or without its interval."""
    from headwise.report.ledger import line

    effects = [line(one).effect.replace("\u00a0", " ").removesuffix(" exact") for one in claim["comparisons"]]
    return {claim["verdict"], *effects, *(effect.partition(" [")[0] for effect in effects)}


def misquoted(text, ledger):
    """The quotes of a text that the ledger does not say, each with its claim."""
    known, words, wrong = {claim["id"]: claim for claim in ledger}, " ".join(text.split()), []
    verdicts = {name: claim["verdict"] for name, claim in known.items()}
    for mark in MARK.finditer(words):
        before = words[: mark.start()].rstrip()
        told = quotable(known[mark[1]]) if mark[1] in known else ()
        if not any(re.search(rf"(?<![\d.,+−]){re.escape(quote)}$", before) for quote in told):
            wrong.append(f"{before[-40:]} ({mark[1]})")
    for said in VERDICT.finditer(MARK.sub("", words)):
        wanted = said[2].split()[-1].rstrip("s")
        wrong += [said[0] for name in re.findall(r"\w+\d", said[1]) if not verdicts.get(name, "").startswith(wanted)]
    return wrong


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
