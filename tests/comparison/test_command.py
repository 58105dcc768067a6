"""Somebody's own trainer: what it is told, versions of its scripts, several at once, what comes of runs that fail."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headwise as hw
from headwise.comparison import command
from headwise.comparison.pace import draw_up
from headwise.spec import SpecError
from headwise.store.store import Store
from headwise.sweep.plan import Watch
from helpers.commands import as_json, headwise
from helpers.comparisons import BASE, OTHER, question

PYTHON = f'"{sys.executable}" -S '  # starts in a few hundredths of a second
TRAINER = """
import json, sys
heads, seed, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(file, "w") as out:
    json.dump({"metric": 1 / heads + 0.001 * seed * (heads % 3)}, out)
"""
SETTINGS = {"command": PYTHON + "train.py {heads} {seed} {key}.json", "metric_json": "{key}.json"}
SETTINGS |= {"base": "w16-h2", "variants": ["w16-h4"], "seeds": 2, "store": "runs.db"}


def foreign_run(text="run --heads {heads} --seed {seed} --lr {lr}", file="out-{key}.json", steps=10, seed=1):
    task = command.command_task(text, file, "metric")
    asked = question(task=task, tokens=0, held_out=(0, 0), steps=steps, seeds=3, arms=(OTHER,))
    plan = draw_up(asked, 1, lambda runs: [0.0] * len(runs))
    return plan.final(plan.arms[0], 0.002, seed)


def done(run, **settings):
    with Store(":memory:") as store:
        command.CommandTrainer(store, **settings).do([run], Watch())
        return store.get(run.key)[1]


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINER)
    return tmp_path / "train.py"


# ---- one command ---------------------------------------------------------------------------------------------------


def test_a_command_is_told_of_the_arm():
    run = foreign_run()
    assert command.filled_in("{shape} {heads} {qk_rank} {depth} {lr} {seed} {steps} ${HOME} {key}", run) == (
        f"{BASE} 4 4 2 0.002 1 10 ${{HOME}} {run.key}"
    )
    for text, file, said in (
        ("run --heads {heads}", "f", "no {seed}"),
        ("run --seed {seed}", "f", "all variants would be the same"),
        ("run {heads} {seed} {dropout}", "f", "{dropout}"),
        ("run {heads} {seed}", "", "--metric-json"),
    ):
        with pytest.raises(SpecError, match=said):
            command.command_task(text, file, "metric")


def test_a_command_that_fails_is_a_row_that_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken = done(foreign_run(PYTHON + "-c 'print({seed}); raise OSError({heads})'"))
    assert (broken.status, "OSError: 4" in broken.message) == ("failed", True)
    (tmp_path / "old.json").write_text('{"metric": 1.0}')
    stale = done(foreign_run("true {heads} {seed}", "old.json"))
    assert (stale.status, "wrote no old.json" in stale.message) == ("failed", True)
    wrong = done(foreign_run("echo '[1]' > w.json; true {heads} {seed}", "w.json"))
    assert wrong.status == "failed"
    unnamed = done(foreign_run("echo '{ \"loss\": 1 }' > u.json; true {heads} {seed}", "u.json"))
    assert "no 'metric'" in unnamed.message
    wild = done(foreign_run("echo '{ \"metric\": NaN }' > n.json; true {heads} {seed}", "n.json"))
    assert wild.status == "diverged"
    long = done(foreign_run("yes | head -c 100000; exit 3; {heads} {seed}"))
    assert len(long.message) < 2 * command.KEPT_OUTPUT
    assert "exit code 3" in long.message


def test_the_start_of_a_process_is_no_part_of_tokens_per_second(trainer):
    answer = hw.compare(**SETTINGS)
    assert not any("tokens_per_second" in row.metrics for row in answer.rows)
    trainer.write_text(TRAINER.replace('{"metric"', '{"tokens": 1000, "seconds": 0.5, "metric"'))
    answer = hw.compare(**SETTINGS)
    assert {row.metrics["tokens_per_second"] for row in answer.rows} == {2000.0}
    assert {row.metrics["train_seconds"] for row in answer.rows} == {0.5}


# ---- versions ------------------------------------------------------------------------------------------------------


def test_scripts_and_configurations_are_part_of_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = foreign_run("python train.py {heads} {seed}")
    assert "scripts" not in plain.task  # there is none: the key is what it was before scripts were hashed
    for name in ("train.py", "my config.yaml", "data.bin", "out.json", "tool/__main__.py", "run-{seed}.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("1")
    Path("start").write_text("#!/bin/sh\n")
    text = f"{sys.executable} train.py --config='my config.yaml' data.bin {{heads}} run-{{seed}}.py > out.json"
    assert {*command.script_hashes(text, "out.json")} == {"train.py", "my config.yaml"}
    assert {*command.script_hashes("bash -c 'python train.py'; ./start 'x")} == {"./start", "train.py"}
    assert {*command.script_hashes("python -m tool {heads}")} == {"tool/__main__.py"}
    with_script = foreign_run("python train.py {heads} {seed}")
    Path("train.py").write_text("2")
    assert len({plain.key, with_script.key, foreign_run("python train.py {heads} {seed}").key}) == 3


def test_a_changed_script_makes_new_runs_and_a_notice(trainer):
    assert hw.compare(**SETTINGS).notices == []
    trainer.write_text(TRAINER + "# changed\n")
    answer = hw.compare(**SETTINGS)
    assert answer.summary.trained == 3  # and the first, which was timed
    assert answer.notices == ["4 runs were made by an older or unrecorded version of train.py: not used"]
    assert answer.as_dict()["plan"]["notices"] == answer.notices
    trainer.write_text(TRAINER)
    assert hw.compare(**SETTINGS).summary.trained == 0  # the first version's runs again
    settings = SETTINGS | {"command": "echo '{\"metric\": 1}' > {key}.json; true {heads} {seed}"}
    assert "no script of the command was found" in hw.plan_comparison(**settings).notices[0]


def test_a_script_that_changes_meanwhile_stops_the_comparison(trainer):
    trainer.write_text(TRAINER + "open('train.py', 'a').write('#')\n")
    with pytest.raises(SpecError, match=r"train\.py changed while the comparison ran"):
        hw.compare(**SETTINGS)


# ---- several at once -----------------------------------------------------------------------------------------------


def test_devices_are_divided_evenly():
    for parallel, devices, slots in (
        (0, "", ("",)),
        (2, "", ("", "")),
        (0, "012", ("0", "1", "2")),
        (1, "01", ("0,1",)),
        (2, "0123", ("0,1", "2,3")),
        (4, "01", ("0", "1", "0", "1")),
    ):
        assert command.device_slots("", parallel, list(devices)) == slots
    for text, parallel, devices, said in (
        ("", 2, "012", "3 devices cannot be divided evenly among 2 commands"),
        ("", 0, "00", "twice"),
        ("", -1, "", "a number of commands"),
        ("run {device}", 0, "", "give --devices"),
    ):
        with pytest.raises(SpecError, match=said):
            command.device_slots(text, parallel, list(devices))


# Each waits for another that runs at the same time: one after the other, they would fail.
MEETING = """
import glob, json, os, sys, time
heads, seed, file = sys.argv[1:4]
mine = f"here-{heads}-{seed}"
open(mine, "w").close()
deadline = time.monotonic() + 30
while len(glob.glob("here-*")) < 2:
    if time.monotonic() > deadline:
        sys.exit("alone")
    time.sleep(0.01)
with open("log.txt", "a") as log:
    print(os.environ.get("CUDA_VISIBLE_DEVICES"), *sys.argv[4:], file=log)
with open(file, "w") as out:
    json.dump({"metric": 1 / int(heads) + 0.001 * int(seed) * (int(heads) % 3)}, out)
"""


def test_commands_run_at_once_each_with_its_device(trainer):
    trainer.write_text(MEETING)
    answer = hw.compare(**SETTINGS, parallel=2, devices="0,1")
    assert (answer.planned.workers, answer.summary.failed, answer.winner) == (2, 0, "w16-h4")
    log = Path("log.txt").read_text().split()
    assert len(log) == 4
    assert {*log} == {"0", "1"}
    assert "--parallel 2 --devices 0,1" in answer.rerun
    named = SETTINGS | {"command": SETTINGS["command"] + " cuda:{device}"}
    hw.compare(**named, devices=[4, 5])
    assert {*Path("log.txt").read_text().splitlines()[4:]} == {"None cuda:4", "None cuda:5"}
    with pytest.raises(SpecError, match="need a file each"):
        hw.compare(**(SETTINGS | {"metric_json": "out.json"}), parallel=2)
    with pytest.raises(SpecError, match="are for --command"):
        hw.compare("recall", parallel=2)


def test_the_progress_of_commands_is_reported(trainer):
    stages, heard = [], []

    class Watching:
        def __init__(self, runs, stage):
            stages.append((len(runs), stage))

        def __enter__(self):
            return Watch(
                on_start=lambda run: heard.append("start"),
                on_part=lambda run, part: heard.append(part),
                on_end=lambda run, result: heard.append("end"),
            )

        def __exit__(self, *_):
            return None

    trainer.write_text("import time; time.sleep(0.2)\n" + TRAINER)
    hw.compare(**SETTINGS, watching=Watching)
    timed, finals = stages
    assert timed == (1, "the first run, to time it")
    assert finals[0] == 3
    assert finals[1].startswith("2 finalists, 2 seeds each; in all at most about ")
    assert (heard.count("start"), heard.count("end")) == (4, 4)
    parts = [part for part in heard if isinstance(part, float)]
    assert parts[0] == 0.0  # nothing is known of the first
    assert 0 < max(parts) < 1


# ---- the end -------------------------------------------------------------------------------------------------------

# The first run ends; others start a process of their own, note its number, and do not end. The second of them has the
# whole comparison stopped.
ENDLESS = """
import json, os, pathlib, subprocess, sys
if pathlib.Path("first").exists() and not pathlib.Path("repaired").exists():
    other = subprocess.Popen(["sleep", "600"])
    pathlib.Path(f"pid-{other.pid}").touch()
    if len(list(pathlib.Path().glob("pid-*"))) == 2:
        os.kill(int(os.environ["DRIVER"]), int(os.environ["SIGNAL"]))
    other.wait()
pathlib.Path("first").touch()
with open(sys.argv[3], "w") as out:
    json.dump({"metric": 1 / int(sys.argv[1])}, out)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_commands_and_keeps_what_ended(trainer, number):
    trainer.write_text(ENDLESS)
    words = ["compare", "--command", SETTINGS["command"], "--metric-json", "{key}.json", "--base", "w16-h2"]
    words += ["--arms", "w16-h4", "--seeds", "2", "--steps", "1", "--store", "runs.db", "--json"]
    as_json(*words, "--dry-run")
    stopped = headwise(*words, "--parallel", "2", check=False, DRIVER=str(os.getpid()), SIGNAL=str(int(number)))
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert "0 runs are stored, 2 will begin again; the same command goes on" in stopped.stderr
    assert len(list(Path().glob("pid-*"))) == 2
    assert [name for name in Path().glob("pid-*") if alive(int(name.name.removeprefix("pid-")))] == []
    assert len(hw.runs("runs.db")) == 1
    Path("repaired").touch()
    assert as_json(*words, "--parallel", "2")["runs"]["trained"] == 3


def alive(pid):
    """Not a process that ended and only waits to be noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "GRACE_SECONDS", 0.1)
    stubborn = command.Command(foreign_run("trap '' TERM; touch ready; while true; do sleep 0.1; done; {heads} {seed}"))
    while not Path("ready").exists():
        time.sleep(0.01)
    command.end_all([stubborn], lambda: False)
    assert stubborn.process.returncode == -signal.SIGKILL
    assert not os.path.exists(f"/proc/{stubborn.process.pid}")


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM; "])
def test_a_command_ends_with_a_comparison_that_is_killed(tmp_path, stubborn):
    """With all that it started: else it went on for ever, and wrote the number of a run that another had begun."""
    text = f"{stubborn}sleep 600 & echo $! > pid; echo $$ > shell; wait; {{heads}} {{seed}}"
    driver = "import time; from headwise.comparison import command; from comparison.test_command import foreign_run; "
    driver += f"command.Command(foreign_run({text!r})); time.sleep(600)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", driver], cwd=tmp_path, env=environment) as process:
        while not (tmp_path / "shell").exists() or not (tmp_path / "shell").read_text().strip():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    pids = [int((tmp_path / name).read_text()) for name in ("pid", "shell")]
    while any(alive(pid) for pid in pids):
        time.sleep(0.05)
