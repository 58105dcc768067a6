"""One run over two processes, started as torchrun starts them, gives the numbers of one process."""

import json
import os
import subprocess
import sys

import pytest
import torch

from headwise.tasks import load_task
from headwise.training.loop import train_run
from headwise.training.run import Execution, Run

STEPS, STOP_AT = 50, 20
needs_distributed = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")

# Each process has a folder of its own, as on nodes that share none: so one sees who writes and who reads.
SCRIPT = f"""
import itertools, json, os, sys
from pathlib import Path

from headwise.training.run import Run
from headwise.training.loop import Interrupted, train_run

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
run = Run(**json.loads((folder / "run.json").read_text()))
mine = folder / f"process-{{rank}}"
result = train_run(run, checkpoints=mine, checkpoint_seconds=0.0)

steps = itertools.count(1)
try:
    train_run(run, checkpoints=mine, should_stop=lambda: next(steps) == {STOP_AT})
except Interrupted as stopped:
    told = str(stopped)
resumed = train_run(run, checkpoints=mine)
found = {{"whole": result.as_dict(), "stopped": told, "resumed": resumed.as_dict()}}
(folder / f"result-{{rank}}.json").write_text(json.dumps(found))
"""


def run_over(devices):
    task = load_task({"name": "nearest-neighbor"})
    return Run(
        task=task.spec(),
        shape="w16-h4-m64",
        options=task.default_options(),
        steps=STEPS,
        evaluations=2,
        execution=Execution(devices=devices),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes left behind."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "run.json").write_text(json.dumps(run_over(2).model_dump()))
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(folder / "script.py"), str(folder)], check=True, env=settings)
    return folder


def results(folder):
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in (0, 1)]


def points(curve):
    return {(step, name): value for step, name, value in curve}


@needs_distributed
def test_two_processes_give_the_numbers_of_one(folder):
    alone = train_run(run_over(1))
    first, second = (found["whole"] for found in results(folder))
    assert first["status"] == "done", first["message"]
    assert first["metrics"] == pytest.approx(alone.metrics, rel=1e-4)  # sums in another order
    assert points(first["curve"]) == pytest.approx(points(alone.curve), rel=1e-4)
    assert (second["metrics"], second["curve"]) == (first["metrics"], first["curve"])


@needs_distributed
def test_only_the_first_process_writes(folder):
    assert (folder / "process-0").is_dir()
    assert not list((folder / "process-0").iterdir())  # the run is done
    assert not (folder / "process-1").exists()


@needs_distributed
def test_all_processes_go_on_from_the_checkpoint_of_the_first(folder):
    for found in results(folder):
        assert f"step {STOP_AT} of {STEPS}" in found["stopped"]
        assert found["resumed"]["metrics"] == found["whole"]["metrics"]
        assert found["resumed"]["curve"] == found["whole"]["curve"]


@needs_distributed
def test_a_run_over_two_processes_does_not_start_in_one(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert train_run(run_over(2)).status == "failed"
