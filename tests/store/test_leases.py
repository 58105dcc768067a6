"""Several drivers on one store: each run is done by one of them, and by another where that one is lost."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headwise.store.leases import BEAT_SECONDS, LOST_SECONDS, Leases
from headwise.store.store import Store
from headwise.sweep.drive import conduct
from headwise.tasks import load_task
from headwise.training import machine
from headwise.training.loop import train_run
from helpers.runs import make_result, make_run, some_runs, wait_until

TESTS = str(Path(__file__).parents[1])


class Clock:
    """Seconds, as they are told."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def two(tmp_path):
    """Two drivers on one store, each with a clock of its own."""
    with Store(tmp_path / "runs.db") as one, Store(tmp_path / "runs.db") as other:
        yield Leases(one, Clock()), Leases(other, Clock())


def test_a_run_is_leased_to_one_driver(two):
    one, other = two
    assert one.take("a") == "ours"
    assert one.take("a") == "ours"
    assert other.take("a") == "theirs"
    assert (one.theirs(), other.theirs()) == (set(), {"a"})
    one.release("a")
    assert other.take("a") == "ours"
    other.close()
    assert one.take("a") == "ours"


def test_a_result_ends_the_lease(two):
    one, other = two
    run = make_run()
    one.take(run.key)
    assert one.store.add(run, make_result(run))
    assert other.take(run.key) == "ended"
    assert other.store._query("SELECT * FROM leases") == []


def test_what_failed_before_is_tried_again_and_what_failed_today_is_not(tmp_path):
    run = make_run()
    with Store(tmp_path / "runs.db") as store:
        store.add(run, make_result(run, "failed"))
        one, other = Leases(store), Leases(store)
        assert one.take(run.key) == "ours"
        store.add(run, make_result(run, "failed", message="again"))
        assert other.take(run.key) == "ended"


def test_a_lease_without_beats_is_taken_over_and_its_driver_hears_of_it(two):
    """As of a driver on another machine, or one that was stopped: its process is there, but it does not beat."""
    one, other = two
    one.take("a")
    one.take("b")
    assert other.take("a") == "theirs"
    other.clock.now += LOST_SECONDS - 1
    one.clock.now += BEAT_SECONDS
    assert one.beat() == set()
    other.clock.now += 2
    assert other.take("a") == "theirs"  # it has a new beat
    other.clock.now += LOST_SECONDS + 1
    assert other.take("a") == "ours"
    one.clock.now += BEAT_SECONDS
    assert one.beat() == {"a"}
    assert one.ours == {"b"}
    assert one.take("a") == "theirs"


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_clocks_that_differ_or_jump_take_nothing_from_a_driver_that_beats(two, jump):
    one, other = two
    one.clock.now += jump
    one.take("a")
    for _ in range(5):
        assert other.take("a") == "theirs"
        one.clock.now += abs(jump)  # however far its own clock goes on
        other.clock.now += LOST_SECONDS / 2
        assert one.beat() == set()
    one.clock.now -= 10 * abs(jump)  # back: no beat is due for long, and that is a loss of work at most
    other.clock.now += 3 * LOST_SECONDS
    assert other.take("a") == "theirs"
    other.clock.now += LOST_SECONDS + 1
    assert other.take("a") == "ours"


def test_a_driver_that_was_killed_here_is_known_to_be_gone(two, monkeypatch):
    one, other = two
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdin=subprocess.PIPE)
    one.owner = machine.process_name(child.pid) + ".0"
    one.take("a")
    if not machine.is_gone(machine.process_name(child.pid)):
        child.wait()
    assert other.take("a") == "ours"
    here, boot, pid, started = machine.process_name(os.getpid()).split("-")
    assert not machine.is_gone(f"{here}-{boot}-{pid}-{started}")
    assert machine.is_gone(f"{here}-{boot}-{pid}-{int(started) + 1}")  # the number was given again
    assert machine.is_gone(f"{here}-{'0' * 8}-{pid}-{started}")  # the machine was started again
    assert not machine.is_gone(f"{'0' * 8}-{boot}-1-1")  # another machine: nobody knows
    assert not machine.is_gone("nonsense")
    monkeypatch.setattr(sys, "platform", "win32")
    assert not machine.is_gone(f"{here}-{boot}-{pid}-{int(started) + 1}")


NOTING_TASK = """
from pathlib import Path
from headwise.tasks.nearest_neighbor import NearestNeighbor
class Noting(NearestNeighbor):
    def draw(self, seed, stream, index, batch, device="cpu"):
        if stream == "train":
            with Path({log!r}).open("a") as file:
                file.write(f"{{seed}} {{index}}\\n")
        return super().draw(seed, stream, index, batch, device)
TASK = Noting
"""
DRIVER = """
from pathlib import Path
from headwise.store.store import Store
from headwise.sweep.drive import conduct
from headwise.tasks import load_task
from helpers.runs import some_runs
if __name__ == "__main__":
    folder = Path({folder!r})
    runs = some_runs(12, 30, task=load_task({{"name": str(folder / "noting.py"), "dim": 8, "points": 6}}))
    with Store(folder / "runs.db") as store:
        (folder / "ready-{number}").touch()
        while not (folder / "go").exists():
            pass
        summary = conduct(runs, store, folder=folder, workers=1, checkpoint_seconds=0.0)
    print(summary.trained, summary.found, summary.failed)
"""


def test_four_drivers_on_one_store_share_the_work(tmp_path):
    """Every step of every run is done once, by one of them, and each driver waits until all runs are there."""
    (tmp_path / "noting.py").write_text(NOTING_TASK.format(log=str(tmp_path / "steps")))
    drivers = []
    for number in range(4):
        script = tmp_path / f"driver-{number}.py"
        script.write_text(DRIVER.format(folder=str(tmp_path), number=number))
        settings = {"env": {**os.environ, "PYTHONPATH": TESTS}, "stdout": subprocess.PIPE, "text": True}
        drivers.append(subprocess.Popen([sys.executable, str(script)], **settings))
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 4)
    (tmp_path / "go").touch()
    counts = [tuple(map(int, driver.communicate()[0].split())) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0, 0, 0]
    assert sum(trained for trained, _, _ in counts) == 12
    assert all(trained + found == 12 and failed == 0 for trained, found, failed in counts)
    steps = Counter((tmp_path / "steps").read_text().splitlines())
    assert set(steps.values()) == {1}
    assert len(steps) == 12 * 30
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_lost_drivers_run_goes_on_from_its_checkpoint(tmp_path):
    """The lease of a killed driver, and its checkpoint: the next one takes both over."""
    (tmp_path / "noting.py").write_text(NOTING_TASK.format(log=str(tmp_path / "steps")))
    (run,) = some_runs(1, 30, task=load_task({"name": str(tmp_path / "noting.py"), "dim": 8, "points": 6}))
    stops = iter([False] * 9 + [True])
    with pytest.raises(Exception, match="stopped at step 10"):
        train_run(run, checkpoints=tmp_path / "checkpoints", should_stop=lambda: next(stops))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with Store(tmp_path / "runs.db") as store:
        lost = Leases(store)
        lost.owner = machine.process_name(child.pid) + ".0"
        assert lost.take(run.key) == "ours"
        child.kill()
        child.wait()
        assert conduct([run], store, folder=tmp_path).trained == 1
    assert (tmp_path / "steps").read_text().split("\n")[:-1] == [f"0 {step}" for step in range(30)]
