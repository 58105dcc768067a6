"""Benchmarks as far as they can be tested without measuring: a machine without a GPU, and the store they fill."""

import subprocess
import sys
from pathlib import Path

import torch

from headwise.store.store import Store

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))


def test_without_a_gpu_the_gpu_benchmark_says_so_in_a_sentence():
    if torch.cuda.is_available():
        return
    command = [sys.executable, str(FOLDER / "gpu.py")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "no GPU" in told
    assert told.count("\n") == 1


def test_a_large_store_has_runs_that_can_be_read(tmp_path):
    from large_store import fill

    with Store(fill(tmp_path / "large.db", rows=1700)) as store:
        assert store.count() == 1700
        last = list(store.runs(newest=20))
        assert all(run.key == result.key for run, result in last)
