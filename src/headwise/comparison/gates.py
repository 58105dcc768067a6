"""Has it learned? What must hold of the runs before their variants are ranked: a pure function of plan and rows.

- **baseline**: the base beats a simple model of the task (a bigram, a linear map); else the recipe or the length is
  wrong, and a ranking of models that know less than that says nothing of shapes.
- **curves**: no variant that lies behind is still falling fast. The schedule lowers the learning rate to its end, so
  that every curve is flat there, trained enough or not; so what counts is how much of all that was learned came in the
  second half of the steps. Where that is over a third (the second half brought more than half of what the first did),
  and more than the variant lies behind the best, longer training may turn the ranking round. Runs that have learned
  what they can are at a few hundredths, the ledger's short ones at a tenth to a quarter, a straight line at a half.
- **learning rate**: each finalist's is worse on either side, after its grid has grown as often as it may.

No torch here.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean

from headwise.comparison.judge import Curve, Gate, Ranking
from headwise.comparison.plan import ComparisonPlan, Course
from headwise.store.rows import Row

FAST = 1 / 3  # of what was learned, in the second half of the steps
EARLY = 0.1  # of the steps: where there is no no-skill level, a curve must begin before it
NO_SKILL = "trivial_error"  # where a run of headwise's own has the no-skill level
BASELINE, CURVES, RATE = "baseline", "curves", "learning rate"
MORE_STEPS, WIDER_RATES = "train longer", "try more learning rates"  # remedies


def passed_gates(plan: ComparisonPlan, course: Course, rows: Sequence[Row], ranking: Ranking) -> Ranking:
    """The ranking with its gates; where one fails there is no winner and no probability of being best."""
    if not ranking.judged:
        return ranking
    gates = (beats_baseline(plan, ranking), curves_flat(rows, ranking), rates_inside(course))
    ranking = replace(ranking, gates=gates)
    if not ranking.failed_gates:
        return ranking
    unknown = tuple(replace(variant, probability_best=float("nan")) for variant in ranking.arms)
    return replace(
        ranking, arms=unknown, winner=None, probability_best=float("nan"), decided=False, contenders=(), needed=None
    )


def beats_baseline(plan: ComparisonPlan, ranking: Ranking) -> Gate:
    (name, simple), metric = plan.baseline, plan.metric
    base = next((variant.metric for variant in ranking.judged if variant.arm == plan.base), None)
    if not name or base is None:
        return Gate(BASELINE, None, "no simple baseline is known" if not name else "the base was not judged")
    said = f"{metric.name} {base:.4g}, {name} {simple:.4g}"
    if metric.loss(base) < metric.loss(simple):
        return Gate(BASELINE, True, f"the base beats a simple baseline: {said}")
    return Gate(BASELINE, False, f"the base has not learned enough to beat a simple baseline: {said}", MORE_STEPS)


def curves_flat(rows: Sequence[Row], ranking: Ranking) -> Gate:
    falls = {variant.arm: second_half(_of(rows, variant.arm), ranking) for variant in ranking.judged}
    known = {variant: fall for variant, fall in falls.items() if fall is not None}
    if not known:
        return Gate(CURVES, None, "no validation curves from the beginning to the end of the runs")
    best = min(ranking.judged, key=lambda variant: ranking.metric.loss(variant.metric)).arm
    for variant, (fall, share) in known.items():
        gap = ranking.behind(variant, best)
        if variant != best and share > FAST and fall > gap:
            detail = (
                f"{variant} was still learning fast: {min(share, 1.0):.0%} of it came in the second half of training, "
                f"{fall:.3g} in {ranking.metric.name}, and it lies {gap:.3g} behind"
            )
            return Gate(CURVES, False, detail, MORE_STEPS)
    most = max(share for _, share in known.values())
    return Gate(CURVES, True, f"at most {max(0.0, most):.0%} of what was learned came in the second half of training")


def second_half(rows: Sequence[Row], ranking: Ranking) -> tuple[float, float] | None:
    """How far a variant's validation loss fell in the second half of its steps, and which share of the whole that is.

    The whole is counted from the no-skill level, else from an early point of the curve; None without either.
    """
    falls = [fall for row in rows if (fall := _fall(row, ranking)) is not None]
    if not falls:
        return None
    second, whole = mean(fall[0] for fall in falls), mean(fall[1] for fall in falls)
    return second, (second / whole if whole > 0 else 0.0)


def _fall(row: Row, ranking: Ranking) -> tuple[float, float] | None:
    """In the second half, and in all."""
    curve: Curve = [(step, ranking.metric.loss(value)) for step, name, value in row.history if name == "error"]
    if len(curve) < 2:
        return None
    (first, start), (last, end) = curve[0], curve[-1]
    if first > (last / 2 if NO_SKILL in row.metrics else EARLY * last):
        return None
    return _at(curve, last / 2) - end, row.metrics.get(NO_SKILL, start) - end


def _at(curve: Curve, step: float) -> float:
    """On straight lines between the points."""
    for (before, above), (after, below) in pairwise(curve):
        if before <= step <= after:
            return above + (below - above) * (step - before) / (after - before)
    return curve[-1][1]


def _of(rows: Sequence[Row], variant: str) -> list[Row]:
    return [row for row in rows if row.cell["arm"] == variant]


def rates_inside(course: Course) -> Gate:
    tried = {variant: course.tried[variant] for variant in course.rates}
    if any(len(its_rates) < 2 for its_rates in tried.values()):
        return Gate(RATE, None, "one learning rate was given, and none chosen")
    edge = {variant: rate for variant, rate in course.rates.items() if rate in (tried[variant][0], tried[variant][-1])}
    if edge:
        listed = ", ".join(f"{variant} ({rate:g})" for variant, rate in edge.items())
        return Gate(RATE, False, f"the best learning rate is at the edge of those tried: {listed}", WIDER_RATES)
    return Gate(RATE, True, "every finalist's learning rate is worse on either side")
