"""Runs on a dashboard: real Optuna and a real (offline) session of Weights & Biases, where they are installed."""

import math

import pytest

import headwise
from headwise.store.records import StoreError
from headwise.store.store import Store
from helpers.runs import make_result, make_run


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.db") as filled:
        for seed in range(3):
            run = make_run(seed)
            filled.add(run, make_result(run))
        yield filled


def test_optuna_has_a_study_per_task_and_a_trial_per_run(store, tmp_path):
    optuna = pytest.importorskip("optuna")
    file = tmp_path / "new" / "optuna.db"
    assert headwise.export_optuna(file, store) == 3
    storage = f"sqlite:///{file}"
    pairs = list(store.runs())
    for task in {run.task["name"] for run, _ in pairs}:
        trials = {t.user_attrs["key"]: t for t in optuna.load_study(study_name=task, storage=storage).trials}
        for run, result in (pair for pair in pairs if pair[0].task["name"] == task):
            trial, error = trials[run.key], result.metrics.get("error", math.nan)
            assert trial.params["seed"] == run.seed
            assert trial.params["learning_rate"] == run.recipe.learning_rate
            assert trial.value == error if math.isfinite(error) else not trial.values
    with pytest.raises(StoreError, match="exists"):
        headwise.export_optuna(file, store)


def test_weights_and_biases_get_a_row_per_run(store, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert headwise.export_wandb("mine", store) == 3
    assert list(tmp_path.glob("wandb/offline-run-*"))
