"""A sweep as it runs: the time left, by a clock of the test's own."""

import pytest
from rich.console import Console
from rich.progress import Progress

from headwise.report.live import UNITS, _Drawing
from headwise.sweep.plan import work
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
