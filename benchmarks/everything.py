"""Every benchmark, with the results as the tables of docs/reference/performance.md.

    make bench

Nothing else should run meanwhile: some 35 minutes on two cores. Each section is written as it ends, with how long it
took, from which the time left is told the next time; an interruption loses the section it falls into, and one that
fails stays as it was. `--quick` measures the least that tries the sections of models and waiting, and prints instead.
"""

import json
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from time import monotonic

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "performance.md"
BEGIN, END = "<!-- measured -->", "<!-- until here -->"
GUESS = 240  # seconds of a section that was never measured
AIMS = {(1, 1, 1): 2.5, (64, 1, 1): 2.5, (1, 8, 1): 3, (8, 8, 1): 2.7, (64, 8, 1): 5.5, (1, 64, 1): 3.7}
AIMS |= {(64, 64, 1): 7, (8, 8, 3): 2}


def measured(name, *options):
    """What a benchmark of this folder prints; how far it is goes to the screen."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", *options]
    quiet = os.environ | {"TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=quiet).stdout)


def say(text):
    print(text, file=sys.stderr, flush=True)


def table(heading, rows):
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def cells():
    rows = []
    for row in measured("cells")["rows"]:
        cell = tuple(row["cell"])
        aim = f"{AIMS[cell]}× ({row['step'] / AIMS[cell]:.0%})"
        times = f"{row['theirs_ms']:.0f}", f"{row['ours_ms']:.0f}"
        ratios = f"**{row['step']:.2f}×**", aim, f"{row['end_to_end']:.2f}×"
        rows.append([cell, *times, *ratios, f"{row['part_of_peak']:.0%}", f"{row['memory']:.0%}"])
    return table(["cell", "reference ms", "headwise ms", "step", "aim", "end to end", "of peak", "memory"], rows)


def grid():
    result = measured("cells", "--grid")
    steps = {tuple(row["cell"]): row["step"] for row in result["rows"]}
    across = sorted({cell[1:] for cell in steps}, key=lambda pair: (pair[1], pair[0]))
    rows = [
        [64 // heads, *(f"{steps[heads, *pair]:.2f}" for pair in across)] for heads in sorted({c[0] for c in steps})
    ]
    heading = ["rank", *(f"{modules} × {layers}" for modules, layers in across)]
    seconds = result["seconds"]
    sentence = f"One step of all 63 cells: reference {seconds['theirs']:.1f} s, headwise {seconds['ours']:.1f} s"
    return f"{table(heading, rows)}\n\n{sentence}: **{result['step']:.2f}×**."


def inference():
    rows = []
    for row in measured("inference"):
        ratios = [f"{row[name]}×" if name in row else "" for name in ("torch", "llama", "expanding")]
        rows.append([row[name] for name in ("kind", "shape", "batch", "tokens", "milliseconds")] + ratios)
    return table(["", "shape", "batch", "tokens", "ms", "torch", "Llama", "expanding"], rows)


def layer():
    heading = ["shape", "batch", "tokens", "ms", "torch", "x-transformers", "the drop-in against torch"]
    rows = [[*list(row.values())[:4], *(f"{value}×" for value in list(row.values())[4:])] for row in measured("layer")]
    return table(heading, rows)


def tasks():
    rows = [
        [row["task"], f"{1000 * row['draw']:.2f}", f"{1000 * row['step']:.1f}", f"{row['draw'] / row['step']:.1%}"]
        for row in measured("tasks")
    ]
    return table(["task", "draw ms", "step ms", "part"], rows)


def overhead():
    result = measured("overhead")
    rows = [[*list(row.values())[:3], *(f"{part:.1%}" for part in list(row.values())[3:])] for row in result["rows"]]
    heading = ["rank", "steps", "seconds", "evaluation and probes", "test", "checkpoints"]
    first, later = result["start"].values()
    return f"{table(heading, rows)}\n\nA worker's first step: {first} s with torch, {later} s after that."


def models(part, *options):
    """Whole models against others."""
    result = measured("steps", "--part", part, *options)
    kinds = list(dict.fromkeys(kind for row in result for kind in row["faster_than"]))
    rows = []
    for row in result:
        against = [
            f"{row['faster_than'][kind]:.2f}× ({row['ms'][kind]:.0f})" if kind in row["ms"] else "" for kind in kinds
        ]
        speeds = [f"{row['ms']['headwise']:.0f}", *against, f"{row['gflops']:.0f}", f"{row['of_peak']:.0%}"]
        rows.append([*(row[name] for name in ("family", "shape", "tokens", "batch")), *speeds, f"{row['memory']:.0%}"])
    heading = ["family", "shape", "tokens", "batch", "headwise ms", *(f"{kind} (ms)" for kind in kinds)]
    return table([*heading, "GFLOP/s", "of peak", "memory"], rows)


def decoders(*options):
    return models("decoders", *options)


def families(*options):
    return models("families", *options)


def stored(*options):
    """What runs of the stored kinds reach."""
    rows = [
        [*list(row.values())[:-1], f"{row['of_peak']:.0%}"] for row in measured("steps", "--part", "stored", *options)
    ]
    return table(["task", "shape", "batch", "path", "ms", "GFLOP/s", "of peak"], rows)


def waiting(*options):
    rows = [[f"`{row['command']}`", *list(row.values())[1:]] for row in measured("waiting", *options)]
    return table(["command", "seconds", "processor seconds", "aim"], rows)


def machine():
    from headwise.training.machine import environment

    sys.path.insert(0, str(HERE))
    from cells import gemm_peak

    about = environment()
    speed = f"{gemm_peak() / 1e9:.0f} GFLOP/s in a large product on one thread"
    return f"Measured on {date.today()}, {about['processor']}, {about['cores']} cores, torch {about['torch']}, {speed}."


SECTIONS = {
    "Decoders": decoders,
    "Other families": families,
    "Stored tasks": stored,
    "The rank paper's cells": cells,
    "The whole grid": grid,
    "Waiting": waiting,
    "What is not training": overhead,
    "Data": tasks,
    "Inference": inference,
    "The layer": layer,
}
QUICK = ("Decoders", "Stored tasks", "Waiting")


def section(title, *options):
    """Its text: when and where it was measured, its tables, and how long that took."""
    start, where = monotonic(), machine()
    tables = SECTIONS[title](*options)
    return f"\n{where}\n\n{tables}\n\nMeasured in {monotonic() - start:.0f} s.\n\n"


def on_the_page():
    """What stands before the sections, their texts by title, and what stands after them."""
    page = PAGE.read_text()
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:start], dict(part.split("\n", 1) for part in page[start:end].split("### ")[1:]), page[end:]


def write(title, text):
    before, parts, after = on_the_page()
    parts[title] = text
    whole = "".join(f"### {title}\n{parts[title]}" for title in SECTIONS if title in parts)
    draft = PAGE.with_suffix(".new")
    draft.write_text(f"{before}\n\n{whole}{after}")
    draft.replace(PAGE)


def minutes(titles):
    """What they took the last time."""
    _, parts, _ = on_the_page()
    known = [re.search(r"Measured in (\d+) s", parts.get(title, "")) for title in titles]
    return sum(int(took[1]) if took else GUESS for took in known) / 60


def main():
    """All sections; or those whose titles are given, and the others stay as they were."""
    if "--quick" in sys.argv:
        return [print(f"### {title}\n{section(title, '--quick')}") for title in QUICK]
    asked, failed = sys.argv[1:] or list(SECTIONS), []
    if unknown := [title for title in asked if title not in SECTIONS]:
        sys.exit(f"headwise: no section '{unknown[0]}'; there are {', '.join(SECTIONS)}")
    for number, title in enumerate(asked):
        say(f"{title} ({number + 1} of {len(asked)}; some {minutes(asked[number:]):.0f} min left)")
        try:
            write(title, section(title))
        except subprocess.CalledProcessError:
            say(f"headwise: '{title}' failed and stays as it was on the page")
            failed.append(title)
        except KeyboardInterrupt:
            sys.exit(f"headwise: stopped; {number} of {len(asked)} sections are in {PAGE}")
    return sys.exit(f"headwise: failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
