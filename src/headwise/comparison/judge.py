"""Which variant is best, from finished runs: a pure function of rows.

The model is the textbook one for paired runs (randomised blocks): error = variant + seed + noise, the noise alike in
every variant. Seeds cancel because every variant ran all of them. Under a flat prior the variants' means then follow a
multivariate t with (variants − 1)(seeds − 1) degrees of freedom around what was measured: intervals against the base
and the probability of being best are both read off it, the first corrected for the number of variants. No torch here.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from headwise.ledger.statistics import LEAST_SEEDS, LEVEL, mean_interval, t_quantile
from headwise.store.rows import Row

DECIDED = 0.5 + LEVEL / 2  # P(best) above it: for two variants that are equal, wrong in 1 of 20 cases
DRAWS, DRAWN_FROM = 200_000, 0  # of the posterior, and the seed of its random numbers
MOST_SEEDS = 100  # variants that more would be needed for are as good as equal

Curve = list[tuple[int, float]]  # steps and validation errors


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
class Ranking:
    """`winner` is the variant with the least error; whether that is more than chance, `decided` says."""

    base: str
    arms: tuple[Judged, ...]
    seeds: tuple[int, ...]  # those that were compared: every judged variant has them
    winner: str | None = None
    probability_best: float = math.nan
    decided: bool = False
    contenders: tuple[str, ...] = ()  # variants that may still be the best
    needed: int | None = None  # paired seeds that would decide between them; None where no reasonable number would


@dataclass(frozen=True)
class _Table:
    """Errors of the judged variants, by variant and then by seed."""

    seeds: tuple[int, ...] = ()
    errors: dict[str, list[float]] = field(default_factory=dict)

    @property
    def means(self) -> dict[str, float]:
        return {variant: mean(errors) for variant, errors in self.errors.items()}

    @property
    def freedom(self) -> int:
        return (len(self.errors) - 1) * (len(self.seeds) - 1)

    def residuals(self) -> dict[str, list[float]]:
        """What neither the variant nor the seed explains."""
        of_variant, of_seed = self.means, [mean(column) for column in zip(*self.errors.values(), strict=True)]
        whole = mean(of_seed)
        return {
            variant: [error - of_variant[variant] - seed + whole for error, seed in zip(errors, of_seed, strict=True)]
            for variant, errors in self.errors.items()
        }

    @property
    def variance(self) -> float:
        """Of one run's noise."""
        return sum(r * r for one in self.residuals().values() for r in one) / self.freedom


def rank_variants(rows: Iterable[Row], base: str, curves: Mapping[str, Curve] | None = None) -> Ranking:
    """Rows have an `arm` in their cell and an `error`, which is infinite where the run diverged.

    `curves` are validation curves by a row's key: what the steps to reach the base's loss are read off.
    """
    variants: dict[str, dict[int, Row]] = {base: {}}
    for row in rows:
        variants.setdefault(row.cell["arm"], {})[row.seed] = row
    notes = _excluded(variants)
    judged = {variant: its_rows for variant, its_rows in variants.items() if variant not in notes}
    seeds = tuple(sorted(set.intersection(*(set(its_rows) for its_rows in judged.values())))) if judged else ()
    table = _Table(
        seeds, {variant: [its_rows[seed].metrics["error"] for seed in seeds] for variant, its_rows in judged.items()}
    )
    notes |= {variant: "its seeds are not those of the other variants" for variant in judged if not seeds}
    chances = probabilities_best(table.errors) if len(seeds) > 1 else {}
    reached = _reached(
        {variant: [its_rows[seed] for seed in seeds] for variant, its_rows in judged.items()}, base, curves or {}
    )
    numbers = [
        Judged(variant, len(variants[variant]), note=notes[variant])
        if variant in notes
        else Judged(
            variant,
            len(seeds),
            *spread(table.errors[variant], LEVEL),
            *_delta(table, variant, base),
            chances.get(variant, math.nan),
            *reached.get(variant, ()),
        )
        for variant in variants
    ]
    return _decide(Ranking(base, tuple(numbers), seeds), table, chances)


def _excluded(variants: dict[str, dict[int, Row]]) -> dict[str, str]:
    """Variants that cannot be judged, and why: nothing finished, something diverged, or too few seeds to pair."""
    notes = {}
    most = max(len(its_rows) for its_rows in variants.values())
    for variant, its_rows in variants.items():
        wild = [seed for seed, row in sorted(its_rows.items()) if not math.isfinite(row.metrics["error"])]
        if not its_rows:
            notes[variant] = "no finished runs"
        elif wild:
            notes[variant] = f"diverged with seed {', '.join(map(str, wild))}"
        elif len(its_rows) < min(LEAST_SEEDS, most):
            notes[variant] = f"only {len(its_rows)} of {most} seeds finished"
    return notes


def spread(values: list[float], level: float) -> tuple[float, float, float]:
    """A mean with its t-interval; without spread to estimate, the interval is everything."""
    if len(values) < 2:
        return mean(values), -math.inf, math.inf
    return mean_interval(values, level)


def _delta(table: _Table, variant: str, base: str) -> tuple[float, float, float]:
    """Against the base, the seeds cancelled; the level is divided among the variants that are compared with it."""
    if base not in table.errors:
        return math.nan, math.nan, math.nan
    if variant == base:
        return 0.0, 0.0, 0.0
    delta = table.means[variant] - table.means[base]
    if len(table.seeds) < 2:
        return delta, -math.inf, math.inf
    level = 1 - (1 - LEVEL) / (len(table.errors) - 1)
    half = t_quantile(table.freedom, level) * math.sqrt(2 * table.variance / len(table.seeds))
    return delta, delta - half, delta + half


def probabilities_best(errors: Mapping[str, list[float]]) -> dict[str, float]:
    """Each variant's share of the posterior's draws in which its mean is the least; the same numbers every time."""
    if len(errors) < 2:
        return dict.fromkeys(errors, 1.0)
    import numpy as np

    table = _Table(tuple(range(len(next(iter(errors.values()))))), dict(errors))
    random = np.random.default_rng(DRAWN_FROM)
    noise = random.standard_normal((DRAWS, len(errors)))
    scale = np.sqrt(table.freedom / random.chisquare(table.freedom, (DRAWS, 1)))
    drawn = np.array(list(table.means.values())) + noise * scale * math.sqrt(table.variance / len(table.seeds))
    best = drawn == drawn.min(1, keepdims=True)
    shares = (best / best.sum(1, keepdims=True)).mean(0)  # without any noise, equals share
    return dict(zip(errors, map(float, shares), strict=True))


def _decide(ranking: Ranking, table: _Table, chances: dict[str, float]) -> Ranking:
    if not chances:
        return ranking
    winner = min(table.means, key=lambda variant: table.means[variant])
    decided = len(chances) > 1 and chances[winner] >= DECIDED
    contenders = tuple(variant for variant, chance in chances.items() if variant == winner or chance > 1 - DECIDED)
    needed = None if decided or len(chances) < 2 else seeds_needed(table.errors)
    outcome: dict[str, Any] = {"winner": winner, "probability_best": chances[winner], "decided": decided}
    return replace(ranking, **outcome, contenders=contenders, needed=needed)


def seeds_needed(errors: Mapping[str, list[float]]) -> int | None:
    """Paired seeds with which the best variant would be decided, if gaps and noise stay what they are.

    The chances of the other variants add up to more than theirs together, so the number is on the safe side.
    """
    from scipy.special import stdtr

    table = _Table(tuple(range(len(next(iter(errors.values()))))), dict(errors))
    least = min(table.means.values())
    gaps = sorted(value - least for value in table.means.values())[1:]
    for seeds in range(len(table.seeds) + 1, MOST_SEEDS + 1):
        unit = math.sqrt(2 * table.variance / seeds)
        freedom = (len(errors) - 1) * (seeds - 1)
        if unit == 0 or sum(1 - float(stdtr(freedom, gap / unit)) for gap in gaps) <= 1 - DECIDED:
            return seeds if unit and gaps[0] else None
    return None


# ---- how soon a variant is where the base ends ---------------------------------------------------------------------


def _reached(
    variants: dict[str, list[Row]], base: str, curves: Mapping[str, Curve]
) -> dict[str, tuple[float, float, float]]:
    """Steps and seconds until a variant's mean curve is down at the base's last point, and the speed-up that makes.

    Validation curves, and so comparable with each other, not with the reported error.
    """
    averaged = {variant: _mean_curve([curves.get(row.key, []) for row in rows]) for variant, rows in variants.items()}
    if not averaged.get(base):
        return {}
    target = averaged[base][-1][1]
    reached = {}
    for variant, rows in variants.items():
        step = crossing(averaged[variant], target)
        reached[variant] = (step, step * mean(row.metrics["step_seconds"] for row in rows))
    return {
        variant: (step, time, reached[base][1] / time if time else math.nan)
        for variant, (step, time) in reached.items()
    }


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
