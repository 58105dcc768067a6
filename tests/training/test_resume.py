"""Checkpoints survive what happens to files: crashes, full disks, flipped bytes, strangers' files."""

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.spec import SpecError
from headwise.tasks import load_task
from headwise.training import resume as checkpoint
from headwise.training.loop import Interrupted, train_run
from headwise.training.machine import process_name
from headwise.training.resume import DiskError, place, previous
from headwise.training.run import Run

FACTS = {"step": 7, "curve": [(7, "error", 0.1 + 0.2)], "note": "ünï", "none": None, "missing": float("inf")}
AS_JSON = {**FACTS, "curve": [[7, "error", 0.1 + 0.2]]}
TENSORS = {
    "floats": torch.linspace(-1, 1, 12).view(3, 4),
    "doubles": torch.tensor([float("nan"), float("-inf"), 1 / 3], dtype=torch.float64),
    "short": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "half": torch.tensor([[0.5]], dtype=torch.float16),
    "whole": torch.tensor([-(2**62), 2**62]),
    "bits": torch.tensor([True, False, True]),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "single": torch.tensor(3.25),
    "single bit": torch.tensor(True),
    "empty": torch.zeros(0, 4),
    "turned": torch.arange(6.0).view(2, 3).T,  # not contiguous
}


@pytest.fixture(params=["path", "memory"])
def file(request, tmp_path):
    """A checkpoint's name, on a disk and in an object store."""
    if request.param == "path":
        yield tmp_path / "made" / "on demand" / "run.safetensors"
        return
    folder = place(f"memory://{tmp_path.name}/runs")
    yield folder / "run.safetensors"
    folder.files.store.clear()


def saved(file, step=1, value=1.0):
    return checkpoint.write(file, {"x": torch.full((4,), value)}, {"step": step})


def step_of(file):
    found = checkpoint.read(file)
    return found and found[1]["step"]


def names(file):
    return sorted(one.name for one in file.parent.glob("*"))


def spoil(file, data):
    if isinstance(file, Path):
        file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


# ---- round trips ---------------------------------------------------------------------------------------------------


def test_everything_comes_back_bit_for_bit(file):
    digest = checkpoint.write(file, TENSORS, FACTS)
    tensors, facts = checkpoint.read(file)
    assert facts == AS_JSON
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].shape == tensor.shape
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=0, equal_nan=True)
        tensors[name].fill_(0)  # what was read is free to be changed
    assert checkpoint.write(file, TENSORS, FACTS) == digest
    assert names(file) == ["run.safetensors", "run.safetensors.previous"]


def test_the_digest_depends_on_everything(tmp_path):
    given = torch.arange(4.0)
    others = [{"x": given + 1}, {"y": given}, {"x": given.view(2, 2)}, {"x": given.view(torch.int32)}, {}]
    digests = [checkpoint.write(tmp_path / "a", tensors, {"step": 1}) for tensors in [{"x": given}, *others]]
    digests.append(checkpoint.write(tmp_path / "a", {"x": given}, {"step": 2}))
    assert len(set(digests)) == len(digests)


def test_nothing_there_is_none(file):
    assert checkpoint.read(file) is None


def test_the_previous_one_stays_until_the_next(file):
    for step in (1, 2, 3):
        saved(file, step)
    assert step_of(file) == 3
    assert step_of(previous(file)) == 2
    assert names(file) == ["run.safetensors", "run.safetensors.previous"]


def test_a_crash_between_the_two_renames_leaves_the_previous_one(file):
    saved(file, 1)
    checkpoint._move(file, previous(file))
    assert step_of(file) == 1
    saved(file, 2)
    assert step_of(file) == 2


def test_remove_leaves_nothing_of_this_run_and_all_of_others(file):
    other = file.with_name("run.safetensors2")
    saved(file)
    saved(file)
    saved(other)
    spoil(file.with_name(f"{file.name}.123.new"), b"an orphan's")
    checkpoint.remove(file)
    assert names(file) == [other.name]
    checkpoint.remove(file)


def test_what_a_living_process_writes_is_its_own(tmp_path):
    """Another driver on the same run, or a node that was given up too early: its file is not ours to remove."""
    file = tmp_path / "run.safetensors"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = file.with_name(f"{file.name}.{process_name(child.pid)}.abc.new")
    ours = file.with_name(f"{file.name}.{process_name(os.getpid())}.abc.new")
    elsewhere = file.with_name(f"{file.name}.00000000-00000000-1-1.abc.new")
    for one in (theirs, ours, elsewhere):
        spoil(one, b"half of it")
    saved(file)
    checkpoint.remove(file)
    assert names(file) == sorted([theirs.name, elsewhere.name])
    child.kill()
    child.wait()
    checkpoint.remove(file)
    assert names(file) == [elsewhere.name]
    os.utime(elsewhere, (0, 0))
    checkpoint.remove(file)
    assert names(file) == []


# ---- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_set_aside_and_the_previous_used(file, part):
    saved(file, 1)
    saved(file, 2)
    whole = file.read_bytes()
    spoil(file, whole[: int(part * len(whole))])
    assert step_of(file) == 1
    assert names(file) == ["run.safetensors.damaged", "run.safetensors.previous"]
    assert file.with_name("run.safetensors.damaged").read_bytes() == whole[: int(part * len(whole))]


def test_every_flipped_byte_is_noticed_or_means_nothing(tmp_path):
    file = tmp_path / "run"
    checkpoint.write(file, {"x": torch.arange(6.0).view(2, 3), "n": torch.tensor(5)}, {"step": 1})
    whole = file.read_bytes()
    unnoticed = 0
    for place_of in range(len(whole)):
        for flip in (1, 0x20, 0xFF):
            spoilt = bytearray(whole)
            spoilt[place_of] ^= flip
            found = checkpoint._verified(bytes(spoilt))
            if found is not None:  # such as another blank in the header
                unnoticed += 1
                assert found[1] == {"step": 1}
                assert torch.equal(found[0]["x"], torch.arange(6.0).view(2, 3))
                assert torch.equal(found[0]["n"], torch.tensor(5))
    assert unnoticed < 20


def test_both_damaged_means_from_the_start(file):
    saved(file, 1)
    saved(file, 2)
    spoil(file, b"\0" * 100)
    spoil(previous(file), b"")
    assert checkpoint.read(file) is None
    assert names(file) == ["run.safetensors.damaged", "run.safetensors.previous.damaged"]


class Trap:
    """Unpickling it would leave a trace."""

    def __reduce__(self):
        return os.mkdir, ("trap-sprung",)


@pytest.mark.parametrize("kind", ["pickle", "torch", "text", "safetensors of another program"])
def test_a_file_of_another_kind_is_refused_and_never_unpickled(file, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if kind == "pickle":
        data = pickle.dumps(Trap())
    elif kind == "torch":
        torch.save({"x": Trap()}, tmp_path / "trap.pt")
        data = (tmp_path / "trap.pt").read_bytes()
    elif kind == "text":
        data = b"not a checkpoint\n" * 10
    else:
        data = checkpoint.save({"x": torch.zeros(2)})
    saved(file, 1)
    saved(file, 2)
    spoil(file, data)
    assert step_of(file) == 1
    assert not Path("trap-sprung").exists()


@pytest.mark.parametrize("header", [b"[]", b"{}", b'{"__metadata__": {"facts": "["}}', b'{"__metadata__": {}}', b"1"])
def test_strange_headers_are_refused(header):
    assert checkpoint._verified(len(header).to_bytes(8, "little") + header) is None


def test_a_damaged_file_that_cannot_be_set_aside_is_one_sentence(tmp_path, monkeypatch):
    spoil(tmp_path / "run", b"")
    monkeypatch.setattr(os, "replace", refuse(errno.EROFS))
    with pytest.raises(DiskError, match=r"cannot set the damaged .*run aside: Read-only file system"):
        checkpoint.read(tmp_path / "run")


def test_a_file_that_cannot_be_read_counts_as_damaged(tmp_path):
    saved(tmp_path / "run", 1)
    saved(tmp_path / "run", 2)
    (tmp_path / "run").unlink()
    (tmp_path / "run").mkdir()
    assert step_of(tmp_path / "run") == 1


# ---- disks that refuse ---------------------------------------------------------------------------------------------


def refuse(number):
    def refused(*_, **__):
        raise OSError(number, os.strerror(number))

    return refused


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_one_sentence_and_costs_nothing_that_was_there(tmp_path, monkeypatch, step, number):
    file = tmp_path / "run.safetensors"
    saved(file, 1)
    saved(file, 2)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    with monkeypatch.context() as patched:
        if step == "open":
            patched.setattr("builtins.open", refuse(number))
        else:
            patched.setattr(os, step, refuse(number))
        with pytest.raises(DiskError, match=os.strerror(number)) as caught:
            saved(file, 3)
    assert str(file) in str(caught.value)
    assert ("free some space" in str(caught.value)) == (number == errno.ENOSPC)
    assert "run the same command again" in str(caught.value)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before
    assert step_of(file) == 2
    saved(file, 4)
    assert step_of(file) == 4


def test_a_disk_that_fills_up_while_writing_leaves_no_half_file(tmp_path, monkeypatch):
    saved(tmp_path / "run", 1)
    real = os.fsync
    calls = []

    def full(handle):
        calls.append(handle)
        assert list(tmp_path.glob("run.*.new"))  # under another name
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        saved(tmp_path / "run", 2)
    assert names(tmp_path / "run") == ["run"]
    assert step_of(tmp_path / "run") == 1


def test_a_rename_that_fails_half_way_leaves_the_previous_one(tmp_path, monkeypatch):
    saved(tmp_path / "run", 1)
    real, calls = os.replace, []

    def second_fails(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", second_fails)
        with pytest.raises(DiskError, match="fix that"):
            saved(tmp_path / "run", 2)
    assert names(tmp_path / "run") == ["run.previous"]
    assert step_of(tmp_path / "run") == 1


def test_folders_that_cannot_be_flushed_are_no_error(tmp_path, monkeypatch):
    real = os.fsync

    def only_files(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(handle)

    monkeypatch.setattr(os, "fsync", only_files)
    saved(tmp_path / "run", 1)
    assert step_of(tmp_path / "run") == 1


def test_a_file_in_the_place_of_the_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert checkpoint.read(tmp_path / "file" / "run") is None
    with pytest.raises(DiskError, match=r"cannot write .*Not a directory|cannot write .*exists"):
        saved(tmp_path / "file" / "run")


def test_remove_never_costs_a_result(tmp_path, monkeypatch):
    saved(tmp_path / "run")
    monkeypatch.setattr(os, "unlink", refuse(errno.EROFS))
    checkpoint.remove(tmp_path / "run")


# ---- runs ----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_an_object_store():
    task = load_task({"name": "nearest-neighbor", "points": 4})
    run = Run(task=task.spec(), shape="w16-h2-m16", options=task.default_options(), steps=20, evaluations=2)
    folder = place("memory://resumed/runs")
    asked = []

    def at_step_8():
        asked.append(1)
        return len(asked) == 8

    with pytest.raises(Interrupted, match="step 8 of 20"):
        train_run(run, checkpoints=folder, should_stop=at_step_8)
    assert step_of(folder / f"{run.key}.safetensors") == 8
    resumed, unbroken = train_run(run, checkpoints=folder), train_run(run)
    assert (resumed.metrics, resumed.curve) == (unbroken.metrics, unbroken.curve)
    assert resumed.status == "done"
    assert folder.glob("*") == []


# ---- places --------------------------------------------------------------------------------------------------------


def test_places(tmp_path):
    assert place("some/folder") == Path("some/folder")
    assert place(tmp_path) == tmp_path
    assert place(f"file://{tmp_path}/x") == tmp_path / "x"
    assert str(place("memory://bucket/runs/") / "a.safetensors") == "memory://bucket/runs/a.safetensors"
    assert str(previous(place("memory://bucket/a"))) == "memory://bucket/a.previous"


def test_a_place_nobody_knows_is_one_sentence():
    with pytest.raises(SpecError, match="cannot reach nowhere://at/all"):
        place("nowhere://at/all")


def test_a_store_that_does_not_answer_is_not_damage(monkeypatch):
    file = place("memory://silent/runs") / "run"
    saved(file, 1)

    def silent(*_, **__):
        raise RuntimeError("connection reset")  # not an OSError: every store has its own

    with monkeypatch.context() as patched:
        patched.setattr(type(file.files), "cat_file", silent)
        with pytest.raises(DiskError, match="cannot read memory://silent/runs/run: RuntimeError: connection reset"):
            checkpoint.read(file)
        patched.setattr(type(file.files), "pipe_file", silent)
        with pytest.raises(DiskError, match="cannot write memory://silent/runs/run: RuntimeError"):
            saved(file, 2)
    assert names(file) == ["run"]
    assert step_of(file) == 1
    checkpoint.remove(file)
    assert checkpoint.read(file) is None
