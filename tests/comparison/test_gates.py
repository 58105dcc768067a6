"""Has it learned? The gates before a ranking, each on runs that pass and on runs that must not be ranked."""

import math
from dataclasses import replace

import pytest

from headwise.comparison import verdict
from headwise.comparison.gates import FAST, beats_baseline, curves_flat, passed_gates, rates_inside, second_half
from headwise.comparison.judge import rank_variants
from headwise.comparison.metric import Metric, measured
from headwise.comparison.pace import draw_up
from headwise.comparison.plan import Course
from headwise.comparison.trainers import Outcome, with_baseline
from headwise.tasks import load_task
from helpers.comparisons import BASE, OTHER, question, rows_of

ERRORS = {BASE: [2.50, 2.52, 2.49], OTHER: [2.40, 2.41, 2.39]}
INSIDE = Course(rates={BASE: 0.004, OTHER: 0.004}, tried={BASE: [0.002, 0.004, 0.008], OTHER: [0.002, 0.004, 0.008]})
EDGE = Course(rates={BASE: 0.004, OTHER: 0.008}, tried=INSIDE.tried)


def plan_of(**changes):
    asked = question(arms=(OTHER,), rates=(0.002, 0.004, 0.008), steps=400, seeds=3)
    return draw_up(asked, 1, lambda runs: [0.01] * len(runs)).replace(**changes)


def with_curves(errors, shapes, no_skill=4.7, steps=400):
    """Rows whose validation curves end at their errors; `shapes` has what is left to fall at each fifth, by variant."""
    points = range(1, 6)
    return [
        replace(
            row,
            metrics=row.metrics | ({"trivial_error": no_skill} if no_skill else {}),
            history=tuple(
                (steps * n // 5, "error", row.metrics["error"] + left)
                for n, left in zip(points, shapes[row.cell["arm"]], strict=True)
            ),
        )
        for row in rows_of(errors)
    ]


FLAT, STEEP = (1.0, 0.4, 0.2, 0.05, 0.0), (2.0, 1.5, 1.1, 0.5, 0.0)


def test_a_base_that_a_simple_model_beats_has_not_learned():
    ranking = rank_variants(rows_of(ERRORS), BASE)
    assert beats_baseline(plan_of(baseline=("bigram", 3.1)), ranking).passed
    gate = beats_baseline(plan_of(baseline=("bigram", 2.3), metric=Metric(name="bits per byte")), ranking)
    assert (gate.passed, "bits per byte 2.503, bigram 2.3" in gate.detail) == (False, True)
    assert beats_baseline(plan_of(), ranking).passed is None
    higher = rank_variants(rows_of(ERRORS), BASE, metric=measured("accuracy"))
    assert beats_baseline(plan_of(baseline=("majority", 2.3), metric=measured("accuracy")), higher).passed


def test_curves_that_still_fall_fast():
    flat = with_curves(ERRORS, {BASE: FLAT, OTHER: FLAT})
    ranking = rank_variants(flat, BASE)
    fall, share = second_half(flat[:3], ranking)
    assert fall == pytest.approx(0.3)  # half-way between the second and the third point
    assert share == pytest.approx(0.3 / (4.7 - sum(ERRORS[BASE]) / 3))
    assert curves_flat(flat, ranking).passed
    steep = curves_flat(with_curves(ERRORS, {BASE: STEEP, OTHER: STEEP}), ranking)
    assert (steep.passed, BASE in steep.detail) == (False, True)  # 1.3 of 2.2 came in the second half
    only_best = with_curves(ERRORS, {BASE: FLAT, OTHER: STEEP})
    assert curves_flat(only_best, ranking).passed  # it would only be farther ahead
    far = {BASE: ERRORS[BASE], OTHER: [0.4, 0.41, 0.39]}
    assert curves_flat(with_curves(far, {BASE: STEEP, OTHER: FLAT}), rank_variants(rows_of(far), BASE)).passed
    line = (1.6, 1.2, 0.8, 0.4, 0.0)
    assert second_half(with_curves({BASE: [2.7]}, {BASE: line}), ranking)[1] == pytest.approx(0.5)
    assert FAST < 0.5


def test_curves_without_a_no_skill_level_must_begin_early():
    rows = with_curves(ERRORS, {BASE: STEEP, OTHER: STEEP}, no_skill=0)
    ranking = rank_variants(rows, BASE)
    assert curves_flat(rows, ranking).passed is None  # the first point is at a fifth
    early = [replace(row, history=((0, "error", 4.7), *row.history)) for row in rows]
    assert curves_flat(early, ranking).passed is False
    rising = [replace(row, history=tuple((s, n, -v) for s, n, v in row.history)) for row in early]
    accuracy = rank_variants(rows_of({v: [-e for e in es] for v, es in ERRORS.items()}), BASE, metric=measured("acc"))
    assert curves_flat(rising, accuracy).passed is False
    assert curves_flat(rows_of(ERRORS), ranking).passed is None


def test_a_gate_that_fails_leaves_no_winner_and_says_what_to_do():
    plan = plan_of(baseline=("bigram", 2.3), metric=Metric(name="bits per byte"))
    rows = with_curves(ERRORS, {BASE: FLAT, OTHER: FLAT})
    ranking = rank_variants(rows, BASE, metric=plan.metric)
    assert ranking.decided
    found = passed_gates(plan, EDGE, rows, ranking)
    assert (found.winner, found.decided, math.isnan(found.probability_best)) == (None, False, True)
    assert all(math.isnan(one.probability_best) for one in found.arms)
    assert [(gate.name, gate.passed) for gate in found.gates] == [
        ("baseline", False),
        ("curves", True),
        ("learning rate", False),
    ]
    said = verdict.verdict(found)
    assert said.startswith("Cannot tell: the base has not learned enough to beat a simple baseline")
    assert f"{OTHER} (0.008)" in said
    assert said.endswith("First train longer and try more learning rates.")
    outcome = Outcome(plan, EDGE, rows, found)
    remedy = verdict.remedy(outcome, question(), ["headwise", "compare", "--task", "recall"])
    assert "--steps 1600" in remedy
    assert "--lr 0.002,0.004,0.008" in remedy
    passed = passed_gates(plan.replace(baseline=("bigram", 3.0)), INSIDE, rows, ranking)
    assert (passed.winner, passed.decided) == (OTHER, True)
    assert verdict.remedy(replace(outcome, ranking=passed), question(), []) is None


def test_what_cannot_be_checked_is_said():
    rows = rows_of(ERRORS)
    one_rate = Course(rates={BASE: 0.004}, tried={BASE: [0.004], OTHER: [0.004]})
    assert rates_inside(one_rate).passed is None
    found = passed_gates(plan_of(), one_rate, rows, rank_variants(rows, BASE))
    assert found.winner == OTHER
    assert len([line for line in verdict.reservations(found) if line.startswith("not checked")]) == 3


def test_a_plan_keeps_the_tasks_own_baseline_and_the_name_of_its_metric():
    task = {"name": "nearest-neighbor", "dim": 8, "points": 4}
    plan = with_baseline(plan_of(task=task))
    assert plan.baseline == load_task(task).simple_baseline()
    assert plan.metric == Metric(name="squared error")
    assert type(plan)(**plan.model_dump()) == plan
    old = {name: value for name, value in plan.model_dump().items() if name not in ("metric", "baseline")}
    assert type(plan)(**old).baseline == ("", 0.0)
    command = plan_of(task={"name": "command", "command": "x {seed}", "metric_json": "f", "metric": "acc"})
    assert with_baseline(command) == command
