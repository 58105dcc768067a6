"""Which variant is best, from finished runs: a pure function of rows.

What the runs say of the variants' means is the textbook's (`designs`): randomised blocks where runs are paired by their
seeds, Welch's t where they are not. Intervals against the base and the probability of being best are both read off it,
the first corrected for the number of variants. Here everything is a loss, of which less is better; what a ranking holds
are the metric's own numbers. No torch here.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean

from headwise.comparison.designs import Design, Paired, Unpaired
from headwise.comparison.metric import Metric
from headwise.ledger.statistics import LEVEL, mean_interval
from headwise.spec import SpecError
from headwise.store.rows import Row

DECIDED = 0.5 + LEVEL / 2  # P(best) above it: for two equal variants wrong in 1 of 20 cases, for more in fewer
DRAWS, DRAWN_FROM = 200_000, 0  # of the posterior, and the seed of its random numbers
LEAST_RUNS = 2  # of a variant that is judged, where others have as many
MOST_SEEDS = 100  # variants that more would be needed for are as good as equal

Curve = list[tuple[int, float]]  # steps and validation metric


@dataclass(frozen=True)
class Judged:
    """One variant's numbers; NaN where there are none, and then `note` says why."""

    arm: str
    seeds: int
    metric: float = math.nan
    low: float = math.nan
    high: float = math.nan
    delta: float = math.nan
    delta_low: float = math.nan
    delta_high: float = math.nan
    probability_best: float = 0.0
    steps_to_base: float = math.nan
    seconds_to_base: float = math.nan
    speed_up: float = math.nan
    note: str = ""


@dataclass(frozen=True)
class Gate:
    """Whether variants can be ranked at all: something that must hold of the runs; None where it cannot be checked."""

    name: str
    passed: bool | None
    detail: str
    remedy: str = ""  # what to do where it does not hold: steps, learning rates


@dataclass(frozen=True)
class Ranking:
    """`winner` is the variant with the best mean; whether that is more than chance, `decided` says."""

    base: str
    arms: tuple[Judged, ...]
    seeds: tuple[int, ...]  # that at least two judged variants have; where runs are not paired, all
    winner: str | None = None  # None where there is no answer
    probability_best: float = math.nan
    decided: bool = False
    contenders: tuple[str, ...] = ()  # variants that may still be the best
    needed: int | None = None  # seeds that would decide between them; None where no reasonable number would
    metric: Metric = field(default_factory=Metric)
    paired: bool = True
    gates: tuple[Gate, ...] = ()
    alone: tuple[tuple[str, int], ...] = ()  # variants and seeds that no other judged variant has: they do not count

    @property
    def judged(self) -> list[Judged]:
        return [variant for variant in self.arms if not variant.note]

    @property
    def failed_gates(self) -> list[Gate]:
        return [gate for gate in self.gates if gate.passed is False]

    def behind(self, variant: str, other: str) -> float:
        """How much worse a variant's mean is than another's; negative where it is better."""
        means = {one.arm: self.metric.loss(one.metric) for one in self.arms}
        return means[variant] - means[other]


def rank_variants(
    rows: Iterable[Row],
    base: str,
    curves: Mapping[str, Curve] | None = None,
    *,
    metric: Metric | None = None,
    paired: bool = True,
) -> Ranking:
    """Rows have an `arm` in their cell and the metric as `error`, which is infinite where the run diverged.

    `curves` are validation curves by a row's key: what the steps to reach the base's last point are read off. Rows
    that are not `paired` have seeds that only number the runs of a variant.
    """
    metric = metric or Metric()
    variants = _by_seed(rows, base)
    notes = _excluded(variants, paired)
    losses = {
        variant: {seed: metric.loss(row.metrics["error"]) for seed, row in its_rows.items()}
        for variant, its_rows in variants.items()
        if variant not in notes
    }
    design: Design = Paired(losses) if paired else Unpaired(losses)
    chances = probabilities_best(design) if design.answers else {}
    kept = {variant: [variants[variant][seed] for seed in its] for variant, its in design.losses.items()}
    reached = _reached(kept, base, curves or {}, metric, paired)
    numbers = [
        Judged(variant, len(its_rows), note=notes[variant])
        if variant in notes
        else Judged(
            variant,
            len(kept[variant]),
            *spread([row.metrics["error"] for row in kept[variant]], LEVEL),
            *_own(metric, *_delta(design, variant, base)),
            chances.get(variant, math.nan),
            *reached.get(variant, ()),
        )
        for variant, its_rows in variants.items()
    ]
    seeds = tuple(sorted({seed for its in design.losses.values() for seed in its}))
    alone = tuple((variant, seed) for variant in losses for seed in sorted({*losses[variant]} - {*seeds}))
    return _decide(Ranking(base, tuple(numbers), seeds, metric=metric, paired=paired, alone=alone), design, chances)


def _by_seed(rows: Iterable[Row], base: str) -> dict[str, dict[int, Row]]:
    variants: dict[str, dict[int, Row]] = {base: {}}
    for row in rows:
        its_rows = variants.setdefault(row.cell["arm"], {})
        if row.seed in its_rows:
            raise SpecError(f"there are two runs of {row.cell['arm']} with seed {row.seed}; remove one of them")
        its_rows[row.seed] = row
    return variants


def _excluded(variants: dict[str, dict[int, Row]], paired: bool) -> dict[str, str]:
    """Variants that cannot be judged, and why: nothing finished, something diverged, or no runs to compare with."""
    notes = {}
    most = max(len(its_rows) for its_rows in variants.values())
    for variant, its_rows in variants.items():
        wild = [seed for seed, row in sorted(its_rows.items()) if not math.isfinite(row.metrics["error"])]
        if not its_rows:
            notes[variant] = "no finished runs"
        elif wild:
            notes[variant] = f"diverged with seed {', '.join(map(str, wild))}"
        elif len(its_rows) < min(LEAST_RUNS, most):
            notes[variant] = f"only {len(its_rows)} of {most} seeds finished"
    if paired:
        left = {variant: {*its_rows} for variant, its_rows in variants.items() if variant not in notes}
        notes |= dict.fromkeys(_apart(left), "its seeds are not those of the other variants")
    return notes


def _apart(seeds: dict[str, set[int]]) -> list[str]:
    """Variants without a seed, of their own or through others, that links them to the base, which comes first."""
    groups: list[set[str]] = []
    for variant in seeds:
        linked = [group for group in groups if any(seeds[variant] & seeds[other] for other in group)]
        groups = [group for group in groups if group not in linked] + [{variant}.union(*linked)]
    most = max(map(len, groups), default=0)
    if most < 2 and len(seeds) > 1:
        return list(seeds)
    first = next(iter(seeds), None)
    chosen = next((group for group in groups if first in group and len(group) > 1), None)
    return [v for v in seeds if v not in (chosen or max(groups, key=len))] if groups else []


def _own(metric: Metric, value: float, low: float, high: float) -> tuple[float, float, float]:
    """A difference of losses as one of the metric's own numbers."""
    return (-value, -high, -low) if metric.higher_is_better else (value, low, high)


def spread(values: list[float], level: float) -> tuple[float, float, float]:
    """A mean with its t-interval; without spread to estimate, the interval is everything."""
    if len(values) < 2:
        return mean(values), -math.inf, math.inf
    return mean_interval(values, level)


def _delta(design: Design, variant: str, base: str) -> tuple[float, float, float]:
    """Against the base; the level is divided among the variants that are compared with it."""
    if base not in design.losses:
        return math.nan, math.nan, math.nan
    if variant == base:
        return 0.0, 0.0, 0.0
    return design.difference(variant, base, 1 - (1 - LEVEL) / (len(design.variants) - 1))


def probabilities_best(design: Design) -> dict[str, float]:
    """Each variant's share of the posterior's draws in which its mean is the least; the same numbers every time."""
    import numpy as np

    drawn = design.draws(np.random.default_rng(DRAWN_FROM), DRAWS)
    best = drawn <= drawn.min(1, keepdims=True) + design.rounding
    shares = (best / best.sum(1, keepdims=True)).mean(0)  # without any noise, equals share
    return dict(zip(design.variants, map(float, shares), strict=True))


def _decide(ranking: Ranking, design: Design, chances: dict[str, float]) -> Ranking:
    """No winner where nothing can be told: too few runs, one variant, or the best are exactly equal."""
    if not chances:
        return ranking
    winner, second, *_ = sorted(design.variants, key=lambda variant: design.effects[variant])
    contenders = tuple(variant for variant, chance in chances.items() if variant == winner or chance > 1 - DECIDED)
    if design.effects[second] - design.effects[winner] <= design.rounding:
        return replace(ranking, contenders=contenders)
    decided = chances[winner] >= DECIDED
    needed = None if decided else seeds_needed(design)
    found = replace(ranking, winner=winner, probability_best=chances[winner], decided=decided)
    return replace(found, contenders=contenders, needed=needed)


def seeds_needed(design: Design) -> int | None:
    """Runs of each variant with which the best would be decided, if gaps and noise stay what they are.

    The chances of the other variants add up to more than theirs together, so the number is on the safe side.
    """
    from headwise.ledger.special import stdtr

    best, *others = sorted(design.variants, key=lambda variant: design.effects[variant])
    gaps = {other: design.effects[other] - design.effects[best] for other in others}
    if min(gaps.values()) <= design.rounding:
        return None
    for runs in range(1 + min(map(len, design.losses.values())), MOST_SEEDS + 1):
        errors = {other: design.standard_error(other, best, runs) for other in others}
        tails = (1 - float(stdtr(free, gaps[v] / unit)) for v, (unit, free) in errors.items() if unit)
        if sum(tails) <= 1 - DECIDED:
            return runs
    return None


# ---- how soon a variant is where the base ends ---------------------------------------------------------------------


def _reached(
    variants: dict[str, list[Row]], base: str, curves: Mapping[str, Curve], metric: Metric, paired: bool
) -> dict[str, tuple[float, float, float]]:
    """Steps and seconds until a variant's mean curve is at the base's last point, and the speed-up that makes.

    Validation curves, and so comparable with each other, not with the reported error; of seeds that both have.
    """

    def course(rows: list[Row], like: list[Row]) -> tuple[Curve, float]:
        """The mean curve as losses, and the seconds of a step."""
        same = [row for row in rows if not paired or row.seed in {other.seed for other in like}]
        points = [[(step, metric.loss(value)) for step, value in curves.get(row.key, [])] for row in same]
        return _mean_curve(points), mean(row.metrics.get("step_seconds", math.nan) for row in same or rows)

    reached = {}
    for variant, rows in variants.items() if base in variants else ():
        (curve, step_time), (target, base_time) = course(rows, variants[base]), course(variants[base], rows)
        if not target:
            continue
        step, of_base = crossing(curve, target[-1][1]), crossing(target, target[-1][1])
        time = step * step_time
        reached[variant] = step, time, of_base * base_time / time if time else math.nan
    return reached


def _mean_curve(curves: list[Curve]) -> Curve:
    """At the steps that all of them have."""
    by_step = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(curve) for curve in by_step))) if by_step else []
    return [(step, mean(curve[step] for curve in by_step)) for step in steps]


def crossing(curve: Curve, target: float) -> float:
    """The step at which a curve first is at a value, between its points on straight lines; NaN where it never is."""
    for (step, value), (before, above) in zip(curve, [curve[0], *curve] if curve else [], strict=False):
        if value <= target:
            return step if above <= target else before + (step - before) * (above - target) / (above - value)
    return math.nan
