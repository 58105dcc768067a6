"""Student's t: its quantile, the intervals of a mean and of a ratio that was measured once per seed, contrasts in
randomised blocks; shares; and Holm's correction. The one owner of these; no torch here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

LEVEL = 0.95
LEAST_SEEDS = 3


def t_quantile(freedom: float, level: float) -> float:
    """How many standard errors a two-sided interval reaches to either side."""
    from headwise.ledger.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


def mean_interval(values: Sequence[float], level: float) -> tuple[float, float, float]:
    """The mean of two values or more, with its t-interval."""
    middle = mean(values)
    half = t_quantile(len(values) - 1, level) * stdev(values) / math.sqrt(len(values))
    return middle, middle - half, middle + half


def interval(ratios: Sequence[float], level: float) -> tuple[float, float, float]:
    """Geometric mean of the ratios with a t-interval; without spread to estimate, the interval is everything."""
    logs = [math.log(ratio) for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
    if len(logs) < 2 or len(logs) < len(ratios):
        return (math.exp(mean(logs)) if logs else math.nan), 0.0, math.inf
    middle, low, high = mean_interval(logs, level)
    return math.exp(middle), math.exp(low), math.exp(high)


# ---- registered tests: a linear contrast of variants, in randomised blocks -----------------------------------------

UNEQUAL = 4.0  # times the smallest: from here on variances are not pooled
Blocks = Mapping[str, Mapping[int, float]]  # of one stratum: by variant and seed


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error and the degrees of freedom of that."""

    value: float
    error: float
    freedom: float

    def bounds(self, level: float) -> tuple[float, float]:
        """Of a two-sided interval: each end is a one-sided bound at half of what the level leaves."""
        if not self.freedom > 0:
            return -math.inf, math.inf
        half = t_quantile(self.freedom, level) * self.error
        return self.value - half, self.value + half

    def chance_above(self, threshold: float) -> float:
        """The one-sided p-value of "it is at most the threshold": small where it lies above."""
        if not self.freedom > 0:
            return 1.0
        if not self.error:
            return 0.0 if self.value > threshold else 1.0
        return t_tail(self.freedom, (self.value - threshold) / self.error)

    def chance_below(self, threshold: float) -> float:
        return replace(self, value=-self.value).chance_above(-threshold)


def t_tail(freedom: float, value: float) -> float:
    """The chance of more than this, of Student's t."""
    from headwise.ledger.special import stdtr

    return float(stdtr(freedom, -value))


def contrast(strata: Mapping[str, Blocks], weights: Mapping[str, Mapping[str, float]]) -> Estimate:
    """Σ weight · mean of variant, over strata: loss = variant + seed + noise in each, so that seeds cancel.

    Within a stratum weights sum to 0 and only seeds that all weighed variants have count. Noise is pooled over the
    variants that have these seeds, and over strata, unless the largest variance is more than 4 times the smallest:
    then it is that of the weighed sum itself, seed by seed (over several strata: Welch and Satterthwaite), with one
    degree of freedom less: the same noise chose between the two, which without it is wrong in 5.5 % instead of 5.
    """
    parts = [_stratum(strata.get(name, {}), wanted) for name, wanted in weights.items()]
    if any(part is None for part in parts):
        return Estimate(math.nan, math.inf, 0.0)
    known = [part for part in parts if part is not None]
    value = sum(part.value for part in known)
    alike = [variance for part in known for variance in part.variances]
    if min(alike) * UNEQUAL >= max(alike):
        freedom = sum(part.freedom for part in known)
        variance = sum(part.squares for part in known) / freedom if freedom else math.nan
        return Estimate(value, math.sqrt(variance * sum(part.factor for part in known)), freedom)
    pieces = [(part.own / part.seeds, part.seeds - 1) for part in known]
    total = sum(piece for piece, _ in pieces)
    freedom = total**2 / sum(piece**2 / free for piece, free in pieces if free) - 1 if total and pieces[0][1] else 0.0
    return Estimate(value, math.sqrt(total), freedom)


@dataclass(frozen=True)
class _Stratum:
    """What one stratum adds to a contrast, and what it knows of the noise."""

    value: float
    factor: float  # of the noise's variance: Σ weight² / seeds
    seeds: int
    squares: float
    freedom: float
    variances: tuple[float, ...]
    own: float  # variance of the weighed sum, of one seed


def _stratum(blocks: Blocks, weights: Mapping[str, float]) -> _Stratum | None:
    import numpy as np

    if any(name not in blocks for name in weights):
        return None
    seeds = sorted(set.intersection(*(set(blocks[name]) for name in weights)))
    if len(seeds) < 2:
        return None
    names = [*weights, *(name for name in blocks if name not in weights and set(seeds) <= set(blocks[name]))]
    table = np.array([[blocks[name][seed] for seed in seeds] for name in names])
    factors = np.array([weights.get(name, 0.0) for name in names])
    left = table - table.mean(0)
    left = left - left.mean(1, keepdims=True)
    many, count = len(names), len(seeds)
    squares = np.square(left).sum(1) / (count - 1)
    noise = float(squares.sum()) / (many - 1)
    # a row of residuals holds its own noise and a share of everybody's: solved for its own; two rows only have both's
    own = (squares - noise / many) / (1 - 2 / many) if many > 2 else np.full(many, noise)
    sums = factors @ table
    return _Stratum(
        value=float(sums.mean()),
        factor=float(np.square(factors).sum()) / count,
        seeds=count,
        squares=noise * (many - 1) * (count - 1),
        freedom=(many - 1) * (count - 1),
        variances=tuple(float(one) for one in np.maximum(own, 0.0)),
        own=float(sums.var(ddof=1)),
    )


def share_bounds(successes: int, count: int, tail: float) -> tuple[float, float]:
    """Clopper's and Pearson's: a share of so many, each bound wrong with at most the chance `tail`."""
    from headwise.ledger.special import betaincinv

    low = float(betaincinv(successes, count - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, count - successes, 1 - tail)) if successes < count else 1.0
    return low, high


def holm(chances: Mapping[str, float], level: float = 1 - LEVEL) -> set[str]:
    """Which of several p-values stay significant when any false one among them is to be as rare as the level."""
    kept = set()
    for rank, (name, chance) in enumerate(sorted(chances.items(), key=lambda item: item[1])):
        if chance > level / (len(chances) - rank):
            break
        kept.add(name)
    return kept
