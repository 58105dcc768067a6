"""Every benchmark, with the results as the tables of docs/reference/performance.md.

    make bench

The rank paper's cells are measured three times and the median of each ratio is shown; the rest once. Nothing else
should run meanwhile. `--quick` measures the least that tries every new section, and prints instead of writing.
"""

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "performance.md"
BEGIN, END = "<!-- measured -->", "<!-- until here -->"
RUNS = 3
AIMS = {(1, 1, 1): 2.5, (64, 1, 1): 2.5, (1, 8, 1): 3, (8, 8, 1): 2.7, (64, 8, 1): 5.5, (1, 64, 1): 3.7}
AIMS |= {(64, 64, 1): 7, (8, 8, 3): 2}


def measured(name, *options):
    print(f"{name} {' '.join(options)}".strip(), file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def table(heading, rows):
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def cells():
    runs = [measured("cells")["rows"] for _ in range(RUNS)]
    rows = []
    for same in zip(*runs, strict=True):
        middle = {name: median(row[name] for row in same) for name in same[0] if name != "cell"}
        cell = tuple(same[0]["cell"])
        part = middle["step"] / AIMS[cell]
        steps = " ".join(f"{row['step']:.2f}" for row in same)
        times = f"{middle['theirs_ms']:.0f}", f"{middle['ours_ms']:.0f}"
        ratios = f"**{middle['step']:.2f}×** ({steps})", f"{AIMS[cell]}× ({part:.0%})", f"{middle['end_to_end']:.2f}×"
        rows.append([cell, *times, *ratios, f"{middle['part_of_peak']:.0%}", f"{middle['memory']:.0%}"])
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


def steps(*options):
    """Of whole models; and what runs of the stored kinds reach."""
    result = measured("steps", *options)
    kinds = list(dict.fromkeys(kind for row in result["models"] for kind in row["faster_than"]))
    rows = []
    for row in result["models"]:
        against = [
            f"{row['faster_than'][kind]:.2f}× ({row['ms'][kind]:.0f})" if kind in row["ms"] else "" for kind in kinds
        ]
        speeds = [f"{row['ms']['headwise']:.0f}", *against, f"{row['gflops']:.0f}", f"{row['of_peak']:.0%}"]
        rows.append([*(row[name] for name in ("family", "shape", "tokens", "batch")), *speeds, f"{row['memory']:.0%}"])
    heading = ["family", "shape", "tokens", "batch", "headwise ms", *(f"{kind} (ms)" for kind in kinds)]
    stored = [[*list(row.values())[:-1], f"{row['of_peak']:.0%}"] for row in result["stored"]]
    tables = table([*heading, "GFLOP/s", "of peak", "memory"], rows)
    return f"{tables}\n\n{table(['task', 'shape', 'batch', 'path', 'ms', 'GFLOP/s', 'of peak'], stored)}"


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
    "The rank paper's cells": cells,
    "The whole grid": grid,
    "Inference": inference,
    "The layer": layer,
    "Data": tasks,
    "What is not training": overhead,
    "Training steps": steps,
    "Waiting": waiting,
}
QUICK = ("Training steps", "Waiting")


def main():
    """All sections; or those whose titles are given, and the others stay as they were."""
    if "--quick" in sys.argv:
        return [print(f"### {title}\n\n{machine()}\n\n{SECTIONS[title]('--quick')}\n") for title in QUICK]
    asked = sys.argv[1:] or list(SECTIONS)
    page = PAGE.read_text()
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    parts = dict(part.split("\n", 1) for part in page[start:end].split("### ")[1:])
    parts |= {title: f"\n{machine()}\n\n{SECTIONS[title]()}\n\n" for title in asked}
    text = "".join(f"### {title}\n{parts[title]}" for title in SECTIONS if title in parts)
    return PAGE.write_text(f"{page[:start]}\n\n{text}{page[end:]}")


if __name__ == "__main__":
    main()
