"""A conversion that is killed anywhere goes on with the same call, and comes to the same model."""

import hashlib
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import headwise
from headwise.checkpoints import conversion
from headwise.checkpoints.conversion import healing, unfinished
from headwise.spec import SpecError
from headwise.training.machine import process_name
from headwise.training.resume import DiskError
from soak.converting import model_and_text


class Killed(BaseException):
    """As SIGKILL: nothing after it is done."""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    _, model, _, to, _, text, *_ = model_and_text(tmp_path)
    monkeypatch.setattr(healing, "SAVE_SECONDS", 0.0)
    return partial(headwise.convert, model, to, data=text, heal="6 steps", steps=2)


def files(folder):
    skipped = ("README.md", "conversion.json")  # they have times
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir() if f.name not in skipped}


def dying(monkeypatch, owner, name, calls):
    """A function that dies instead of its last call; gives how many it had."""
    real, made = getattr(owner, name), []

    def one(*given, **options):
        made.append(1)
        if len(made) == calls:
            raise Killed
        return real(*given, **options)

    monkeypatch.setattr(owner, name, one)
    return made


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [
        (conversion, "_converted", 1),
        (conversion, "_loaded_back", 1),
        (conversion, "_loaded_back", 2),
        (Path, "replace", 2),  # the first is of request.json
        (Path, "replace", 5),
        (healing, "_step", 1),
        (healing, "_step", 4),
        (os, "replace", 3),  # of healing's state
        (conversion, "change_of", 2),
        (unfinished.Unfinished, "finish", 1),
        (unfinished, "remove", 1),
    ],
)
def test_killed_anywhere_the_same_call_comes_to_the_same_model(tmp_path, asked, monkeypatch, owner, name, calls):
    asked(out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        made = dying(patch, owner, name, calls)
        with pytest.raises(Killed):
            asked(out=tmp_path / "out")
    assert len(made) == calls
    done = asked(out=tmp_path / "out")
    assert done.healing.steps == 6
    assert done.healed is not None
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_damaged_state_of_healing_is_not_gone_on_from(tmp_path, asked, monkeypatch):
    with monkeypatch.context() as patch:
        dying(patch, healing, "_step", 4)
        with pytest.raises(Killed):
            asked(out=tmp_path / "out")
    for state in (tmp_path / "out").glob(f"{unfinished.STATE}*"):
        state.write_bytes(state.read_bytes()[:-9])
    asked(out=tmp_path / "out")
    asked(out=tmp_path / "whole")
    kept = {name: digest for name, digest in files(tmp_path / "out").items() if not name.endswith(".damaged")}
    assert kept == files(tmp_path / "whole")


def test_two_are_never_at_one_folder(tmp_path, asked, monkeypatch):
    with monkeypatch.context() as patch:
        dying(patch, conversion, "_converted", 1)
        with pytest.raises(Killed):
            asked(out=tmp_path / "out")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        file = tmp_path / "out" / unfinished.REQUEST
        file.write_text(file.read_text().replace(process_name(os.getpid()), process_name(other.pid)))
        with pytest.raises(SpecError, match="another process is converting"):
            asked(out=tmp_path / "out")
        other.communicate(b"\n")
    assert asked(out=tmp_path / "out").healed


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"request": 5}', "[" * 100_000, '{"by": {}, "done": 5}'])
def test_a_request_that_says_nothing_is_somebody_elses(tmp_path, asked, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / unfinished.REQUEST).write_text(text)
    (tmp_path / "out" / "model.safetensors").touch()
    with pytest.raises(SpecError, match="is there already"):
        asked(out=tmp_path / "out")


def test_what_cannot_be_made_leaves_no_folder(tmp_path, asked):
    with pytest.raises(SpecError):
        headwise.convert(tmp_path / "model", "g3", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("limit", [1_000, 50_000, 200_000])
def test_a_full_disk_is_one_sentence_and_the_same_call_goes_on(tmp_path, asked, limit):
    """Of request.json, of the model, of healing's state."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(DiskError, match="File too large"):
            asked(out=tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    asked(out=tmp_path / "out")
    asked(out=tmp_path / "whole")
    assert files(tmp_path / "out") == files(tmp_path / "whole")
