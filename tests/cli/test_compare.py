"""Choosing a shape, as a user types it: on a task, in a trainer of one's own, from a table, from the ledger."""

import json
import re
import subprocess
import sys

import pytest

import headwise as hw
from headwise.cli.app import app
from headwise.comparison.plan import ComparisonPlan
from headwise.spec import SpecError
from headwise.store.store import Store
from helpers.commands import as_json, headwise
from helpers.runs import wait_until

TASK = "nearest-neighbor,dim=8,points=4"
SMALL = ["--base", "w8-h2-m16", "--steps", "40", "--seeds", "3", "--batch-size", "512", "--lr", "0.004,0.03"]
RUNS = 4 * 2 + 3 * 3  # trials and finalists


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small comparison that was killed while it ran, and then asked for again: where, what it had, the answer."""
    folder = tmp_path_factory.mktemp("compare")
    words = ["compare", "--task", TASK, *SMALL, "--json", "--store", "runs.db"]
    command = [sys.executable, "-m", "headwise", *words]
    driver = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(kept(folder)) >= 2, driver)
    finally:
        driver.kill()
        driver.wait()
    before = kept(folder)
    return folder, before, json.loads(headwise(*words, cwd=folder).stdout)


def kept(folder):
    """When each run was stored."""
    if not (folder / "runs.db").exists():
        return {}
    with Store(folder / "runs.db") as store:
        return {row["key"]: row["created"] for row in store.frame().to_dicts()}


def test_a_killed_comparison_goes_on_where_it_was(finished):
    folder, before, said = finished
    after = kept(folder)
    assert 2 <= len(before) < len(after) == RUNS
    assert before.items() <= after.items()  # what was finished stays, to the microsecond
    assert said["runs"]["trained"] == RUNS - len(before)


def test_one_command_gives_an_answer(finished):
    folder, _, said = finished
    assert {arm["shape"] for arm in said["arms"]} == {"w8-h1-m16", "w8-h2-m16", "w8-h4-m16", "w8-h8-m16"}
    judged = [arm for arm in said["arms"] if arm["metric"] is not None]
    assert len(judged) == 3
    assert sum(arm["probability_best"] for arm in said["arms"]) == pytest.approx(1)
    best = min(judged, key=lambda arm: arm["metric"])
    assert (said["winner"], said["probability_best"]) == (best["shape"], best["probability_best"])
    assert all(arm["low"] < arm["metric"] < arm["high"] for arm in judged)
    assert all(arm["tokens_per_second"] > 0 and arm["learning_rate"] in (0.004, 0.03) for arm in judged)
    assert {"delta", "kv_bytes_per_token", "parameters", "steps_to_base", "speed_up"} <= set(judged[0])
    assert said["arms"][0]["steps_to_base"] == 40
    assert (folder / said["chart"]).exists()
    with Store(folder / "runs.db") as store:
        errors = [r.metrics["error"] for run, r in store.runs() if run.shape == best["shape"] and run.steps == 40]
    assert best["metric"] == pytest.approx(sum(errors) / 3)


def test_asked_again_in_python_nothing_is_repeated(finished):
    folder, _, said = finished
    settings = {
        "steps": 40,
        "seeds": 3,
        "batch_size": 512,
        "learning_rates": (0.004, 0.03),
        "store": folder / "runs.db",
    }
    answer = hw.compare(TASK, "w8-h2-m16", **settings)
    assert answer.table["shape"].to_list() == [arm["shape"] for arm in said["arms"]]
    assert answer.table["metric"].to_list()[0] == said["arms"][0]["metric"]
    assert (answer.winner, answer.verdict, answer.confounds) == (said["winner"], said["verdict"], said["confounds"])
    assert answer.chart() is not None
    assert len(kept(folder)) == RUNS


def test_the_command_to_do_it_again_finds_everything(finished):
    folder, _, said = finished
    table = headwise(*said["rerun"].split()[1:], cwd=folder)
    assert all(len(line) <= 80 for line in table.stdout.splitlines())
    assert " ".join(said["verdict"].split()) in " ".join(table.stdout.split())
    assert "4 variants of equal parameters" in table.stderr
    assert len(kept(folder)) == RUNS


TRAINER = """
import json, pathlib, sys
heads, rate, seed, steps, file = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
with open("log.txt", "a") as log:
    print(heads, rate, seed, steps, file=log)
if heads == 8 and not pathlib.Path("repaired").exists():
    sys.exit("no room for 8 heads")
loss = 1 / heads + abs(rate - 0.01) + 0.01 * (seed % 5) + 1 / steps + 0.001 * (seed * heads % 3)
with open(file, "w") as out:
    json.dump({"loss": loss, "validation_loss": loss, "curve": [[steps // 2, 2 * loss], [steps, loss]]}, out)
"""


def test_ones_own_trainer(tmp_path):
    (tmp_path / "train.py").write_text(TRAINER)
    command = f'"{sys.executable}" train.py {{heads}} {{lr}} {{seed}} {{steps}} out-{{key}}.json'
    words = ["compare", "--command", command, "--metric-json", "out-{key}.json", "--metric", "loss", "--base", "w16-h2"]
    words += ["--arms", "w16-h4 w16-h8", "--rates", "0.001,0.01", "--steps", "100", "--seeds", "3"]
    words += ["--store", "runs.db", "--json"]
    done = headwise(*words, cwd=tmp_path, check=False)
    said = json.loads(done.stdout)
    assert done.returncode == 1  # runs failed, and it says so
    assert "failed" in done.stderr
    assert said["winner"] == "w16-h4"
    assert said["decided"]
    arms = {arm["shape"]: arm for arm in said["arms"]}
    assert arms["w16-h4"]["delta"] == pytest.approx(-0.25, abs=0.003)
    assert arms["w16-h4"]["learning_rate"] == 0.01
    assert "every learning rate diverged or failed" in arms["w16-h8"]["note"]
    assert arms["w16-h4"]["steps_to_base"] < 100
    with Store(tmp_path / "runs.db") as store:
        assert "no room for 8 heads" in next(store.runs(status="failed"))[1].message
    ran = log(tmp_path)
    assert len(ran) == len(set(ran)) == 3 * 2 + 2 * 3  # trials, then finalists
    (tmp_path / "repaired").touch()
    again = json.loads(headwise(*words, cwd=tmp_path).stdout)
    assert again["winner"] == "w16-h8"
    new = log(tmp_path)[len(ran) :]
    assert new
    assert {line.split()[0] for line in new} == {"8"}  # what was finished is not repeated


def log(folder):
    return (folder / "log.txt").read_text().splitlines()


def test_a_table_of_finished_runs(tmp_path):
    lines = [f"{arm},{seed},{loss + 0.01 * seed}" for arm, loss in (("wide", 1.0), ("deep", 0.8)) for seed in range(4)]
    (tmp_path / "rows.csv").write_text("\n".join(["arm,seed,metric", *lines]) + "\n")
    said = as_json("compare", "--from", "rows.csv", cwd=tmp_path)
    assert (said["base"], said["winner"], said["decided"]) == ("wide", "deep", True)
    assert said["arms"][1]["delta"] == pytest.approx(-0.2)
    table = headwise("compare", "--from", "rows.csv", "--base", "deep", cwd=tmp_path).stdout
    assert "Keep the base: deep is best" in table
    assert all(len(line) <= 80 for line in table.splitlines())


@pytest.fixture
def invented_pace(monkeypatch):
    """A machine on which a step takes a tenth of a second, however busy this one is."""
    monkeypatch.setattr("headwise.comparison.trainers.measure_steps", lambda runs, workers: [0.1] * len(runs))


def test_a_dry_run_is_kept_for_the_real_one(tmp_path, invented_pace):
    words = ["compare", "--task", TASK, "--base", "w8-h2-m16", "--arms", "w8-h1-m16", "--budget", "2h"]
    words += ["--workers", "2", "--store", "runs.db"]
    said = as_json(*words, "--dry-run", cwd=tmp_path)
    assert said["fits"]
    assert said["seconds"] <= 7200
    assert said["steps"] >= 200
    (file,) = (tmp_path / "runs.files" / "compare").iterdir()
    assert (ComparisonPlan(**json.loads(file.read_text())).seeds, kept(tmp_path)) == (said["seeds"], {})


def test_a_dry_run_that_does_not_fit_says_what_would(tmp_path, invented_pace):
    words = ["compare", "--task", TASK, "--base", "w8-h2-m16", "--budget", "20s", "--store", "runs.db", "--dry-run"]
    said = as_json(*words, cwd=tmp_path)
    assert (said["fits"], said["steps"], said["seeds"]) == (False, 200, 3)
    assert said["seconds"] > 20
    assert "does not fit" in headwise(*words, cwd=tmp_path).stdout
    assert not (tmp_path / "runs.files" / "compare").exists()  # nothing to go on with


def test_suggest_answers_from_the_ledger(tmp_path):
    said = as_json("suggest", "--base", "llama-3.2-1b", "--goal", "memory", "--store", str(tmp_path / "runs.db"))
    assert said["base"] == "w2048-h32-g8-L16"
    assert {line["id"] for one in said["suggestions"] for line in one["evidence"]} >= {"N3", "N4"}
    table = headwise("suggest", "--base", "w512-h8-L6", "--store", str(tmp_path / "runs.db")).stdout
    assert "untested" in table
    assert all(len(line) <= 80 for line in table.splitlines())


def test_mistakes_are_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = ["compare", "--command", "run {heads} {seed} {lr} {steps}", "--metric-json", "f.json"]
    (tmp_path / "rows.csv").write_text("arm,loss\na,1\n")
    for words, said in (
        (["compare"], "give one of --task"),
        (["compare", "--task", TASK, "--base", "w8-h3"], "w8-h3"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--budget", "soon"], "cannot read the budget"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--rates", "1,x"], "learning rates"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--hold", "mood"], "cannot hold"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--vary", "mood"], "cannot vary"),
        (["compare", "--task", "text:/no/such/file.txt"], "/no/such/file.txt"),
        (trainer, "needs a --base"),
        ([*trainer, "--base", "w8-h2"], "give --lr"),
        ([*trainer, "--base", "w8-h2", "--rates", "0.1,0.2"], "give --steps"),
        (["compare", "--from", "rows.csv"], "no column 'seed'"),
        (["suggest", "--base", "w8-h2", "--goal", "beauty"], "no goal"),
    ):
        with pytest.raises(SpecError, match=re.escape(said)):  # which the command line prints, and exits with 2
            app([*words, "--store", "runs.db"], standalone_mode=False)
