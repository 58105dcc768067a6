"""A sweep as it runs: the time left, by a clock of the test's own."""

from io import StringIO

import pytest
from rich.console import Console
from rich.progress import Progress

from headwise.report.live import UNITS, _Drawing
from headwise.sweep.plan import work
from headwise.training.run import RunResult
from helpers.runs import small_run


def test_after_a_resume_time_left_is_that_of_the_rest():
    """80 of 100 steps are in a checkpoint, then 5 a second are made."""
    run, now = small_run(steps=100), [0.0]
    bars = Progress(console=Console(quiet=True), get_time=lambda: now[0])
    whole = bars.add_task("", total=UNITS)
    drawing = _Drawing(bars, whole, work(run), 1)
    drawing.start(run)
    for now[0], step in ((1.0, 80), (2.0, 85), (3.0, 90)):
        drawing.step(run, step)
    for task in bars.tasks:
        assert task.remaining / task.speed == pytest.approx(2)
    assert bars.tasks[0].percentage == pytest.approx(50)


def test_a_run_from_its_beginning_is_all_of_it():
    run, now = small_run(steps=100), [0.0]
    bars = Progress(console=Console(quiet=True), get_time=lambda: now[0])
    drawing = _Drawing(bars, bars.add_task("", total=UNITS), work(run), 1)
    drawing.start(run)
    for now[0], step in ((1.0, 0), (2.0, 20), (3.0, 40)):
        drawing.step(run, step)
    assert bars.tasks[0].percentage == pytest.approx(40)
    assert bars.tasks[0].remaining / bars.tasks[0].speed == pytest.approx(3)


def test_a_single_run_says_step_loss_rate_and_time_left_where_nothing_is_drawn():
    run, now, out = small_run(steps=100), [0.0], StringIO()
    bars = Progress(console=Console(file=out, width=80), get_time=lambda: now[0])
    watch = _Drawing(bars, bars.add_task("", total=UNITS), work(run), 1).watch()
    watch.on_start(run)
    for now[0], step in ((0.5, 0), (0.7, 2), (0.9, 4), (2.5, 20), (10.5, 100)):
        if step:
            watch.on_loss(run, 3 - step / 100)
        watch.on_step(run, step)
    assert out.getvalue().splitlines() == [
        "step 2 of 100: loss 2.98, 10 steps per second, about 10 s left",
        "step 20 of 100: loss 2.8, 10 steps per second, about 8 s left",
        "step 100 of 100: loss 2, 10 steps per second",
    ]


def test_the_bar_of_a_run_has_its_loss_and_rate():
    run, now = small_run(steps=100), [0.0]
    bars = Progress(console=Console(quiet=True), get_time=lambda: now[0])
    watch = _Drawing(bars, bars.add_task("", total=UNITS), work(run), 2).watch()
    watch.on_start(run)
    for now[0], step in ((0.0, 0), (1.0, 5)):
        watch.on_loss(run, 1.5)
        watch.on_step(run, step)
    assert bars.tasks[1].description.endswith("loss 1.5 5/s")


def _said_at_the_ends(run, *errors):
    out = StringIO()
    bars = Progress(console=Console(file=out, width=80))
    watch = _Drawing(bars, bars.add_task("", total=UNITS), work(run), len(errors)).watch()
    for error in errors:
        watch.on_end(run, RunResult(run.key, "done", metrics={"error": error}))
    return [line.partition(", about")[0] for line in out.getvalue().splitlines()]


def test_the_best_so_far_is_the_least_error_of_headwises_own_tasks():
    assert _said_at_the_ends(small_run(), 0.5, 0.7) == ["1 of 2 runs, best 0.500 (w8-h2-m16)", *_of_two("best 0.500")]


def test_no_run_of_ones_own_trainer_is_called_best_by_its_number():
    """More of it may be better: the live view called the least accuracy the best."""
    run = small_run(task={"name": "command", "command": "run {heads} {seed}", "metric": "accuracy"})
    assert _said_at_the_ends(run, 0.5, 0.7) == ["1 of 2 runs, accuracy 0.5 (w8-h2-m16)", *_of_two("accuracy 0.7")]


def _of_two(said):
    return [f"2 of 2 runs, {said} (w8-h2-m16)"]
