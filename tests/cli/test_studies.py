"""The commands about runs, typed as a user types them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwise.store.store import Store
from helpers.commands import as_json, headwise
from helpers.runs import small_run, wait_for_workers


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A store with the smoke preset in it, and what the command said."""
    folder = tmp_path_factory.mktemp("smoke")
    store = folder / "runs.db"
    said = as_json("study", "run", "rank-cliff", "--preset", "smoke", "--store", str(store), cwd=folder)
    return folder, store, said


def test_a_study_goes_from_plan_to_chart_and_verdict(smoke):
    folder, store, said = smoke
    assert said["study"] == "rank-cliff"
    assert (said["runs"]["planned"], said["runs"]["trained"], said["runs"]["failed"]) == (18, 18, 0)
    assert [claim["id"] for claim in said["claims"]] == ["Q7", "Q8", "Q9", "Q21"]
    assert {claim["verdict"] for claim in said["claims"]} == {"open"}
    assert (folder / said["chart"]).exists()
    again = as_json("study", "run", "rank-cliff", "--preset", "smoke", "--store", str(store), cwd=folder)
    assert (again["runs"]["found"], again["runs"]["trained"]) == (18, 0)


def test_a_dry_run_prices_what_is_left(smoke):
    _, store, _ = smoke
    done = as_json("study", "run", "rank-cliff", "--preset", "smoke", "--store", str(store), "--dry-run")
    assert (done["runs"], done["found"]) == (0, 18)
    left = as_json("study", "run", "rank-cliff", "--preset", "demo", "--store", str(store), "--dry-run")
    assert (left["runs"], left["found"]) == (10, 0)
    assert left["seconds"] > 0
    assert left["flops"] > 0


def test_claims_fit_the_terminal(smoke):
    _, store, _ = smoke
    table = headwise("claims", "--store", str(store)).stdout
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "to resolve it: headwise study run rank-cliff" in " ".join(table.split())
    rows = as_json("claims", "--source", "q", "--store", str(store))
    assert {"id", "claim", "verdict", "estimate", "low", "high", "published", "seeds", "runs"} <= set(rows[0])
    assert {row["id"][0] for row in as_json("claims", "--source", "L", "--store", str(store))} == {"L"}


def test_runs_are_listed_shown_exported_and_merged(smoke, tmp_path):
    _, store, _ = smoke
    rows = as_json("runs", "--store", str(store))
    assert len(rows) == 18
    table = headwise("runs", "--store", str(store)).stdout
    assert all(len(line) <= 80 for line in table.splitlines())
    key = rows[0]["key"]
    assert as_json("runs", "show", key[:8], "--store", str(store))["key"] == key
    assert "headwise train" in headwise("runs", "show", key, "--store", str(store)).stdout
    parquet = tmp_path / "out" / "runs.parquet"
    parquet.parent.mkdir()
    headwise("export", str(parquet), "--store", str(store))
    merged = as_json("runs", "merge", str(parquet), "--store", str(tmp_path / "other.db"))
    assert merged == {"added": 18, "known": 0, "replaced": 0}
    judged = {row["id"]: row for row in as_json("claims", "--from", str(parquet.parent))}
    assert all(judged[name]["runs"] for name in ("Q7", "Q8", "Q9"))


def test_one_run_by_itself_gives_the_stored_number(smoke, tmp_path):
    _, store, _ = smoke
    with Store(store) as held:
        run, result = next(iter(held.runs()))
    spec = tmp_path / "run.json"
    spec.write_text(run.model_dump_json())
    assert as_json("train", str(spec))["metrics"] == result.metrics


def test_a_shard_is_a_store_that_merges_and_curves_are_mirrored(smoke, tmp_path):
    """Shard 2 of 9 as a Slurm array would start it, its curves in TensorBoard's files."""
    _, store, _ = smoke
    array = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "9"}
    arguments = ("--preset", "smoke", "--store", str(tmp_path / "shard.db"), "--track", "tensorboard")
    said = as_json("study", "run", "rank-cliff", *arguments, cwd=tmp_path, **array)
    assert said["runs"]["planned"] == 2
    assert len(list(tmp_path.glob("runs/rank-cliff/*/events*"))) == 2
    merged = as_json("runs", "merge", str(tmp_path / "shard.db"), "--store", str(store))
    assert merged == {"added": 0, "known": 2, "replaced": 0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_a_signal_it_says_so_and_goes_on_later(tmp_path, number):
    store = tmp_path / "runs.db"
    words = ["study", "run", "rank-cliff", "--preset", "laptop", "--store", str(store), "--shard", "0/30", "--json"]
    words += ["--workers", "2"]
    command = [sys.executable, "-m", "headwise", *words]
    driver = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_workers(driver)
    assert driver.poll() is None, driver.communicate()
    driver.send_signal(number)
    out, error = driver.communicate()
    assert driver.returncode == 130, error
    assert "Traceback" not in error
    assert out == ""  # never a partial answer
    assert "in checkpoints; the same command goes on" in error
    assert list((tmp_path / "runs.files" / "checkpoints").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["study", "run", "chess"], "no study 'chess'"),
        (["study", "show", "chess"], "no study 'chess'"),
        (["study", "run", "rank-cliff", "--preset", "huge"], "no preset 'huge'"),
        (["study", "run", "rank-cliff", "--shard", "9/3"], "shard 9/3 does not exist"),
        (["study", "run", "rank-cliff", "--device", "abacus"], "no device 'abacus'"),
        (["study", "run", "rank-cliff", "--precision", "int1"], "no precision 'int1'"),
        (["study", "run", "rank-cliff", "--preset", "smoke", "--track", "paper"], "no tracker 'paper'"),
        (["claims", "--source", "Z"], "no source 'Z'"),
        (["claims", "--from", "nowhere"], "nowhere"),
        (["runs", "show", "ffff"], "no run ffff"),
        (["runs", "merge", "nothing.db"], "nothing.db"),
        (["train", "nothing.json"], "cannot read a run"),
        (["train", "{}"], "task"),
        (["export", "runs.txt"], "runs.txt"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_exit_code_2(words, message, tmp_path):
    done = headwise(*words, check=False, cwd=tmp_path, HEADWISE_STORE=str(tmp_path / "s.db"))
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_a_failed_run_is_exit_code_1(tmp_path):
    spec = tmp_path / "run.json"
    spec.write_text(small_run(shape="w16-h4").model_dump_json())
    done = headwise("train", str(spec), check=False)
    assert done.returncode == 1


def test_studies_are_listed_and_shown():
    assert "rank-cliff" in headwise("study", "list").stdout
    shown = headwise("study", "show", "rank-cliff").stdout
    assert "2407.16153" in shown
    assert as_json("study", "show", "rank-cliff")["presets"]["paper"]["runs"] == 315


def test_the_default_store_is_where_the_variable_says(tmp_path):
    path = tmp_path / "mine.db"
    headwise("runs", HEADWISE_STORE=str(path))
    assert path.exists()
    assert Path(os.fspath(path)).stat().st_size > 0
