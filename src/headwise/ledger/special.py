"""Student's t and the quantiles of beta, from the regularised incomplete beta function: the standard library alone.

Names and meanings are those of `scipy.special`, to which tests hold them.
"""

import math
from collections.abc import Callable
from functools import lru_cache

NORMAL_FROM = 1e10  # degrees of freedom from which Student's t is the normal distribution in every digit
TERMS, TINY, CLOSE = 100_000, 1e-300, 1e-16


def betainc(a: float, b: float, x: float, rest: float | None = None) -> float:
    """The part of the beta distribution below x; `rest` is 1 - x, where the caller knows it in more digits."""
    rest = 1 - x if rest is None else rest
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - betainc(b, a, rest, x)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(logs) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction 1 + d₁/(1 + d₂/(1 + …)), from its front, as a product of ratios."""
    value, above, below = 1.0, 1.0, 0.0
    for term in range(1, TERMS):
        half = term // 2
        if term % 2:
            d = -(a + half) * (a + b + half) * x / ((a + term - 1) * (a + term))
        else:
            d = half * (b - half) * x / ((a + term - 1) * (a + term))
        below = 1 / (1 + d * below or TINY)
        above = 1 + d / above or TINY
        value *= above * below
        if abs(above * below - 1) < CLOSE:
            break
    return value


def stdtr(freedom: float, value: float) -> float:
    """The chance that Student's t is at most this."""
    if freedom >= NORMAL_FROM or not math.isfinite(value):
        return 0.5 * math.erfc(-value / math.sqrt(2))
    square = value * value
    beyond = betainc(freedom / 2, 0.5, freedom / (freedom + square), square / (freedom + square)) / 2
    return 1 - beyond if value > 0 else beyond


@lru_cache(maxsize=4096)
def stdtrit(freedom: float, share: float) -> float:
    """The value that Student's t is at most with this chance."""
    if not 0 < share < 1:
        return math.inf * (share - 0.5) if share in (0, 1) else math.nan
    tail, high = min(share, 1 - share), 1.0
    while stdtr(freedom, -high) > tail:
        high *= 2
    size = _reached(freedom, tail, 0.0, high)
    return size if share > 0.5 else -size


def _reached(freedom: float, tail: float, low: float, high: float) -> float:
    """Newton's steps towards the value with so much beyond it, kept between bounds that close in."""
    value = high
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    while low < value <= high:
        gap = stdtr(freedom, -value) - tail
        low, high = (value, high) if gap > 0 else (low, value)
        density = math.exp(scale - (freedom + 1) / 2 * math.log1p(value * value / freedom))
        following = value + gap / density if density else low
        following = following if low < following < high else (low + high) / 2
        if abs(following - value) <= 4e-16 * value:
            break
        value = following
    return value


def betaincinv(a: float, b: float, share: float) -> float:
    """The x below which this part of the beta distribution lies."""
    return _falls_to(lambda x: -betainc(a, b, x), -share, 0.0, 1.0)


def _falls_to(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a falling function is at the target: halved until no number lies between."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if function(middle) > target else (low, middle)
    return high
