"""Sweeps: planned once, done once, and nothing lost when processes are killed for real."""

import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.cost import training_flops
from headwise.options import preset
from headwise.spec import SpecError
from headwise.store.records import StoreError
from headwise.store.store import Store
from headwise.sweep import local
from headwise.sweep.drive import conduct
from headwise.sweep.plan import Stopped, Watch, make_plan, memory, read_shard, work
from headwise.sweep.tokens import sample_tokens
from headwise.tasks import load_task, names
from headwise.training import machine
from headwise.training.loop import train_run
from headwise.training.resume import DiskError
from headwise.training.run import Recipe, Run
from helpers.runs import FAILING_TASK, descendants, slow_task, some_runs, wait_for_workers

KILLS = [pytest.param(3, id="3"), pytest.param(50, id="50", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]


class Rows(dict):
    """The least a sweep needs of a store."""

    def finished(self, keys):
        return {key for key in keys if key in self and self[key].status != "failed"}

    def add(self, run, result):
        self[run.key] = result
        return True


def sweep(runs, rows, tmp_path, **settings):
    return local.sweep(make_plan(runs, rows), rows, checkpoints=tmp_path / "checkpoints", **settings)


# ---- plans ---------------------------------------------------------------------------------------------------------


def test_a_plan_has_each_run_once_longest_first():
    runs = some_runs(4) + some_runs(2, steps=500)
    plan = make_plan([*runs, *runs], Rows())
    assert len(plan.todo) == 6
    assert [work(run) for run in plan.todo] == sorted((work(run) for run in plan.todo), reverse=True)


def test_shards_are_disjoint_and_whole():
    runs = some_runs(7)
    shards = [{run.key for run in make_plan(runs, Rows(), (i, 3)).todo} for i in range(3)]
    assert sum(len(shard) for shard in shards) == 7
    assert set.union(*shards) == {run.key for run in runs}


@pytest.mark.parametrize("text", ["3", "3/3", "-1/3", "a/b", "1/0"])
def test_a_shard_that_does_not_exist(text):
    with pytest.raises(SpecError, match="shard"):
        read_shard(text)


def test_a_slurm_array_says_its_shard(monkeypatch):
    assert read_shard(None) == (0, 1)
    for name, value in {"ID": "5", "COUNT": "8", "MIN": "1"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    assert read_shard(None) == (4, 8)
    assert read_shard("1/2") == (1, 2)
    monkeypatch.setenv("SLURM_ARRAY_TASK_MAX", "15")
    with pytest.raises(SpecError, match="must follow each other"):
        read_shard(None)


@pytest.mark.parametrize("name", names())
def test_a_run_is_priced_by_the_tokens_of_its_task(name):
    """The task alone knows: in-context regression has 21 tokens, where its fields say 10 points."""
    task = load_task({"name": name})
    run = Run(task=task.spec(), shape=task.usual_shape, options=task.default_options(), steps=3)
    assert sample_tokens(run) == task.tokens
    assert work(run) == 3 * run.recipe.batch * training_flops(run.model_shape, run.options, task.tokens)


def test_a_task_that_is_gone_does_not_keep_others_from_being_planned(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FAILING_TASK.format(act="pass"))
    gone = some_runs(1, task=load_task({"name": str(file), "dim": 8, "points": 6}))
    file.unlink()
    other = Run(task={"name": "somebody's own trainer"}, shape="w8-h2", steps=1)
    plan = make_plan([*gone, other, *some_runs(2)], Rows())
    assert len(plan.todo) == 4
    assert memory(gone[0]) > 0


def test_planning_downloads_no_data_set(monkeypatch):
    """Images know their size, and so their tokens, only once they are here."""
    monkeypatch.setattr("headwise.data.hub.load_split", lambda *_: pytest.fail("asked the hub"))
    options = preset("bert", vocab=259, context=1025, head="classes", classes=10)
    task = {"name": "lra", "part": "image", "source": "uoft-cs/cifar10"}
    assert sample_tokens(Run(task=task, shape="w8-h2", options=options, steps=1)) == 1025


def test_memory_grows_with_the_batch():
    small, large = (some_runs(1)[0].replace(recipe=Recipe(batch=b)) for b in (16, 512))
    assert memory(large) > 10 * memory(small)


# ---- doing them ----------------------------------------------------------------------------------------------------


def test_a_sweep_gives_what_each_run_gives_alone(tmp_path):
    runs, rows = some_runs(3), Rows()
    heard = []
    watch = Watch(on_start=lambda run: heard.append(run.key), on_end=lambda run, result: heard.append(result.key))
    summary = sweep(runs, rows, tmp_path, watch=watch)
    assert (summary.trained, summary.failed, summary.restarts) == (3, 0, 0)
    assert sorted(heard) == sorted(2 * [run.key for run in runs])
    assert rows[runs[0].key].metrics == train_run(runs[0]).metrics
    again = sweep(runs, rows, tmp_path)
    assert (again.found, again.trained) == (3, 0)


def failing_run(folder, act, **settings):
    file = folder / "failing.py"
    file.write_text(FAILING_TASK.format(act=act))
    return some_runs(1, task=load_task({"name": str(file), "dim": 8, "points": 6}), **settings)[0]


@pytest.mark.parametrize(
    ("act", "says"),
    [
        ("raise RuntimeError('broken on purpose')", "broken on purpose"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "died 3 times, last with signal 4"),
    ],
)
def test_one_bad_run_does_not_stop_the_others(tmp_path, act, says):
    bad, good, rows = failing_run(tmp_path, act), some_runs(2, steps=20), Rows()
    summary = sweep([bad, *good], rows, tmp_path)
    assert rows[bad.key].status == "failed"
    assert says in rows[bad.key].message
    assert [rows[run.key].status for run in good] == ["done", "done"]
    assert summary.failed == 1


@pytest.mark.parametrize("stopped", [False, True])
def test_a_run_that_makes_no_step_is_ended_and_the_others_are_not(tmp_path, monkeypatch, stopped):
    """Time goes quickly once the run is stuck and the others are done; or jumps, where the driver was."""
    stuck, looks = tmp_path / "stuck", itertools.count()
    act = f"import pathlib, time; p = pathlib.Path({str(stuck)!r}); "
    act += "p.exists() or (p.touch(), time.sleep(2))" if stopped else "p.touch(); time.sleep(10**6)"
    bad, good, rows = failing_run(tmp_path, act), some_runs(2, steps=20), Rows()

    def clock():
        at = stuck.exists() and len(rows) >= 2
        return time.monotonic() + (at and (1e6 if stopped else machine.Awake.LONGEST * next(looks)))

    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=clock))
    summary = sweep([bad, *good], rows, tmp_path, workers=2, stalled_seconds=100)
    assert rows[bad.key].status == ("done" if stopped else "failed")
    assert stopped or rows[bad.key].message == "no step in 100 seconds"
    assert [rows[run.key].status for run in good] == ["done", "done"]
    assert summary.failed == (0 if stopped else 1)


@pytest.mark.parametrize("asked", [1, 2])
def test_asked_to_stop_it_stops_and_loses_nothing(tmp_path, asked):
    """Once: runs checkpoint first. Twice: they are killed."""
    task, released = slow_task(tmp_path)
    runs, rows, steps = some_runs(3, task=task), Rows(), []
    watch = Watch(on_step=lambda run, step: steps.append(step), stop_asked=lambda: asked if steps else 0)
    summary = sweep(runs, rows, tmp_path, watch=watch, workers=2)
    assert (summary.stopped, summary.trained, len(rows)) == (2, 0, 0)
    assert asked == 2 or len(list((tmp_path / "checkpoints").glob("*.safetensors"))) == 2
    released.touch()
    assert sweep(runs, rows, tmp_path).trained == 3
    assert rows[runs[0].key].metrics == train_run(runs[0]).metrics


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_raises(tmp_path, number):
    """No half answer comes back: `Stopped` is a KeyboardInterrupt, and the same call goes on from the checkpoints."""
    task, released = slow_task(tmp_path)
    runs, steps = some_runs(3, task=task), []
    handlers = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]

    def interrupt(run, step):
        if not steps:
            os.kill(os.getpid(), number)
        steps.append(step)

    with Store(tmp_path / "runs.db") as store:
        with pytest.raises(KeyboardInterrupt, match="goes on from the checkpoints") as stopped:
            conduct(runs, store, folder=tmp_path, workers=2, watch=Watch(on_step=interrupt))
        summary = stopped.value.summary
        assert isinstance(stopped.value, Stopped)
        assert (summary.planned, summary.stopped, summary.trained) == (3, 2, 0)
        assert list(store.runs()) == []
        assert len(list((tmp_path / "checkpoints").glob("*.safetensors"))) == 2
        assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == handlers
        released.touch()
        assert conduct(runs, store, folder=tmp_path).trained == 3


FULL_DISK = """import os, errno
            def full(handle): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync = full"""
ROOM, ENOUGH_PAGES = 2, 10**6


def test_a_full_disk_ends_a_sweep_with_a_sentence_and_loses_nothing(tmp_path):
    """A worker's checkpoints meet a full disk; with room again, the same command ends what was begun."""
    good, bad = some_runs(2, steps=20), failing_run(tmp_path, FULL_DISK, steps=40)
    with Store(tmp_path / "runs.db") as store:
        sweep(good, store, tmp_path)
        before = {run.key: result.metrics for run, result in store.runs()}
        with pytest.raises(DiskError, match="No space left on device; free some space and run the same command again"):
            sweep([*good, bad], store, tmp_path, checkpoint_seconds=0.0)
        assert {run.key: result.metrics for run, result in store.runs()} == before
        again = sweep([*good, bad], store, tmp_path, checkpoint_seconds=10**6)  # none of them meets the disk
        assert (again.found, again.trained, again.failed) == (2, 1, 0)


def test_a_store_without_room_ends_a_sweep_and_keeps_what_it_has(tmp_path):
    runs = some_runs(6, steps=1)
    with Store(tmp_path / "runs.db") as store:
        sweep(runs[:1], store, tmp_path)
        pages = store._query("PRAGMA page_count")[0][0]
        store._query(f"PRAGMA max_page_count = {pages + ROOM}")
        with pytest.raises(StoreError, match="no space left"):
            sweep(runs, store, tmp_path)
        before = {run.key: result.metrics for run, result in store.runs()}
        assert 1 <= len(before) < len(runs)
        store._query(f"PRAGMA max_page_count = {ENOUGH_PAGES}")
        assert sweep(runs, store, tmp_path).found == len(before)
        assert {run.key for run, _ in store.runs()} == {run.key for run in runs}
        assert store._query("PRAGMA integrity_check") == [("ok",)]


DYING_TASK = """
import os, signal
from pathlib import Path
from headwise.tasks.nearest_neighbor import NearestNeighbor
class Dying(NearestNeighbor):
    def draw(self, seed, stream, index, batch, device="cpu"):
        log = Path({log!r})
        if stream == "train":
            with log.open("a") as file:
                file.write(f"{{index}}\\n")
            if index == 37 and log.read_text().split().count("37") == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().draw(seed, stream, index, batch, device)
TASK = Dying
"""


def test_a_killed_run_repeats_at_most_the_steps_since_its_checkpoint(tmp_path):
    """With a checkpoint after every step that is the one step it died in; the task notes every batch it gives."""
    log, file = tmp_path / "steps.txt", tmp_path / "dying.py"
    file.write_text(DYING_TASK.format(log=str(log)))
    run = some_runs(1, steps=60, task=load_task({"name": str(file), "dim": 8, "points": 6}))[0]
    rows = Rows()
    summary = sweep([run], rows, tmp_path, checkpoint_seconds=0.0)
    assert (summary.restarts, rows[run.key].status) == (1, "done")
    assert [int(step) for step in log.read_text().split()] == [*range(38), *range(37, 60)]


# ---- killed for real -----------------------------------------------------------------------------------------------

DRIVER = """
from pathlib import Path
from headwise.sweep.drive import conduct
from headwise.store.store import Store
from helpers.runs import some_runs
if __name__ == "__main__":
    folder = Path({folder!r})
    with Store(folder / "runs.db") as store:
        conduct(some_runs({count}, {steps}), store, folder=folder, workers=2, checkpoint_seconds=0.3)
    (folder / "finished").touch()
"""


UNGUARDED = """
from pathlib import Path
from headwise.sweep.processes import worker_context
from headwise.spec import SpecError
from headwise.store.store import Store
from headwise.sweep.drive import conduct
from helpers.runs import some_runs
folder, runs = Path({folder!r}), some_runs(2, 20)
with Store(folder / "runs.db") as store:
    for start in (lambda: conduct(runs, store, folder=folder), worker_context):
        try:
            start()
        except SpecError as error:
            print("refused:", error)
"""


def test_a_script_without_a_guard_gets_one_sentence(tmp_path):
    """Its processes import it again, and so would start processes of their own."""
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED.format(folder=str(tmp_path)))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    refusals = done.stdout.splitlines()
    assert len(refusals) == 2  # by a sweep, and by whatever else starts processes
    assert all(line.startswith("refused: this script starts processes, which import it again") for line in refusals)
    assert "Traceback" not in done.stderr


def committed(folder):
    """What the store holds, with the moment each row was written."""
    if not (folder / "runs.db").exists():
        return {}
    with Store(folder / "runs.db") as store:
        times = {row["key"]: row["created"] for row in store.frame().iter_rows(named=True)}
        return {run.key: (times[run.key], result) for run, result in store.runs()}


@pytest.mark.parametrize("kills", KILLS)
def test_killed_at_random_moments_nothing_is_lost_or_done_twice(tmp_path, kills):
    """SIGKILL to the driver or to a worker; then the same command again, until it ends by itself."""
    count, steps = 4, 200 * kills
    folder = tmp_path
    script = folder / "driver.py"
    script.write_text(textwrap.dedent(DRIVER.format(folder=str(folder), count=count, steps=steps)))
    chance = random.Random(kills)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    held, driver = {}, None
    for number in range(kills):
        if driver is None or driver.poll() is not None:
            driver = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)
            wait_for_workers(driver)
        time.sleep(chance.uniform(0.1, 1.5))
        victims = descendants(driver.pid)[1:] if number % 2 else [driver.pid]
        for victim in victims[-1:]:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if number % 2 == 0:
            driver.wait()
        now = committed(folder)
        assert all(now[key] == row for key, row in held.items()), "a committed row was lost or written again"
        held = now
    if driver.poll() is not None and not (folder / "finished").exists():
        driver = subprocess.Popen([sys.executable, str(script)], env=environment)
    assert driver.wait() == 0
    final = committed(folder)
    assert all(final[key] == row for key, row in held.items())
    runs = some_runs(count, steps)
    assert set(final) == {run.key for run in runs}
    for run in runs[:2]:
        alone = train_run(run)
        assert final[run.key][1].metrics == alone.metrics
