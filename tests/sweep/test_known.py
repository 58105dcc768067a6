"""Never trained again: what is finished under any execution is found, and what is begun goes on."""

import json

import pytest

import headwise as hw
from headwise.layers.cpu import tiled
from headwise.spec import SpecError
from headwise.store.store import Store
from headwise.sweep import resolve
from headwise.sweep.plan import make_plan
from headwise.sweep.resolve import fitted
from headwise.training import doctor, loop
from headwise.training.run import Execution, RunResult
from helpers.runs import small_run

GENERATED = Execution(path="generated")


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.db") as opened:
        yield opened


def test_a_run_given_as_json_is_trained_once(store, tmp_path, monkeypatch):
    """Also where it was done by another path; `again` asks for it, and the first result stays."""
    run, file = small_run(steps=3), tmp_path / "run.json"
    file.write_text(json.dumps(run.model_dump()))
    first = hw.train(str(file), store=store)
    calls = []
    monkeypatch.setattr(loop, "train_run", lambda run, **_: calls.append(run.key) or RunResult(run.key, "done"))
    assert hw.train(str(file), store=store).result == first.result
    other = hw.train(run.replace(execution=GENERATED), store=store)
    assert (calls, other.run, other.result) == ([], run, first.result)
    hw.train(str(file), store=store, again=True)
    assert calls == [run.key]
    assert store.get(run.key)[1] == first.result


def test_without_a_store_named_it_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_STORE", str(tmp_path / "mine.db"))
    trained = hw.train(small_run(steps=3))
    monkeypatch.setattr(loop, "train_run", lambda *_, **__: pytest.fail("trained again"))
    assert hw.train(small_run(steps=3)).metrics == trained.metrics


@pytest.mark.parametrize("status", ["done", "diverged"])
def test_what_is_finished_stays_so_when_kernels_change(store, status, monkeypatch):
    """A race may end the other way, a compiler may be gone: neither makes a result another one."""
    run = small_run()
    store.add(run.replace(execution=GENERATED), RunResult(run.replace(execution=GENERATED).key, status))
    planned = fitted([run], Execution(), store)
    assert planned == [run.replace(execution=GENERATED)]
    assert make_plan(planned, store).todo == ()
    monkeypatch.setattr(resolve, "FLOPS_WORTH", 0)
    monkeypatch.setattr(resolve, "_generated_wins", lambda kind: True)
    assert make_plan(fitted([run], Execution(), store), store).todo == ()


def test_of_two_executions_the_one_that_is_done_counts(store):
    run, other = small_run(), small_run(execution=GENERATED)
    store.add(run, RunResult(run.key, "done"))
    store.add(other, RunResult(other.key, "diverged"))
    assert fitted([other], GENERATED, store) == [run]


@pytest.mark.parametrize("begun", ["fast", "generated"])
@pytest.mark.parametrize("works", [True, False])
def test_a_checkpoint_of_another_path_goes_on(store, begun, works, monkeypatch):
    """If that path can be taken here: a kernel that cannot be compiled cannot go on either."""
    monkeypatch.setattr(tiled, "works", lambda: works)
    run = small_run(execution=Execution(path=begun))
    folder = store.files / "checkpoints"
    folder.mkdir(parents=True)
    (folder / f"{run.key}.safetensors").touch()
    asked = Execution(path="generated" if begun == "fast" else "fast")
    (planned,) = fitted([small_run()], asked, store)
    assert planned.execution.path == (begun if works or begun == "fast" else asked.path)


def test_a_given_run_that_would_kill_or_hang_is_a_sentence(store, monkeypatch):
    monkeypatch.setattr(doctor, "_remembered", lambda name: {"safe": False, "speed": None})
    monkeypatch.setattr(loop, "train_run", lambda *_, **__: pytest.fail("begun"))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for execution, says in (
        (Execution(precision="bfloat16"), "bfloat16, which is not safe on this processor"),
        (Execution(devices=2), "torchrun --nproc-per-node 2"),
        (Execution(device="cuda"), "not there"),
    ):
        with pytest.raises(SpecError, match=says):
            hw.train(small_run(execution=execution), store=store)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(SpecError, match="shared by 2 processes, and 3"):
        hw.train(small_run(execution=Execution(devices=2)), store=store)
