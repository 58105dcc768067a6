"""Choosing a shape, as a user types it: on a task, in a trainer of one's own, from a table, from the ledger."""

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import headwise as hw
from headwise.cli.app import app
from headwise.comparison import throughput
from headwise.comparison.plan import ComparisonPlan
from headwise.spec import SpecError
from headwise.store.store import Store
from helpers.commands import as_json, headwise
from helpers.runs import wait_until

TASK = "nearest-neighbor,dim=8,points=4"
SMALL = ["--base", "w8-h2-m16", "--steps", "40", "--seeds", "3", "--batch-size", "512", "--lr", "0.004,0.03,0.2"]
RUNS = 4 * 3 + 3 * 3  # trials and finalists, and more where a grid of learning rates grows


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """Whatever other processes do here, the machine counts as quiet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throughput, "QUIET", math.inf)
        patch.setattr(throughput, "SECONDS", 0.1)
        yield


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
    return folder, before, json.loads(headwise(*words, "--track", "tensorboard", cwd=folder).stdout)


@pytest.fixture
def invented_pace(monkeypatch):
    """A machine on which a step takes a tenth of a second, however busy this one is."""
    monkeypatch.setattr("headwise.comparison.trainers.measure_steps", lambda runs, workers: [0.1] * len(runs))


def kept(folder):
    """When each run was stored."""
    if not (folder / "runs.db").exists():
        return {}
    with Store(folder / "runs.db") as store:
        return {row["key"]: row["created"] for row in store.frame().to_dicts()}


def test_a_killed_comparison_goes_on_where_it_was(finished):
    folder, before, said = finished
    after = kept(folder)
    assert 2 <= len(before) < RUNS <= len(after)
    assert before.items() <= after.items()  # what was finished stays, to the microsecond
    assert said["runs"]["trained"] == len(after) - len(before)
    assert (said["runs"]["planned"], said["runs"]["found"]) == (len(after), len(before))
    assert said["plan"]["found"] == len(before)
    assert said["plan"]["seconds_left"] < said["plan"]["seconds"]


def test_its_curves_are_mirrored(finished):
    folder, before, _ = finished
    mirrored = {path.parent.name.rpartition("-")[2] for path in folder.glob("runs/compare/*/events*")}
    assert mirrored == set(kept(folder)) - set(before)


def test_one_command_gives_an_answer(finished):
    folder, _, said = finished
    assert {arm["shape"] for arm in said["arms"]} == {"w8-h1-m16", "w8-h2-m16", "w8-h4-m16", "w8-h8-m16"}
    judged = [arm for arm in said["arms"] if arm["metric"] is not None]
    assert len(judged) == 3
    best = min(judged, key=lambda arm: arm["metric"])
    assert all(arm["low"] < arm["metric"] < arm["high"] for arm in judged)
    assert all(arm["tokens_per_second"] > 0 and arm["learning_rate"] > 0 for arm in judged)
    assert {"delta", "kv_bytes_per_token", "parameters", "steps_to_base", "speed_up"} <= set(judged[0])
    assert said["arms"][0]["steps_to_base"] == 40
    assert said["chart"] == "headwise-compare/nearest-neighbor-w8-h2-m16-heads.png"
    assert (folder / said["chart"]).exists()
    assert all(arm["parameters"] == arm["parameters_body"] for arm in judged)  # an encoder has nothing else
    with Store(folder / "runs.db") as store:
        errors = [r.metrics["error"] for run, r in store.runs() if run.shape == best["shape"] and run.steps == 40]
    assert best["metric"] == pytest.approx(sum(errors) / 3)


def test_models_that_know_less_than_a_constant_are_not_ranked(finished, invented_pace):
    """Forty steps teach these models nothing: whatever their order is, it is not an answer."""
    folder, _, said = finished
    assert said["metric_name"] == "squared error"
    baseline = said["gates"][0]
    assert (said["learned"], baseline["name"], baseline["passed"]) == (False, "baseline", False)
    assert [gate["name"] for gate in said["gates"]] == ["baseline", "curves", "learning rate"]
    assert said["verdict"].startswith("Cannot tell: the base has not learned enough to beat a simple baseline")
    assert (said["winner"], said["probability_best"], said["decided"]) == (None, None, False)
    assert all(arm["probability_best"] in (None, 0.0) for arm in said["arms"])
    command = said["settle"].partition(", with headwise ")[2]
    assert "--steps 160" in command
    planned = as_json(*shlex.split(command), "--dry-run", "--store", "runs.db", cwd=folder)
    assert (planned["steps"], planned["seeds"]) == (160, 3)


def test_asked_again_in_python_nothing_is_repeated(finished):
    folder, _, said = finished
    runs = len(kept(folder))
    settings = {
        "steps": 40,
        "seeds": 3,
        "batch_size": 512,
        "learning_rates": (0.004, 0.03, 0.2),
        "store": folder / "runs.db",
    }
    answer = hw.compare(TASK, "w8-h2-m16", **settings)
    assert answer.table["shape"].to_list() == [arm["shape"] for arm in said["arms"]]
    assert answer.table["metric"].to_list()[0] == said["arms"][0]["metric"]
    assert (answer.winner, answer.verdict, answer.confounds) == (said["winner"], said["verdict"], said["confounds"])
    assert answer.chart() is not None
    assert len(kept(folder)) == runs


def test_the_command_to_do_it_again_finds_everything(finished):
    folder, _, said = finished
    runs = len(kept(folder))
    table = headwise(*said["rerun"].split()[1:], cwd=folder)
    assert all(len(line) <= 80 for line in table.stdout.splitlines())
    assert table.stdout.startswith("Cannot tell: ")
    assert " ".join(said["verdict"].split()) in " ".join(table.stdout.split())
    assert "4 variants of equal parameters of the body" in table.stderr
    assert f"all of its {runs} runs are in the store" in table.stderr
    assert "speedup" in table.stdout
    assert len(kept(folder)) == runs


def test_where_the_machine_is_not_quiet_a_sentence_stands_in_the_place_of_speeds(finished, monkeypatch):
    folder, _, said = finished
    words = said["rerun"].split()[1:]
    with monkeypatch.context() as patch:
        patch.setattr(throughput, "QUIET", -1.0)
        noisy = as_json(*words, cwd=folder)
        table = headwise(*words, cwd=folder).stdout
    for arm in noisy["arms"]:
        assert (arm["tokens_per_second"], arm["seconds_to_base"], arm["speed_up"]) == (None, None, None)
    assert (noisy["winner"], noisy["arms"][0]["steps_to_base"]) == (said["winner"], 40)
    assert "not shown, because other processes used" in noisy["speed"]
    assert noisy["rerun"] in noisy["speed"]
    assert "speedup" not in table
    assert "tokens/s" not in table
    (file,) = (folder / "runs.files" / "compare").glob("*.speed.json")
    before = file.stat().st_mtime_ns
    assert as_json(*words, cwd=folder)["arms"][0]["tokens_per_second"] > 0
    assert file.stat().st_mtime_ns == before  # a measurement that counts as quiet is not repeated


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
    assert said["chart"] == "headwise-compare/train-w16-h2-heads.png"
    assert "Not judged" in (tmp_path / said["chart"]).with_suffix(".svg").read_text()
    assert arms["w16-h4"]["speed_up"] is None  # the trainer did not say how long it trained
    assert not {"--context", "--batch-size"} & {*said["rerun"].split()}  # which the command knows itself
    with Store(tmp_path / "runs.db") as store:
        assert "no room for 8 heads" in next(store.runs(status="failed"))[1].message
    ran = log(tmp_path)
    assert len(ran) == len(set(ran)) == 3 * 2 + 2 + 2 * 3  # trials, two of them beyond the grid, then finalists
    (tmp_path / "repaired").touch()
    again = json.loads(headwise(*words, cwd=tmp_path).stdout)
    assert again["winner"] == "w16-h8"
    new = log(tmp_path)[len(ran) :]
    assert new
    assert {line.split()[0] for line in new} == {"8"}  # what was finished is not repeated


ACCURATE = """
import json, sys
heads, rate, seed, file = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
right = 0.9 - 1 / heads / 10 - 10 * abs(rate - 0.01) + 0.001 * (seed * heads % 3)
json.dump({"accuracy": right, "validation_accuracy": right, "quality": right}, open(file, "w"))
"""


def test_a_trainer_that_writes_an_accuracy(tmp_path):
    """More is better: in the choice of learning rates, in the ranking and in the words."""
    (tmp_path / "train.py").write_text(ACCURATE)
    command = f'"{sys.executable}" train.py {{heads}} {{lr}} {{seed}} out.json'
    words = ["compare", "--command", command, "--metric-json", "out.json", "--base", "w16-h2", "--arms", "w16-h4"]
    words += ["--lr", "0.003,0.01,0.03", "--seeds", "3", "--store", "runs.db", "--json"]
    said = json.loads(headwise(*words, "--metric", "accuracy", cwd=tmp_path).stdout)
    assert (said["winner"], said["decided"], said["higher_is_better"]) == ("w16-h4", True, True)
    assert said["metric_name"] == "accuracy"
    arms = {arm["shape"]: arm for arm in said["arms"]}
    assert {arm["learning_rate"] for arm in said["arms"]} == {0.01}
    assert arms["w16-h4"]["metric"] == pytest.approx(0.875, abs=0.003)
    assert arms["w16-h4"]["delta"] == pytest.approx(0.025, abs=0.003)
    unnamed = json.loads(headwise(*words, "--metric", "quality", cwd=tmp_path).stdout)
    assert (unnamed["higher_is_better"], "which is assumed" in unnamed["direction"]) == (False, True)
    told = json.loads(headwise(*words, "--metric", "quality", "--higher-is-better", cwd=tmp_path).stdout)
    assert (told["winner"], "--higher-is-better" in told["rerun"]) == ("w16-h4", True)


def test_a_table_of_accuracies(tmp_path):
    lines = [f"{arm},{seed},{right + 0.01 * seed}" for arm, right in (("a", 0.9), ("b", 0.8)) for seed in range(4)]
    (tmp_path / "rows.csv").write_text("\n".join(["arm,seed,accuracy", *lines]) + "\n")
    words = ["compare", "--from", "rows.csv", "--metric", "accuracy"]
    said = as_json(*words, cwd=tmp_path)
    assert (said["winner"], said["decided"], said["learned"]) == ("a", True, None)
    assert said["arms"][1]["delta"] == pytest.approx(-0.1)
    table = headwise(*words, cwd=tmp_path).stdout
    assert "loss" not in table
    assert "accuracy" in table.split("Δ to base")[0]
    assert as_json(*words, "--lower-is-better", cwd=tmp_path)["winner"] == "b"
    answer = hw.compare_table(tmp_path / "rows.csv", metric="accuracy")
    assert (answer.winner, answer.metric, answer.higher_is_better, answer.confounds) == ("a", "accuracy", True, [])
    assert answer.table["metric"].to_list() == pytest.approx([0.915, 0.815])


def test_nearly_equal_numbers_are_not_printed_as_equal(tmp_path):
    lines = [
        f"{arm},{seed},{1.5 + 1e-5 * better + 0.3 * seed}" for arm, better in (("a", 0), ("b", 1)) for seed in range(3)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["arm,seed,loss", *lines]) + "\n")
    table = headwise("compare", "--from", "rows.csv", "--metric", "loss", cwd=tmp_path).stdout
    assert "+0.000010" in table
    assert {"1.800000", "1.800010"} <= set(table.split())


def log(folder):
    return (folder / "log.txt").read_text().splitlines()


def test_a_table_of_finished_runs(tmp_path):
    lines = [f"{arm},{seed},{loss + 0.01 * seed}" for arm, loss in (("wide", 1.0), ("deep", 0.8)) for seed in range(4)]
    (tmp_path / "rows.csv").write_text("\n".join(["arm,seed,metric", *lines]) + "\n")
    said = as_json("compare", "--from", "rows.csv", cwd=tmp_path)
    assert (said["base"], said["winner"], said["decided"]) == ("wide", "deep", True)
    assert said["arms"][1]["delta"] == pytest.approx(-0.2)
    assert said["chart"] == "headwise-compare/rows.png"
    table = headwise("compare", "--from", "rows.csv", "--base", "deep", cwd=tmp_path).stdout
    assert "Keep the base: deep is best" in table
    assert "steps*" not in table  # a table has no curves
    assert {">99%", "<1%"} <= {*table.split()}
    assert all(len(line) <= 80 for line in table.splitlines())


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
    given = [*words, "--steps", "200", "--seeds", "3"]  # the budget does not choose, but it is compared with
    assert as_json(*given, cwd=tmp_path)["fits"] is False
    assert "longer than the budget of 20 seconds" in " ".join(headwise(*given, cwd=tmp_path).stdout.split())
    assert as_json(*given, "--budget", "9h", cwd=tmp_path)["fits"] is True
    for file in (tmp_path / "runs.files" / "compare").iterdir():
        file.unlink()
    assert "does not fit" in headwise(*words, cwd=tmp_path).stdout
    assert not list((tmp_path / "runs.files" / "compare").iterdir())  # nothing to go on with


def test_suggest_answers_from_the_ledger(tmp_path):
    """The shipped results where no others are named; a store without runs has nothing to say."""
    words = ("suggest", "llama-3.2-1b", "--goal", "memory", "--context", "32k", "--batch", "8", "--dtype", "fp8")
    said = as_json(*words)
    assert {claim["id"] for one in said for claim in one["claims"]} >= {"N3"}
    assert said == as_json("suggest", "--base", *words[1:])
    assert said == as_json(*words, "--from", str(Path(__file__).parents[2] / "results"))
    without = as_json(*words, "--store", str(tmp_path / "runs.db"))
    assert all(one["claims"] == [] for one in without)


@pytest.mark.parametrize("model", ["gpt2", "nanochat-d20", "qwen3-0.6b", "llama-3-8b"])
def test_suggest_is_a_screen_of_80_columns(model):
    lines = headwise("suggest", model, "--goal", "memory").stdout.splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 80 or "headwise compare" in line for line in lines)


def test_mistakes_are_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = ["compare", "--command", "run {heads} {seed} {lr} {steps}", "--metric-json", "f.json"]
    (tmp_path / "rows.csv").write_text("loss\n1\n")
    for words, said in (
        (["compare"], "give one of --task"),
        (["compare", "--task", TASK, "--base", "w8-h3"], "w8-h3"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--budget", "soon"], "cannot read the budget"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--rates", "1,x"], "learning rates"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--hold", "mood"], "cannot hold"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--vary", "mood"], "cannot vary"),
        (["compare", "--task", "text:/no/such/file.txt"], "/no/such/file.txt"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--betas", "2,0.9"], "less than 1"),
        (["compare", "--from", "none.csv"], "cannot read runs from none.csv: No such file"),
        (trainer, "needs a --base"),
        ([*trainer, "--base", "w8-h2"], "give --lr"),
        ([*trainer, "--base", "w8-h2", "--rates", "0.1,0.2"], "give --steps"),
        (["compare", "--from", "rows.csv"], "name one or more with --arm-columns"),
        (["compare", "--task", TASK, "--base", "w8-h2", "--higher-is-better"], "the lower it is"),
        (["suggest", "--base", "w8-h2", "--goal", "beauty"], "no goal"),
        (["suggest", "w8-h2", "--task", "chess"], "no kind of task 'chess'"),
        (["suggest", "w8-h2", "--context", "long"], "cannot read 'long'"),
        (["suggest"], "give a shape"),
        (["evidence", "--axis", "colour"], "no axis 'colour'"),
        (["evidence", "--held", "money"], "cannot select held 'money'"),
    ):
        with pytest.raises(SpecError, match=re.escape(said)):  # which the command line prints, and exits with 2
            app([*words, "--store", "runs.db"], standalone_mode=False)
