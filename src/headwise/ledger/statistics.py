"""Intervals: the t-interval of a ratio that was measured once for each seed."""

import math
from statistics import mean, stdev

LEVEL = 0.95
LEAST_SEEDS = 3


def interval(ratios: tuple[float, ...], level: float) -> tuple[float, float, float]:
    """Geometric mean of the ratios with a t-interval; without spread to estimate, the interval is everything."""
    logs = [math.log(ratio) for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
    if len(logs) < 2 or len(logs) < len(ratios):
        return (math.exp(mean(logs)) if logs else math.nan), 0.0, math.inf
    from scipy.special import stdtrit  # the t quantile, without the weight of scipy.stats

    half = float(stdtrit(len(logs) - 1, 0.5 + level / 2)) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean(logs)), math.exp(mean(logs) - half), math.exp(mean(logs) + half)
