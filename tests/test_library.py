"""The library as people use it: one call for what a command does, results to look at, and types that hold."""

import json
import os
import subprocess
import sys

import pytest

import headwise as hw
from helpers.commands import as_json

TASK = "nearest-neighbor,dim=8,points=4"
SCRIPT = """
import headwise as hw


def main() -> None:
    total: int = hw.price("llama-3.2-1b").parameters["total"]
    shapes = hw.equal_cost("w512-h8-L6", vary=["heads"], hold="params", tolerance="1%")
    heads: list[int | tuple[int, ...]] = [row.shape.heads for row in shapes]
    study = hw.run_study("rank-cliff", preset="laptop", workers=2, data={"text": "my.txt"})
    verdicts: list[str] = [judgement.verdict for judgement in study.claims]
    study.chart()
    answer: hw.Answer = hw.compare("text:my.txt", "w64-h4-L2", ["w64-h2-L2"], budget="25m", family="gpt2")
    winner: str | None = answer.winner
    print(answer.table.height, answer.probability_best, answer.confounds, answer.to_json(), total, heads)
    plan: hw.PlannedComparison = hw.plan_comparison("recall", learning_rates=[0.001, 0.01], batch_size=8)
    judged: hw.Answer = hw.compare_table("runs.csv", metric="loss")
    ledger: hw.Ledger = hw.claims("Q", results="results/")
    ids: list[str] = [judgement.claim.id for judgement in ledger]
    best: str = hw.suggest("gpt2", "memory").headline
    loss: float | None = hw.predict("w192-h4-L6").loss
    trained: hw.Trained = hw.train(task="recall", steps=10, learning_rate=[0.001, 0.01])
    again: hw.Trained = hw.train(trained.run)
    error: float = again.metrics["error"]
    run = hw.Run(task={"name": "recall"}, shape="w32-h4", steps=10, recipe=hw.Recipe(learning_rate=0.1, batch=4))
    with hw.Store("runs.db") as store:
        keys: list[str] = [stored.run.key for stored in hw.runs(store, status="done")]
    print(winner, verdicts, plan.fits, judged.verdict, ids, best, loss, error, run.key, keys)
    print(hw.demo(steps=10).verdict, hw.list_tasks().table, hw.list_studies().table, hw.find_run("82cd05").run)


if __name__ == "__main__":
    main()
"""


def looks_right(result, document=None):
    """A table, HTML and JSON, which is what the command prints."""
    assert result.table.height
    assert "<table" in result._repr_html_()
    assert document is None or json.loads(result.to_json()) == document


def test_mypy_strict_accepts_a_script_that_uses_all_of_it(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_costs_and_shapes():
    looks_right(hw.price("gpt2"), as_json("cost", "gpt2"))
    assert hw.price(hw.find("gpt2")) == hw.price("gpt2")
    assert hw.price(hw.ModelShape.parse("w64-h4")).parameters["embeddings"] == 0
    assert hw.price("w64-h4", family="llama", vocab=100).parameters["embeddings"] == 100 * 64
    shapes = hw.equal_cost("w64-h4-L2", vary=["heads"])
    looks_right(shapes, as_json("shapes", "w64-h4-L2"))
    assert list(shapes) == hw.equal_cost(hw.ModelShape.parse("w64-h4-L2"))
    looks_right(hw.known_models(), as_json("shapes", "--known"))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    return folder, hw.run_study("rank-cliff", preset="smoke", store=folder / "runs.db", out=folder / "chart")


def test_a_study_its_claims_and_its_runs(study):
    folder, result = study
    store = str(folder / "runs.db")
    looks_right(result)
    assert (result.summary.trained, result.table.height) == (18, 18)
    assert [judgement.claim.id for judgement in result.claims] == ["Q7", "Q8", "Q9", "Q21"]
    assert result.chart().to_dict()
    words = ("study", "run", "rank-cliff", "--preset", "smoke", "--store", store, "--out", str(folder / "chart"))
    again = hw.run_study("rank-cliff", preset="smoke", store=store, out=folder / "chart")
    looks_right(again, as_json(*words))
    ledger = hw.claims("Q", store=store)
    looks_right(ledger, as_json("claims", "--source", "Q", "--store", store))
    assert ledger["Q7"].runs
    runs = hw.runs(store)
    looks_right(runs, as_json("runs", "--store", store))
    looks_right(hw.find_run(next(iter(runs)).run.key, store))
    looks_right(hw.price_study("rank-cliff", "smoke", store=store))
    looks_right(hw.describe_study("rank-cliff"), as_json("study", "show", "rank-cliff"))
    looks_right(hw.list_studies(), as_json("study", "list"))


def test_training_on_a_task_and_a_run(tmp_path):
    store = tmp_path / "runs.db"
    settings = {"task": TASK, "shape": "w8-h2-m16", "steps": 20, "batch_size": 16}
    trained = hw.train(**settings, learning_rate=[0.001, 0.01], store=store)
    looks_right(trained)
    assert trained.learning_rate in (0.001, 0.01)
    assert len(hw.runs(store)) == 3  # two trials of learning rates, and the run itself
    assert hw.train(trained.run).metrics == trained.metrics
    words = ("--shape", "w8-h2-m16", "--steps", "20", "--batch-size", "16", "--lr", "0.001,0.01", "--store", str(store))
    assert as_json("train", "--task", TASK, *words) == json.loads(trained.to_json())


def test_tasks():
    looks_right(hw.describe_task(TASK), as_json("tasks", TASK))


def test_a_table_of_finished_runs(tmp_path):
    lines = [f"{name},{seed},{loss + seed}" for name, loss in (("wide", 1.0), ("deep", 0.8)) for seed in range(4)]
    (tmp_path / "rows.csv").write_text("\n".join(["arm,seed,metric", *lines]) + "\n")
    answer = hw.compare_table(tmp_path / "rows.csv", out=tmp_path)
    looks_right(answer, as_json("compare", "--from", str(tmp_path / "rows.csv"), "--out", str(tmp_path)))
    assert (answer.winner, answer.decided) == ("deep", True)
    assert answer.chart().to_dict()["title"]["text"] == "metric by arm, base wide"


def test_suggestions_and_predictions(tmp_path):
    store = tmp_path / "runs.db"
    words = ("--base", "gpt2", "--goal", "memory", "--store", str(store))
    looks_right(hw.suggest("gpt2", "memory", store=store), as_json("suggest", *words))
    predicted = hw.predict("w192-h4-L6", store=store)
    looks_right(predicted, as_json("predict", "w192-h4-L6", "--store", str(store)))
    assert predicted.loss is None
    assert "no judged runs of the ladder" in predicted.headline


def test_an_interrupt_raises_and_answers_nothing(tmp_path, monkeypatch):
    """Ctrl-C in one's own trainer: what ended is stored, and the same call goes on."""
    script = """
import json, os, pathlib, signal, sys, time
with open("log.txt", "a") as log:
    print(*sys.argv, file=log)
if len(pathlib.Path("log.txt").read_text().splitlines()) == 3:
    os.kill(int(os.environ["DRIVER"]), signal.SIGINT)
    time.sleep(600)
json.dump({"metric": float(sys.argv[2])}, open("out.json", "w"))
"""
    (tmp_path / "train.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRIVER", str(os.getpid()))
    command = f'"{sys.executable}" train.py {{heads}} {{seed}}'
    settings = {"command": command, "metric_json": "out.json", "seeds": 3, "steps": 1, "store": tmp_path / "runs.db"}
    with pytest.raises(KeyboardInterrupt) as stopped:
        hw.compare(base="w16-h2", variants=["w16-h4"], **settings)
    assert stopped.value.summary.stopped == 1
    assert len(hw.runs(tmp_path / "runs.db")) == 2
    assert hw.compare(base="w16-h2", variants=["w16-h4"], **settings).summary.planned == 6
