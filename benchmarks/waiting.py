"""What a user waits for at the terminal: commands from start to end, as processes of their own.

    make bench

Seconds of the clock and of the processor, medians of three; `--quick` measures once, on a store of 10,000 rows in place
of 100,000. The demo trains, and so is measured once.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).parents[1]
AIMS = {"headwise --help": 0.5, "headwise claims --from results/": 3, "headwise report --from results/": 10}
AIMS |= {"headwise runs (large store)": 3, "headwise claims (large store)": 3, "headwise inspect (GPT-2's size)": 3}
AIMS |= {"headwise demo": 30}


def commands(folder, rows):
    """By title: the words after `headwise`."""
    from large_store import fill

    store = str(fill(folder / "large.db", rows))
    return {
        "headwise --help": ["--help"],
        "headwise claims --from results/": ["claims", "--from", str(ROOT / "results")],
        "headwise report --from results/": ["report", "--from", str(ROOT / "results"), "--out", str(folder / "page")],
        "headwise runs (large store)": ["runs", "--store", store],
        "headwise claims (large store)": ["claims", "--store", store],
        "headwise inspect (GPT-2's size)": ["inspect", str(checkpoint(folder / "gpt2"))],
        "headwise demo": ["demo", "--out", str(folder / "demo")],
    }


def checkpoint(folder):
    """GPT-2 as it begins, in the files that transformers writes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
    return folder


def seconds(words):
    """Of the clock, and of the processor with all child processes."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    subprocess.run([sys.executable, "-m", "headwise", *words], check=True, capture_output=True, env=os.environ)
    clock, after = perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(quick):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for title, words in commands(Path(folder), 10_000 if quick else 100_000).items():
            turns = [seconds(words) for _ in range(1 if quick or words[0] == "demo" else 3)]
            clock, processor = (round(median(values), 2) for values in zip(*turns, strict=True))
            rows.append({"command": title, "seconds": clock, "processor": processor, "aim": AIMS[title]})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="once, on a store of 10,000 rows")
    options = parser.parse_args()
    rows = measure(options.quick)
    if options.json:
        return print(json.dumps(rows, indent=2))
    for row in rows:
        print("{command:35} {seconds:>7} s  processor {processor:>7} s  aim {aim:>4} s".format(**row))


if __name__ == "__main__":
    main()
