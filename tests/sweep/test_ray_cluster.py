"""A plan on a real Ray cluster of several nodes: the same numbers, whatever dies on the way.

One cluster serves one long test, because a cluster takes seconds to start. The rest needs none.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.spec import SpecError
from headwise.sweep import ray_cluster
from headwise.sweep.plan import DEATHS, Summary, SweepPlan, Watch, make_plan
from headwise.sweep.sharing import Sharing
from headwise.tasks import load_task
from headwise.training.loop import train_run
from headwise.training.resume import DiskError
from headwise.training.run import Execution, Run
from helpers.clusters import local_cluster
from helpers.runs import slow_task, some_runs, wait_until

UNHEARD = "127.0.0.1:1"  # nobody listens there


class Rows(dict):
    """A store that is a dict, and that notices when a run comes in twice."""

    def finished(self, keys):
        return set(keys) & set(self)

    def add(self, run, result):
        assert run.key not in self
        self[run.key] = result
        return True


def small_run(seed, steps, **changes):
    task = load_task({"name": "nearest-neighbor"})
    settings = {"shape": "w16-h4-m64", "options": task.default_options(), "evaluations": 3} | changes
    return Run(task=task.spec(), steps=steps, seed=seed, **settings)


def plan_of(*runs):
    return SweepPlan(runs, ())


def processes_of(run):
    """Ray names a worker process after the task it does."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"run {run.key}" in (folder / "cmdline").read_text():
                yield int(folder.name)
        except OSError:
            continue


@dataclass
class Reporter:
    """A Watch that keeps what it hears, and does something once the time has come."""

    ready: Callable[["Reporter"], bool]
    act: Callable[["Reporter"], None] | None
    asked: int = 0
    started: list = field(default_factory=list)
    ended: list = field(default_factory=list)
    steps: dict = field(default_factory=dict)

    def stop_asked(self):
        if self.act and self.ready(self):
            act, self.act = self.act, None
            act(self)
        return self.asked

    def watch(self):
        return Watch(
            on_start=lambda run: self.started.append(run.key),
            on_step=lambda run, step: self.steps.update({run.key: step}),
            on_end=lambda run, result: self.ended.append(run.key),
            stop_asked=self.stop_asked,
        )


@pytest.fixture
def cluster():
    with local_cluster() as started:
        yield started


def connect(cluster):
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")


def test_a_cluster_gives_the_same_numbers_whatever_dies(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    endless = [small_run(seed, steps=10**6) for seed in (0, 1)]
    task, released = slow_task(tmp_path)
    long = some_runs(2, steps=100, task=task)
    short = [small_run(seed, steps=30) for seed in (4, 5)]
    node = cluster.add_node(num_cpus=1)
    store = Rows()
    folder = Path("checkpoints")  # tasks start elsewhere and must still find it

    def sweep(*runs, **settings):
        settings = {"checkpoints": folder, "checkpoint_seconds": 0.1} | settings
        return ray_cluster.sweep(make_plan(runs, store), store, address=cluster.address, **settings)

    def once_all_have_checkpoints(runs, act):
        """And have been heard of: a run that was not counts as one that waits."""
        written = [(run.key, folder / f"{run.key}.safetensors") for run in runs]
        return Reporter(lambda heard: all(key in heard.steps and file.exists() for key, file in written), act)

    # asked to stop, those that run keep what they have; those that wait never start
    def stop(reporter):
        reporter.asked = 1

    handler = signal.getsignal(signal.SIGTERM)
    reporter = once_all_have_checkpoints(endless, stop)
    summary = sweep(*short, *endless, watch=reporter.watch())
    assert (summary.planned, summary.trained, summary.stopped) == (4, 0, 4)
    assert set(reporter.started) == {run.key for run in endless}
    assert {path.stem for path in folder.glob("*.safetensors")} == {run.key for run in endless}
    assert signal.getsignal(signal.SIGTERM) == handler  # Ray would take it

    # a node dies with a run on it, and the other run's worker too
    def die(reporter):
        cluster.remove_node(node, allow_graceful=False)
        for process in [process for run in long for process in processes_of(run)]:
            with suppress(ProcessLookupError):  # it died with its node
                os.kill(process, signal.SIGKILL)
        released.touch()

    connect(cluster)  # from here on workers are kept between sweeps
    assert sweep(*short).trained == 2
    reporter = once_all_have_checkpoints(long, die)
    summary = sweep(*short, *long, watch=reporter.watch(), weights=Path("weights"))
    assert summary.as_dict() == Summary(planned=4, found=2, trained=2, restarts=2).as_dict()
    assert sorted(reporter.ended) == sorted(run.key for run in long)
    assert set(store) == {run.key for run in (*short, *long)}
    assert {path.stem for path in Path("weights").iterdir()} == {run.key for run in long}
    assert not [path for run in (*short, *long) for path in folder.glob(f"{run.key}*")]
    for run in (*short, *long):
        alone = train_run(run)
        assert (store[run.key].metrics, store[run.key].curve) == (alone.metrics, alone.curve)

    # what cannot be done is a sentence, or a row that says why
    wide = small_run(9, steps=1, execution=Execution(threads=64))
    with pytest.raises(SpecError, match=f"no node of the cluster has what run {wide.key} needs: 64 of CPU"):
        sweep(wide, place_seconds=0.5)
    Path("in the way").write_text("")
    with pytest.raises(DiskError, match=r"cannot write .*in the way"):
        sweep(small_run(9, steps=40), checkpoints=Path("in the way", "x"), checkpoint_seconds=0.0)
    astray = small_run(9, steps=1, shape="w8-h1")  # not as wide as the points
    assert sweep(astray).failed == 1
    assert "need width 16" in store[astray.key].message

    # the second asking stops now
    def stop_now(reporter):
        reporter.asked = 2

    reporter = Reporter(lambda reporter: any(reporter.steps.values()), stop_now)
    summary = sweep(endless[0], watch=reporter.watch())
    assert (summary.stopped, summary.trained) == (1, 0)
    wait_until(lambda: not list(processes_of(endless[0])))


def test_without_ray_one_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecError, match=r"pip install 'headwise\[cluster\]'"):
        ray_cluster.sweep(plan_of(small_run(0, 1)), Rows(), address="auto", checkpoints=tmp_path)


@pytest.mark.parametrize("address", [UNHEARD, "auto", "nonsense", "no.such.host.invalid:6379", "127.0.0.1:99999"])
def test_where_no_cluster_answers_one_sentence_says_so_at_once(address, monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", UNHEARD)
    asked, connect_to = [], sys.modules["ray"].init
    monkeypatch.setattr("ray.init", lambda **settings: asked.append(settings["address"]) or connect_to(**settings))
    with pytest.raises(SpecError, match=r"no Ray cluster answers at '.+' \(.+\); ray start --head starts one"):
        ray_cluster.sweep(plan_of(small_run(0, 1)), Rows(), address=address, checkpoints=tmp_path)
    assert asked == [address] * (address == "nonsense")  # where nobody listens, Ray tries for minutes


def test_an_empty_plan_needs_no_cluster(tmp_path):
    summary = ray_cluster.sweep(SweepPlan((), ("a", "b")), Rows(), address=UNHEARD, checkpoints=tmp_path)
    assert (summary.planned, summary.found, summary.trained) == (2, 2, 0)


def test_a_node_with_another_version_is_refused(tmp_path):
    run = small_run(0, 1)
    with pytest.raises(SpecError, match="another version of headwise"):
        ray_cluster._train(run.model_dump(), "0" * 16, 1, str(tmp_path), 1.0, None, None)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_asks_for_what_it_uses(device):
    needs = ray_cluster._resources(small_run(0, 1, execution=Execution(device=device, devices=2, threads=3)))
    assert needs["num_cpus"] == 6
    assert (needs.get("num_gpus"), "memory" in needs) == ((2, False) if device == "cuda" else (None, True))


def lone_driver(**parts):
    """A driver without a cluster, for what is hard to bring about on one."""
    driver = object.__new__(ray_cluster._Driver)
    nothing = {"watch": Watch(), "summary": Summary(), "queue": [], "flying": {}, "stopping": 0, "deaths": Counter()}
    vars(driver).update({"store": Rows(), "stalled_seconds": 10.0, "sharing": Sharing(), **nothing, **parts})
    return driver


class NodeDiedError(Exception):
    """Named as Ray names it."""


@pytest.mark.parametrize(
    ("error", "allowed"), [(MemoryError("too much"), DEATHS), (NodeDiedError("gone"), ray_cluster.NODE_DEATHS)]
)
def test_a_run_that_dies_again_and_again_has_failed_but_nodes_may_come_and_go(error, allowed):
    run, other = small_run(0, 1), small_run(1, 1)
    driver = lone_driver(queue=[other])
    for death in range(1, allowed):
        driver._bury(run, error)
        assert driver.queue == [run, other]  # it goes before all that wait
        assert driver.summary.restarts == death
        driver.queue.pop(0)
    driver._bury(run, error)
    assert driver.queue == [other]
    assert driver.summary.failed == 1
    assert (
        driver.store[run.key].message == f"its process died {allowed} times, last with {type(error).__name__}: {error}"
    )


def test_a_run_that_makes_no_step_is_ended_and_one_that_waits_is_not():
    cancelled = []
    ray = SimpleNamespace(cancel=lambda reference, force: cancelled.append(reference))
    flying = {
        name: ray_cluster._Flight(small_run(number, 1), number, step, moved)
        for number, (name, step, moved) in enumerate([("stuck", 3, 40.0), ("waits", -1, 0.0), ("runs", 3, 1e12)])
    }
    driver = lone_driver(ray=ray, flying=dict(flying), clock=lambda: 100.0)
    driver._end_stalled()
    assert cancelled == ["stuck"]
    assert list(driver.flying) == ["waits", "runs"]
    assert driver.store[flying["stuck"].run.key].message == "no step in 10 seconds"


def test_a_board_passes_messages_both_ways():
    board = ray_cluster._Board()
    assert board.write(1, 5, [(4, "loss", 2.0)]) is False
    assert board.write(1, 6, [(6, "loss", 1.0)]) is False
    assert board.read(True) == {1: (6, [(4, "loss", 2.0), (6, "loss", 1.0)])}
    assert board.read(True) == {}
    assert board.write(2, 1, []) is True
