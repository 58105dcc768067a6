"""What a user gets wrong and what a stranger's file says: one sentence and exit code 2, before any work."""

import io
import json
import os
import struct
import subprocess
import sys
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from headwise.checkpoints.files import open_weights
from headwise.cli import app
from headwise.data import image_files
from headwise.report import explorer, page
from headwise.spec import SpecError, check_writable
from headwise.sweep.plan import read_shard
from headwise.training.loop import train_run
from headwise.training.run import Recipe
from helpers.commands import headwise
from helpers.runs import small_run

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and devices with names")


def refused(*words, **settings):
    done = headwise(*words, check=False, **settings)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    return done.stderr


# ---- the net -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(28, "No space left on device", "x.csv"), "headwise: No space left on device ('x.csv')"),
        (OSError("odd"), "headwise: odd"),
        (RecursionError(), "headwise: what was given is nested too deeply to be read"),
        (OverflowError("int too large"), "headwise: a number is too large: int too large"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "headwise: a file is not text in UTF-8"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "odd"), r"headwise: '\udcff' cannot be written in utf-8"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(monkeypatch, capsys, error, says):
    def fail():
        raise error

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(SystemExit) as end:
        app.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(says)


@posix
@pytest.mark.parametrize("words", [["cost", "gpt2", "--json"]])
def test_a_full_disk_behind_standard_output_is_a_sentence(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headwise", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (2, "headwise: No space left on device\n")


@posix
def test_where_nothing_can_be_said_the_exit_code_says_it():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "headwise", "cost", "nonsense"], stdout=full, stderr=full)
    assert done.returncode == 2


# ---- files that are none -------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize(
    "words", [["train", "PIPE"], ["cost", "PIPE"], ["compare", "--from", "PIPE"], ["inspect", "PIPE.safetensors"]]
)
@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_what_is_no_file_is_not_waited_for(tmp_path, words, kind):
    """Nobody writes into the pipe: to open it would be to wait for ever."""
    for name in ("PIPE", "PIPE.safetensors"):
        os.mkfifo(tmp_path / name) if kind == "fifo" else (tmp_path / name).mkdir()
    assert refused(*words, cwd=tmp_path).startswith("headwise: ")


@posix
@pytest.mark.parametrize("command", ["train", "tasks", "study show"])
def test_a_python_file_that_is_a_pipe(tmp_path, command):
    os.mkfifo(tmp_path / "mine.py")
    words = {"train": ["train", "--task", "mine.py"], "tasks": ["tasks", "mine.py"]}
    assert "no file" in refused(*words.get(command, ["study", "show", "mine.py"]), cwd=tmp_path)


def test_deep_json_long_numbers_and_invalid_text(tmp_path):
    for content, says in (
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"steps": ' + b"9" * 5000 + b"}", "no JSON that can be read"),
        (b'{"steps": "\xff"}', "not text in UTF-8"),
        (b"[1]", "holds no run"),
    ):
        (tmp_path / "run.json").write_bytes(content)
        assert says in refused("train", "run.json", cwd=tmp_path)
        if content != b"[1]":
            (tmp_path / "config.json").write_bytes(content)
            assert says in refused("cost", "config.json", cwd=tmp_path)
    assert "File name too long" in refused("train", "a" * 300, cwd=tmp_path)


# ---- before training -----------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("out", ["/dev/null/x", "file/x", "file", "a" * 300])
@pytest.mark.parametrize(
    "words",
    [
        ["study", "run", "rank-cliff", "--preset", "smoke"],
        ["compare", "--task", "recall", "--base", "w32-h4-L2", "--budget", "1h"],
        ["demo"],
    ],
)
def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path, monkeypatch, words, out):
    for name in ("run_study", "compare", "demo"):
        monkeypatch.setattr(f"headwise.{name}", lambda *_, **__: pytest.fail("begun"), raising=False)
    (tmp_path / "file").touch()
    assert "cannot write to" in refused(*words, "--out", out, cwd=tmp_path)
    check_writable(tmp_path / "new" / "folder")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--seeds", "9" * 21, "--dry-run"],
        ["compare", "--task", "recall", "--base", "w32-h4-L2", "--steps", "9", "--seeds", "9" * 21],
        ["study", "run", "rank-cliff", "--preset", "smoke", "--workers", "-1"],
        ["theory", "conditioning", "--seeds", "9" * 21],
        ["theory", "conditioning", "--tokens", "9" * 21],
    ],
)
def test_numbers_out_of_reach_are_refused_at_once(tmp_path, words):
    assert "Traceback" not in refused(*words, cwd=tmp_path, HEADWISE_STORE=str(tmp_path / "runs.db"))


@posix
def test_a_device_or_a_pipe_is_no_store(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for store in ("/dev/full", tmp_path / "pipe"):
        assert "no file" in refused("runs", HEADWISE_STORE=str(store))
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


@posix
@pytest.mark.parametrize("out", ["/dev/null/x.html", "/dev/full", "file/x"])
def test_a_page_that_cannot_be_written_is_refused_before_it_is_drawn(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "sections_of", lambda *_: pytest.fail("begun"))
    (tmp_path / "file").touch()
    monkeypatch.setattr(explorer, "sections_of", lambda *_: pytest.fail("begun"))
    with pytest.raises(SpecError, match="cannot write to"):
        page.write_report(out, tmp_path / "runs.db")
    with pytest.raises(SpecError, match="cannot write to"):
        explorer.explore(out=out, store=tmp_path / "runs.db")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ID": "9", "COUNT": "8", "MIN": "0", "MAX": "7"}, "outside of it"),
        ({"ID": "0", "COUNT": "8", "MIN": "1"}, "outside of it"),
        ({"ID": "-1", "COUNT": "8"}, "outside of it"),
        ({"ID": "x", "COUNT": "8"}, "cannot read the variables"),
        ({"ID": "1", "COUNT": "0"}, "outside of it"),
        ({"ID": "1"}, "not of how many"),
        ({"ID": "1", "COUNT": "2", "MIN": "0", "MAX": "7"}, "must follow each other"),
    ],
)
def test_slurm_variables_that_make_no_sense_run_no_slice(monkeypatch, given, says):
    for name, value in given.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    with pytest.raises(SpecError, match=says):
        read_shard(None)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("rate", [1e30, 1e300])
def test_an_absurd_learning_rate_diverges(optimizer, rate):
    result = train_run(small_run(recipe=Recipe(batch=16, optimizer=optimizer, learning_rate=rate)))
    assert result.status == "diverged", result.message


# ---- names that a terminal's markup would read -----------------------------------------------------------------


def test_markup_in_a_users_names_is_shown_as_it_is(tmp_path):
    table = "arm,seed,lo[/]ss\n[/],0,1.0\n[/],1,1.1\n[red]b,0,0.5\n[red]b,1,0.6\n"
    (tmp_path / "[bold]runs.csv").write_text(table)
    shown = headwise("compare", "--from", "[bold]runs.csv", "--metric", "lo[/]ss", cwd=tmp_path).stdout
    assert all(name in shown for name in ("[/]", "[red]b", "lo[/]ss", "[bold]runs"))
    assert "[/x]" in refused("study", "show", "[/x]")


# ---- other people's checkpoints ------------------------------------------------------------------------------------


def checkpoint(folder, weight_map):
    save_file({"a": torch.ones(2)}, folder / "inside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "..\\x", "C:\\x", "a/../../x", "", "\0", ".."]
)
def test_an_index_names_files_of_its_own_folder_alone(tmp_path, name):
    save_file({"a": torch.ones(2)}, tmp_path / "outside.safetensors")
    (tmp_path / "model").mkdir()
    with pytest.raises(SpecError, match="no file of its own folder"):
        open_weights(checkpoint(tmp_path / "model", {"a": name}))


@pytest.mark.parametrize("weight_map", [[], "x", {"a": 5}, {"a": None}, {"a": {}}])
def test_a_malformed_index_is_a_sentence(tmp_path, weight_map):
    with pytest.raises(SpecError, match="its weight_map must give the name of a file"):
        open_weights(checkpoint(tmp_path, weight_map))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_a_sentence(tmp_path, value):
    save_file({"a": torch.tensor([1.0, value])}, tmp_path / "model.safetensors")
    with pytest.raises(SpecError, match="'a' holds NaN or infinite numbers"):
        open_weights(tmp_path)["a"]


@pytest.mark.parametrize("lies", [False, True])
def test_an_entry_of_an_archive_is_read_with_a_limit(tmp_path, monkeypatch, lies):
    """Of a thousandfold compression nothing is unpacked beyond the limit, whatever size the archive tells."""
    monkeypatch.setattr(image_files, "LARGEST_IMAGE", 2**16)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cats/a.png", bytes(2**20))
    data = packed.getvalue()
    if lies:
        data = data.replace(struct.pack("<I", 2**20), struct.pack("<I", 2**17))
    (tmp_path / "images.zip").write_bytes(data)
    with pytest.raises(SpecError, match=r"a.png unpacks to more than 0 MiB, too much|a.png cannot be read: \S"):
        list(image_files.scan(str(tmp_path / "images.zip")).read())
