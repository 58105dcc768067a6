"""Student's t: its quantile, and the intervals of a mean and of a ratio that was measured once per seed."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

LEVEL = 0.95
LEAST_SEEDS = 3


def t_quantile(freedom: float, level: float) -> float:
    """How many standard errors a two-sided interval reaches to either side."""
    from scipy.special import stdtrit  # without the weight of scipy.stats

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
