"""Studies from plan to rows: learning rates chosen on validation, data found where it is, rows of one data set."""

import math
from dataclasses import replace

import pytest

from headwise.ledger.study import stages, study_rows
from headwise.spec import SpecError
from headwise.store.rows import TRIAL_SEED, at_rates, best_rate, results_of
from headwise.store.store import Store
from headwise.studies import load
from headwise.sweep.resolve import fitted
from headwise.training.run import Execution, RunResult

RATES = (0.001, 0.01, 0.1)


@pytest.fixture
def study():
    found = load("in-context")
    return replace(found, presets={"smoke": found.presets["smoke"].replace(rates=RATES)})


def done(run, **metrics):
    return RunResult(run.key, "done", metrics={"error": 0.5, "trivial_error": 1.0, **metrics})


def test_judged_runs_take_the_rate_that_validation_prefers(study):
    """One arm likes 0.1, the other 0.001, where its 0.1 diverged; test errors say the opposite and do not count."""
    best = {1: 0.1, 4: 0.001}
    with Store(":memory:") as store:
        first, *_ = list(stages(study, "smoke", store, Execution(), {}))
        assert {(run.seed, run.recipe.learning_rate) for run in first} == {(TRIAL_SEED, rate) for rate in RATES}
        for run in first:
            heads, rate = run.model_shape.layers[0].heads, run.recipe.learning_rate
            miss = abs(math.log10(rate / best[heads]))
            result = done(run, validation_error=0.1 + miss, error=1.0 - 0.1 * miss)
            store.add(run, RunResult(run.key, "diverged") if (heads, rate) == (4, 0.1) else result)
        again, second = stages(study, "smoke", store, Execution(), {})
        assert {run.key for run in again} == {run.key for run in first}
        found = {(run.model_shape.layers[0].heads, run.recipe.learning_rate) for run in second}
        assert found == set(best.items())
        assert {run.seed for run in second} == {0, 1, 2}
        for run in second:
            store.add(run, done(run))
        rows = study_rows(study, "smoke", store)
    assert len(rows) == len(second)
    assert {(row.cell["heads"], row.metrics["learning_rate"]) for row in rows} == set(best.items())


def test_a_place_whose_trials_are_not_all_done_is_not_judged(study):
    with Store(":memory:") as store:
        (first, _) = stages(study, "smoke", store, Execution(), {})
        for run in first[:-1]:
            store.add(run, done(run, validation_error=0.3))
        _, second = stages(study, "smoke", store, Execution(), {})
    left_out = first[-1].model_shape.layers[0].heads
    assert second
    assert left_out not in {run.model_shape.layers[0].heads for run in second}


def test_no_rate_is_chosen_where_none_came_to_an_end():
    runs = at_rates(load("in-context").of("smoke")[0].run, RATES)
    with Store(":memory:") as store:
        store.add(runs[0], RunResult(runs[0].key, "diverged"))
        with pytest.raises(SpecError, match="try lower ones"):
            best_rate(runs, store)
        store.add(runs[1], done(runs[1], validation_error=0.3))
        assert best_rate(runs, store) == RATES[1]


# ---- data ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stories(tmp_path):
    files = []
    for name in ("old", "new"):
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text(f"A {name} story about a head of high rank.\n" * 200)
    return [str(file) for file in files]


def test_runs_learn_which_data_they_have(stories):
    run = load("head-size").of("smoke")[0].run
    old, new = (fitted([run], Execution(), sources={"text": place})[0] for place in stories)
    assert old.task["source"] == stories[0]
    assert old.task["content"]
    assert old.task["content"] != new.task["content"]
    assert len({run.key, old.key, new.key}) == 3
    assert run.cell_key == old.cell_key == new.cell_key


def test_rows_of_different_data_are_not_mixed(stories):
    """The data of most of the runs counts; of as many, the newest."""
    cells = load("head-size").of("smoke")
    runs = [cell.run for cell in cells]
    old, new = (fitted(runs, Execution(), sources={"text": place}) for place in stories)
    with Store(":memory:") as store:
        for run in [*old, *new[:1]]:
            store.add(run, done(run))
        assert {result.key for result in results_of(store, cells).values()} == {run.key for run in old}
        assert fitted(runs[1:2], Execution(), store, {"text": stories[1]}) == new[1:2]
        for run in new[1:]:
            store.add(run, done(run))
        assert {result.key for result in results_of(store, cells).values()} == {run.key for run in new}


def test_images_decide_sizes_of_the_model_and_the_place_in_the_grid_stays():
    from headwise.options import preset
    from headwise.training.run import Run

    guess = preset("vit", image=32, patch=4, classes=3)
    run = Run(task={"name": "images"}, shape="w16-h2-L1", options=guess, steps=1)
    (found,) = fitted([run], Execution())
    assert (found.options.image, found.options.channels, found.options.classes) == (8, 1, 10)
    assert found.cell_key == run.cell_key
    assert found.key != run.key
