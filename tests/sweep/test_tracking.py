"""Curves in TensorBoard and W&B while runs go on, read back with their own readers."""

from contextlib import contextmanager

import pytest

import headwise as hw
from headwise.spec import SpecError
from headwise.sweep.plan import Watch
from headwise.sweep.tracking import TRACKERS, tracked
from headwise.sweep.watching import unwatched
from helpers.runs import make_result, make_run, slow_task


def scalars(folder, name):
    """Points of a curve as TensorBoard reads them, from all runs below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points = []
    for file in folder.rglob("events*"):
        events = EventAccumulator(str(file)).Reload()
        if name in events.Tags()["scalars"]:
            points += [(event.step, event.value) for event in events.Scalars(name)]
    return points


def test_points_are_in_tensorboards_files_while_the_run_goes_on(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    slow_task(tmp_path)  # half a second for each step
    seen, ended = [], []

    @contextmanager
    def looking(runs, stage):
        def look(run, points):
            if not ended:
                seen.append([step for step, _ in scalars(tmp_path / "runs", "error")])

        yield Watch(on_points=look, on_end=lambda run, result: ended.append(result))

    task = {"task": "slow.py,dim=8,points=6", "shape": "w8-h2-m16", "steps": 4, "batch_size": 16}
    trained = hw.train(**task, store="runs.db", track="tensorboard", watching=looking)
    assert seen == [[], [], [1], [1, 2], [1, 2, 3]]  # before anything, and when each of four evaluations came
    points = [(step, value) for step, name, value in trained.result.curve if name == "error"]
    (folder,) = (tmp_path / "runs" / "train").iterdir()
    assert folder.name == f"w8-h2-m16-lr0.002-4steps-seed0-{trained.run.key}"
    assert scalars(folder, "error") == [(step, pytest.approx(value)) for step, value in points]


class Kept:
    """A tracker that keeps what it is given."""

    def __init__(self):
        self.points, self.closed = {}, []

    def __call__(self, project):
        return lambda run: KeptLog(self, run.key)


class KeptLog:
    def __init__(self, kept, key):
        self.kept, self.key = kept, key

    def add(self, points):
        self.kept.points.setdefault(self.key, []).extend(points)

    def close(self, result):
        self.kept.closed.append((self.key, result and result.status))


@pytest.fixture
def kept(monkeypatch):
    tracker = Kept()
    monkeypatch.setitem(TRACKERS, "kept", tracker)
    return tracker


def test_every_point_is_told_once_and_every_log_closed(kept):
    """A run that goes on from a checkpoint tells its points again, a short one may tell none before its end."""
    long, short, stopped = (make_run(seed) for seed in range(3))
    result = make_result(long)
    with tracked(unwatched, "kept", "any")([], "") as watch:
        watch.on_points(long, result.curve[:1])
        watch.on_points(long, result.curve[:1])
        watch.on_points(stopped, result.curve[:1])
        watch.on_end(long, result)
        watch.on_end(short, make_result(short, "failed", curve=[]))
    assert kept.points == {long.key: result.curve, stopped.key: result.curve[:1]}
    assert kept.closed == [(long.key, "done"), (short.key, "failed"), (stopped.key, None)]


def test_a_run_given_as_json_is_tracked_too(kept, tmp_path):
    task = {"name": "nearest-neighbor", "dim": 8, "points": 6}
    run = hw.Run(task=task, shape="w8-h2-m16", steps=6, evaluations=3)
    trained = hw.train(run, track="kept")
    assert kept.points == {run.key: trained.result.curve}
    assert kept.closed == [(run.key, "done")]


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    one, other = make_run(0), make_run(1)
    with tracked(unwatched, "wandb", "any")([], "") as watch:
        for run in (one, other):  # both at once
            watch.on_points(run, make_result(run).curve[:1])
        for run in (one, other):
            watch.on_end(run, make_result(run))
    logs = [path.name for path in tmp_path.glob("wandb/offline-run-*")]
    assert len(logs) == 2
    assert all(any(run.key in name for name in logs) for run in (one, other))


@pytest.mark.parametrize("call", [hw.train, hw.compare])
def test_an_unknown_tracker_is_a_sentence_before_anything_is_done(call):
    with pytest.raises(SpecError, match="no tracker 'paper'; there are tensorboard, wandb"):
        call(task="recall", track="paper")
