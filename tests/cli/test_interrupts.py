"""Ctrl-C in a script of one's own: the call saves what there is and raises."""

import os
import signal
import subprocess
import sys

import pytest

from headwise.store.store import Store
from helpers.runs import slow_task, wait_until

SCRIPT = """
import sys
from contextlib import contextmanager
from pathlib import Path

import headwise as hw
from headwise.sweep.plan import Watch


@contextmanager
def watching(runs, stage):
    yield Watch(on_step=lambda run, step: Path(f"begun-{{run.key}}").touch())


if __name__ == "__main__":
    task = "slow.py,dim=8,points=6"
    try:
        hw.{call}
    except KeyboardInterrupt as stopped:
        print(type(stopped).__name__, stopped.summary.trained, stopped.summary.stopped)
        sys.exit(3)
    print("an answer")
"""
COMMON = "batch_size=16, steps=40, store='r.db', watching=watching"
COMPARE = f"compare(task, 'w8-h2-m16', ['w8-h4-m16'], seeds=2, learning_rates='0.01', workers=2, {COMMON})"
TRAIN = f"train(task=task, shape='w8-h2-m16', {COMMON})"


@pytest.mark.parametrize(("call", "workers"), [(COMPARE, 2), (TRAIN, 1)], ids=["compare", "train"])
def test_an_interrupt_saves_and_raises_in_a_script(tmp_path, call, workers):
    slow_task(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT.format(call=call))
    settings = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    driver = subprocess.Popen([sys.executable, "script.py"], start_new_session=True, **settings)
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == workers, driver)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal sends it: to the workers too
    out, err = driver.communicate()
    assert (driver.returncode, err) == (3, "")
    assert out.split() == ["Stopped", "0", str(workers)]
    assert len(list((tmp_path / "r.files" / "checkpoints").glob("*.safetensors"))) == workers
    with Store(tmp_path / "r.db") as store:
        assert list(store.runs()) == []
