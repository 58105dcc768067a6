"""Processes beside the driver: of one kind everywhere, ended with it, and replaced when they or their server die."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwise.spec import SpecError
from headwise.store.store import Store
from headwise.sweep import processes
from headwise.sweep.drive import conduct
from headwise.sweep.plan import DEATHS, Watch
from headwise.sweep.processes import each, start_method
from headwise.training.loop import train_run
from helpers.runs import descendants, slow_task, some_runs, wait_until

TESTS = str(Path(__file__).parents[1])
MEASURING = """
from pathlib import Path
from headwise.comparison.pace import measure_steps
from headwise.tasks import load_task
from helpers.runs import some_runs
if __name__ == "__main__":
    runs = some_runs(2, 10**6, task=load_task({{"name": {task!r}, "dim": 8, "points": 6}}))
    print(measure_steps(runs, 2))
"""


@pytest.mark.parametrize(
    ("system", "method"), [("linux", "forkserver"), ("darwin", "spawn"), ("win32", "spawn"), ("freebsd14", "spawn")]
)
def test_how_a_platform_starts_processes(system, method):
    assert start_method(system) == method


def test_a_process_is_spawned_where_there_is_no_server(monkeypatch):
    """As on macOS and Windows: the same call, and the same answers."""
    monkeypatch.setattr(processes, "start_method", lambda: "spawn")
    monkeypatch.setattr(processes, "worker_context", processes.worker_context.__wrapped__)
    assert each(abs, [-1, 2, -3], workers=2) == [1, 2, 3]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_killed_comparison_leaves_no_process_that_measures(tmp_path):
    """SIGKILL while workers time steps: nobody is left to end them but themselves."""
    task, _ = slow_task(tmp_path)
    script = tmp_path / "measuring.py"
    script.write_text(MEASURING.format(task=task.spec()["name"]))
    driver = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": TESTS})
    wait_until(lambda: len(descendants(driver.pid)) >= 4, driver)  # a tracker, a server and two workers
    left = descendants(driver.pid)
    driver.kill()
    driver.wait()
    wait_until(lambda: not any(map(is_running, left)))  # else pytest's time limit ends this


def _die_once(mark):
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return mark.name


def _fail(_):
    raise SpecError("no such shape")


def test_each_replaces_a_process_that_dies_and_gives_errors_on(tmp_path):
    assert each(_die_once, [tmp_path / "a", tmp_path / "b"], workers=1) == ["a", "b"]
    with pytest.raises(SpecError, match="no such shape"):
        each(_fail, [1, 2, 3], workers=2)


def _die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_always_dies_is_a_sentence():
    with pytest.raises(SpecError, match="died 3 times, last with signal 9"):
        each(_die, [1], workers=1)


@pytest.mark.skipif(start_method() != "forkserver", reason="there is no server here")
def test_a_killed_server_is_started_again_and_the_sweep_goes_on(tmp_path):
    """As often as would make a run fail that lost its worker: it is no run's fault."""
    from multiprocessing import forkserver

    task, released = slow_task(tmp_path)
    runs, kills = some_runs(2, steps=40, task=task), []

    def kill(run, step):
        server = forkserver._forkserver._forkserver_pid
        if len(kills) < DEATHS and server not in kills:
            kills.append(server)
            os.kill(server, signal.SIGKILL)
        elif len(kills) == DEATHS:
            released.touch()

    with Store(tmp_path / "runs.db") as store:
        summary = conduct(runs, store, folder=tmp_path, workers=2, checkpoint_seconds=0.0, watch=Watch(on_step=kill))
        results = {run.key: result for run, result in store.runs()}
    assert (summary.trained, summary.failed, len(kills)) == (2, 0, DEATHS)
    assert [results[run.key].metrics for run in runs] == [train_run(run).metrics for run in runs]
    assert not list((tmp_path / "checkpoints").iterdir())
