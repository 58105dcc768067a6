"""From a registered study's rows to verdicts: gates first, then every condition by itself, then all of them together.

- A claim **holds** if every test's one-sided 97.5 % bound clears under every condition (intersection–union: no
  correction is needed), **fails** if every condition excludes it, and is **open** otherwise.
- A gate that fails makes its condition untestable. With all of them gated out the verdict is **cannot tell**, with the
  reasons; with some, it is about those where it could be tested (k of n).
- Where at least one condition holds and one fails, both on intervals corrected for the number of conditions, the claim
  depends on a condition it does not name: **cannot tell**, conditional.

A pure function of rows, so that invented worlds can be judged as real ones are. No torch here.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean

from headwise.ledger.change_point import change_point
from headwise.ledger.claims import PARAMETERS, Comparison, exactly
from headwise.ledger.contrasts import SOLVED_BELOW, AnyEstimate, estimate
from headwise.ledger.judge import Gate, Judgement, Measured, Verdict
from headwise.ledger.registration import Gates, Learned, Rate, RegisteredClaim, Registration, Saving, Test
from headwise.ledger.statistics import LEVEL, mean_interval
from headwise.ledger.study import as_claim
from headwise.store.rows import Row, cell

NOT_RISEN = 1.02  # times the least validation error of a run: its last, where it saw its data too often


@dataclass(frozen=True)
class Part:
    """One test under one condition: what was measured, and its p-values for the claim and against it."""

    measured: Measured
    for_it: float
    against: float


@dataclass(frozen=True)
class Condition:
    """A claim under one condition."""

    name: str
    gates: tuple[Gate, ...]
    parts: tuple[Part, ...]

    @property
    def testable(self) -> bool:
        return all(gate.passed for gate in self.gates)

    @property
    def for_it(self) -> float:
        """The p-value of "it does not hold here": all tests must clear."""
        return max(part.for_it for part in self.parts)

    @property
    def against(self) -> float:
        """The p-value of "it holds here": one test that excludes it is enough, so the least times their number."""
        sampled = sum(not part.measured.comparison.exact for part in self.parts)
        return min(1.0, min(part.against * (1 if part.measured.comparison.exact else sampled) for part in self.parts))


def judge_rows(
    registration: Registration,
    claim: RegisteredClaim,
    rows: Sequence[Row],
    rates: Mapping[str, Rate],
    level: float = 1 - LEVEL,
) -> Judgement:
    """The verdict of a claim from rows at its registered seeds; `level` is of the look at which it is taken."""
    conditions = [_condition(registration, claim, name, rows, rates, level) for name in claim.conditions]
    verdict, qualifier = combined(conditions, level / 2)
    also = tuple((test, *_also(claim, test, rows, level)) for test in claim.also)
    measured = tuple(part.measured for one in conditions for part in one.parts)
    sampled = [one.seeds for one in measured if not one.comparison.exact]
    weakest = min if verdict == "fails" else max
    pick = (lambda part: part.against) if verdict == "fails" else (lambda part: part.for_it)
    parts = [part for one in conditions if one.testable or verdict == "cannot tell" for part in one.parts]
    deciding = weakest(parts, key=pick).measured if parts else None
    keys = dict.fromkeys(key for one in measured for key in one.comparison.keys)
    tested = [one for one in conditions if one.testable]
    chance = 1.0
    if tested:
        chance = 2 * min(max(one.for_it for one in tested), max(one.against for one in tested))
    return Judgement(
        as_claim(claim, registration.study),
        verdict,
        "desktop",
        measured,
        deciding,
        min(sampled, default=0),
        tuple(keys),
        registration=registration.hash,
        qualifier=qualifier,
        gates=tuple((one.name, gate) for one in conditions for gate in one.gates),
        also=also,
        chance=min(1.0, chance),
    )


def combined(conditions: Sequence[Condition], tail: float) -> tuple[Verdict, str]:
    """The verdict over conditions, and what qualifies it; `tail` is of a one-sided bound."""
    tested = [one for one in conditions if one.testable]
    if not tested:
        return "cannot tell", _reasons(conditions)
    where = f"where testable ({len(tested)} of {len(conditions)})" if len(tested) < len(conditions) else ""
    where += f": {_reasons(conditions)}" if where else ""
    if all(one.for_it <= tail for one in tested):
        return "holds", where
    if all(one.against <= tail for one in tested):
        return "fails", where
    share = tail / len(conditions)
    true, false = ([one.name for one in tested if p(one) <= share] for p in (_for_it, _against))
    if true and false:
        return "cannot tell", f"conditional: holds with {', '.join(true)}; fails with {', '.join(false)}"
    return "open", where


def _for_it(one: Condition) -> float:
    return one.for_it


def _against(one: Condition) -> float:
    return one.against


def _reasons(conditions: Iterable[Condition]) -> str:
    """Why some conditions could not be tested; the same reason once."""
    reasons: dict[str, list[str]] = {}
    for one in conditions:
        for gate in one.gates:
            if not gate.passed:
                reasons.setdefault(gate.detail, []).append(one.name)
    return "; ".join(
        f"{detail}{f' ({chr(44).join(names)})' if any(names) else ''}" for detail, names in reasons.items()
    )


def _condition(
    registration: Registration,
    claim: RegisteredClaim,
    name: str,
    rows: Sequence[Row],
    rates: Mapping[str, Rate],
    level: float,
) -> Condition:
    mine = cell(rows, condition=name)
    parts = [_part(test, name, mine, level) for test in claim.tests]
    if claim.saving:
        parts.append(_saving(claim.saving, mine))
    return Condition(name, tuple(gates_of(registration, claim.gates, name, mine, rates, level)), tuple(parts))


def _also(
    claim: RegisteredClaim, test: Test, rows: Sequence[Row], level: float
) -> tuple[Verdict, tuple[Measured, ...]]:
    """A contrast's own verdict over the same conditions; it has no gates of its own."""
    names = test.conditions or claim.conditions
    conditions = [Condition(name, (), (_part(test, name, cell(rows, condition=name), level),)) for name in names]
    verdict, _ = combined(conditions, level / 2)
    return verdict, tuple(part.measured for one in conditions for part in one.parts)


# ---- one test ------------------------------------------------------------------------------------------------------


def estimate_of(test: Test, rows: Sequence[Row]) -> AnyEstimate | None:
    """A test's contrast, from the rows of one condition."""
    strata: dict[str, dict[str, dict[int, float]]] = {}
    no_skill: dict[str, float] = {}
    if not all(math.isfinite(row.metrics["error"]) for row in rows):
        return None
    for row in rows:
        blocks = strata.setdefault(row.cell["stratum"], {})
        if (value := _value(test.field, row)) is not None:
            blocks.setdefault(row.cell["variant"], {})[row.seed] = value
        no_skill[row.cell["stratum"]] = row.metrics["trivial_error"]
    if test.doses:
        ((stratum, doses),) = test.by_stratum.items()
        return change_point(strata.get(stratum, {}), doses)
    return estimate(test.scale, strata, no_skill, test.by_stratum, test.base)


def _value(field: str, row: Row) -> float | None:
    """A metric of a row, or one over another; None where the row lacks it."""
    values = [row.metrics.get(name) for name in field.split("/")]
    if any(value is None for value in values):
        return None
    return math.prod(value ** (-1 if place else 1) for place, value in enumerate(values) if value is not None)


def _part(test: Test, condition: str, rows: Sequence[Row], level: float) -> Part:
    found = estimate_of(test, rows)
    names = {(stratum, variant) for stratum, weights in test.by_stratum.items() for variant in weights}
    used = [row for row in rows if (row.cell["stratum"], row.cell["variant"]) in names]
    lower = test.direction == "at most"
    seeds = min((len(cell(used, stratum=s, variant=v)) for s, v in names), default=0)
    comparison = partial(
        Comparison,
        test.metric,
        test.variant,
        test.baseline,
        direction="lower" if lower else "higher",
        where=condition,
        keys=tuple(row.key for row in used),
        note=_trend(test, rows),
    )
    if found is None:
        empty = comparison(ratios=(), threshold=1.0)
        return Part(Measured(empty, math.nan, 0.0, math.inf, "open"), 1.0, 1.0)
    low, high = found.bounds(1 - level)
    below, above = found.chance_below(test.limit), found.chance_above(test.limit)
    for_it, against = (below, above) if lower else (above, below)
    verdict: Verdict = "holds" if for_it <= level / 2 else "fails" if against <= level / 2 else "open"
    if test.scale != "log":
        one = comparison(ratios=(found.value,) * seeds, threshold=test.limit, unit="value")
        return Part(Measured(one, found.value, low, high, verdict), for_it, against)
    turn = -1.0 if lower else 1.0
    numbers = [_exp(turn * number) for number in (found.value, *((high, low) if lower else (low, high)))]
    one = comparison(ratios=(numbers[0],) * seeds, threshold=_exp(turn * test.limit))
    return Part(Measured(one, numbers[0], numbers[1], numbers[2], verdict), for_it, against)


def _exp(number: float) -> float:
    return math.exp(number) if number < 700 else math.inf


def _saving(saving: Saving, rows: Sequence[Row]) -> Part:
    sizes = [
        next((row.metrics["parameters"] for row in cell(rows, stratum=saving.stratum, variant=name)), math.nan)
        for name in (saving.variant, saving.baseline)
    ]
    one = exactly(PARAMETERS, saving.variant, saving.baseline, sizes[0] / sizes[1], at_most=1 - saving.part)
    ratio = one.ratios[0]
    chance = 0.0 if ratio >= one.threshold else 1.0
    return Part(Measured(one, ratio, ratio, ratio, "fails" if chance else "holds"), chance, 1 - chance)


def _trend(test: Test, rows: Sequence[Row]) -> str:
    """Where sizes vary: the effect at each of them."""
    if len(test.by_stratum) < 3 or test.scale != "log":
        return ""
    shown = []
    for stratum, weights in test.by_stratum.items():
        top, bottom = (weights_of(weights, sign) for sign in (1, -1))
        logs = [[math.log(row.metrics["error"]) for name in side for row in cell(rows, stratum=stratum, variant=name)]
                for side in (top, bottom)]  # fmt: skip
        if all(logs):
            turn = 1 if test.variant in top else -1
            shown.append(f"{stratum} {100 * math.expm1(turn * (mean(logs[0]) - mean(logs[1]))):+.1f} %")
    return f"by size: {', '.join(shown)}".replace("-", "−") if shown else ""


def weights_of(weights: Mapping[str, float], sign: int) -> list[str]:
    return [name for name, weight in weights.items() if weight * sign > 0]


# ---- gates ---------------------------------------------------------------------------------------------------------


def gates_of(
    registration: Registration,
    gates: Gates,
    condition: str,
    rows: Sequence[Row],
    rates: Mapping[str, Rate],
    level: float = 1 - LEVEL,
) -> Iterable[Gate]:
    """What of a condition's rows must hold before they are judged."""
    wild = sorted({row.cell["variant"] for row in rows if not math.isfinite(row.metrics["error"])})
    if wild:
        yield Gate("diverged", False, f"a run of {', '.join(wild)} diverged")
        return
    for one in gates.learned:
        yield from _learned(one, cell(rows, variant=one.variant, stratum=one.stratum), level)
    if gates.sensitive:
        yield _sensitive(gates.sensitive, rows, level)
    if gates.rates:
        yield _rates(registration, gates.rates, condition, rates)
    yield _passes(registration, gates.passes, rows)


def _learned(one: Learned, rows: Sequence[Row], level: float) -> Iterable[Gate]:
    name = f"{one.variant}{f' ({one.stratum})' if one.stratum else ''}"
    errors = [row.metrics["error"] for row in rows]
    if len(errors) < 2:
        yield Gate("learned", False, f"too few runs of {name}")
        return
    if one.solved:
        share = mean(error < SOLVED_BELOW for error in errors)
        detail = f"{share:.0%} of the seeds of {name} solved it, {one.solved:.0%} asked".replace("%", " %")
        yield Gate("learned", share >= one.solved, detail)
    else:
        middle, _, high = mean_interval(errors, 1 - level)
        detail = f"{name} {middle:.4g} (at most {high:.4g}), {one.baseline} {one.value:.4g}"
        passed = high < one.value
        yield Gate("learned", passed, detail if passed else f"the base had not learned enough: {detail}")
    halves = [value / row.metrics["trivial_error"] for row in rows if (value := _at_half(row)) is not None]
    if one.half and halves:
        detail = f"at half the budget {name} had {mean(halves):.2f} of a constant predictor's error"
        yield Gate("learned", mean(halves) < one.half, detail)


def _at_half(row: Row) -> float | None:
    """Validation error at half the steps."""
    curve = [(step, value) for step, name, value in row.history if name == "error"]
    if len(curve) < 2:
        return None
    return min(curve, key=lambda point: abs(point[0] - curve[-1][0] / 2))[1]


def _sensitive(pair: tuple[str, str], rows: Sequence[Row], level: float) -> Gate:
    """The experiment could have failed: fewer layers with the old heads are worse."""
    worse, base = pair
    test = Test(
        name="sensitive", variant=worse, baseline=base, metric="", weights={worse: 1.0, base: -1.0},
        direction="at least",
    )  # fmt: skip
    found = estimate_of(test, rows)
    if found is None:
        return Gate("sensitive", False, f"no runs of {worse} and {base} to compare")
    low, _ = found.bounds(1 - level)
    detail = f"{worse} vs {base} {100 * math.expm1(found.value):+.1f} %, at least {100 * math.expm1(low):+.1f} %"
    passed = low > 0
    return Gate("sensitive", passed, detail if passed else f"the control does not fail, so nothing could: {detail}")


def _rates(registration: Registration, names: tuple[str, ...], condition: str, rates: Mapping[str, Rate]) -> Gate:
    arms = [arm for arm in registration.arms if arm.condition == condition and arm.variant in names]
    lacking = [arm.name for arm in arms if arm.name not in rates]
    edge = [
        f"{arm.name} ({rates[arm.name].value:g})" for arm in arms if arm.name in rates and not rates[arm.name].interior
    ]
    if lacking or edge:
        what = f"no learning rate yet: {', '.join(lacking)}" if lacking else ""
        what = what or f"the best learning rate is at the edge of those tried: {', '.join(edge)}"
        return Gate("rate", False, what)
    return Gate("rate", True, "every learning rate is worse on either side")


def _passes(registration: Registration, most: float, rows: Sequence[Row]) -> Gate:
    """At most so many passes over the data; with more, validation must not have risen since its least."""
    passes = max((row.metrics.get("passes", 0.0) for row in rows), default=0.0)
    if passes <= most:
        return Gate("data", True, f"{passes:.2g} passes over the data" if passes else "data drawn anew")
    risen = [row for row in rows if row.metrics.get("passes", 0.0) > most and _risen(row)]
    detail = f"{passes:.2g} passes over the data"
    return Gate("data", not risen, f"{detail}, and validation rose in {len(risen)} runs" if risen else detail)


def _risen(row: Row) -> bool:
    curve = [value for _, name, value in row.history if name == "error"]
    return bool(curve) and curve[-1] > NOT_RISEN * min(curve)
