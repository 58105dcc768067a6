"""Harmonics of the sphere: how much of a function of direction lives at each degree.

A function of <u, y>, with u and y on the unit sphere of R^d, splits into degrees l = 0, 1, 2, ... The part of degree l
lives in a space of dimension N(d, l), and its energy, a share of E[g²], is N(d, l) · E[g(t) P_l(t)]², where t = <u, y>
and P_l is the Legendre polynomial of the sphere (Gegenbauer's, scaled so that P_l(1) = 1). Nearest neighbours among two
points ask for the sign of t, whose energies have a closed form.

Dimensions are exact integers. Coefficients and energies come from their ratios between neighbouring degrees, which are
rational: unlike differences of log-gammas, their product keeps its digits at d = 4096 and degree 2,000 and beyond.

Letters: d dimension, l degree, t = cos θ = <u, y>.
"""

import math
import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from headwise.spec import SpecError

Array = np.ndarray[Any, np.dtype[np.float64]]


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number in a range, or a sentence that says why not."""
    try:
        number = operator.index(value)
    except TypeError:
        raise SpecError(f"{name} is {value!r}; it must be a whole number") from None
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        span = f"at least {least}" if most is None else f"between {least} and {most}"
        raise SpecError(f"{name} is {value}; it must be {span}")
    return number


def harmonics(dim: int, degree: int) -> int:
    """N(d, l): the dimension of the harmonics of a degree on the sphere of R^d."""
    dim, degree = whole("dim", dim, 2), whole("degree", degree, 0)
    below = math.comb(degree + dim - 3, dim - 1) if degree >= 2 else 0
    return math.comb(degree + dim - 1, dim - 1) - below


def polynomials(dim: int, top: int, t: Any) -> Array:
    """P_l(t) for l = 0 … top, by the three-term recurrence: one row per degree, |t| <= 1."""
    dim, top = whole("dim", dim, 2), whole("degree", top, 0)
    points = np.asarray(t, dtype=float)
    if not np.all(np.abs(points) <= 1):
        raise SpecError("a cosine must be a number between -1 and 1")
    rows = np.empty((top + 1, *points.shape))
    rows[0] = 1.0
    rows[1:2] = points
    for degree in range(1, top):
        rise, fall = 2 * degree + dim - 2, degree
        rows[degree + 1] = (rise * points * rows[degree] - fall * rows[degree - 1]) / (degree + dim - 2)
    return rows


def first_coefficient(dim: int) -> float:
    """c_1 = E|t|, which is B(d/2, 1/2) / π, as a product that keeps its digits."""
    steps = np.arange(1 + (dim % 2 == 0), dim - 1, 2, dtype=float)
    return (1.0 if dim % 2 else 2 / math.pi) * float(np.prod(steps / (steps + 1)))


def sign_coefficients(dim: int, top: int) -> Array:
    """c_l = E[sgn(t) P_l(t)] for odd l = 1, 3, … up to `top`; even degrees have none.

    (-1)^((l-1)/2) B(d/2, l/2) / π. What is smaller than a double can hold is zero; `sign_spectrum` has no such loss.
    """
    dim, degrees = whole("dim", dim, 2), _odd(top)
    return first_coefficient(dim) * _products(-degrees[:-1] / (degrees[:-1] + dim))


def sign_spectrum(dim: int, top: int) -> Array:
    """η_l² = N(d, l) c_l²: the energy of the sign at odd degrees 1, 3, … up to `top`. All of them sum to 1."""
    dim, degrees = whole("dim", dim, 2), _odd(top)
    low = degrees[:-1]
    more_harmonics = (
        (2 * low + dim + 2) / (2 * low + dim - 2) * (low + dim - 2) / (low + 1) * (low + dim - 1) / (low + 2)
    )
    return dim * first_coefficient(dim) ** 2 * _products(more_harmonics * (low / (low + dim)) ** 2)


def zonal_spectrum(dim: int, target: Callable[[Array], Array], top: int, jumps: Sequence[float] = ()) -> Array:
    """ζ_l² = N(d, l) · E[g(t) P_l(t)]² of any function g of t, for every degree l = 0 … top.

    Integrated over θ by Gauss-Legendre on each piece between `jumps` (cosines where g is not smooth), with enough
    points that a piecewise constant g, or a polynomial of low degree, is exact to rounding.
    """
    dim, top = whole("dim", dim, 2), whole("degree", top, 0)
    theta, weight = _angles(dim + top, jumps)
    t = np.cos(theta)
    log_weight = np.log(weight) + _log_angle_density(dim, theta)
    values = np.asarray(target(t), dtype=float)
    if not np.all(np.isfinite(values)):
        raise SpecError("the target must be finite for every cosine between -1 and 1")
    growth = np.exp(np.diff(log_harmonics(dim, top + 1)) / 2)  # sqrt of N(d, l+1) / N(d, l)
    below, here, parts = np.zeros_like(t), np.ones_like(t), np.empty(top + 1)
    for degree in range(top + 1):
        # `here` is sqrt(N) P_l up to a factor that log_weight carries: near the poles it outgrows any double
        parts[degree] = np.sum(values * here * np.exp(log_weight))
        rise, share = 2 * degree + dim - 2, max(degree + dim - 2, 1)
        ahead = t * here if degree == 0 else (rise * t * here - degree * below) / share
        below, here = here * growth[degree], ahead * growth[degree]
        size = np.maximum(np.maximum(np.abs(below), np.abs(here)), 1.0)
        below, here, log_weight = below / size, here / size, log_weight + np.log(size)
    return parts**2


def alternating_sign(dim: int, jumps: int) -> tuple[Callable[[Array], Array], list[float]]:
    """A sign that changes n times between t = -1 and 1, and where: the sum of n biased nearest neighbours.

    sgn cos(nθ) in even dimensions, sgn sin((n+1)θ) in odd ones. Every degree below n - d + 2 (n - d + 3 in odd
    dimensions) has no energy at all, so that low-rank heads have nothing easy to learn. n is odd.
    """
    dim, jumps = whole("dim", dim, 2), whole("jumps", jumps, 1)
    if jumps % 2 == 0:
        raise SpecError(f"jumps is {jumps}; it must be odd, so that the target is odd like nearest neighbours")
    shift, cells = (0.0, jumps + 1) if dim % 2 else (0.5, jumps)
    places = [math.cos((j - shift) * math.pi / cells) for j in range(1, jumps + 1)]
    return lambda t: np.where((jumps - np.searchsorted(places[::-1], t)) % 2, -1.0, 1.0), places


def log_harmonics(dim: int, top: int) -> Array:
    """log N(d, l) for l = 0 … top, summed from the ratios of neighbours."""
    low = np.arange(1, top, dtype=float)
    growth = np.log1p(2 / (2 * low + dim - 2)) + np.log((low + dim - 2) / (low + 1))
    return np.concatenate(([0.0], math.log(dim) + np.concatenate(([0.0], np.cumsum(growth)))))[: top + 1]


def _angles(frequency: int, jumps: Sequence[float]) -> tuple[Array, Array]:
    """Gauss-Legendre angles and weights on 0 … π, in panels short enough for what oscillates `frequency` times."""
    if not all(-1 <= jump <= 1 for jump in jumps):
        raise SpecError("jumps are cosines: each must lie between -1 and 1")
    x, weight = np.polynomial.legendre.leggauss(64)
    edges = [0.0, *sorted(math.acos(jump) for jump in jumps), math.pi]
    cuts = [np.linspace(a, b, 2 + int(frequency * (b - a) / 48)) for a, b in pairwise(edges) if b > a]
    low, high = np.concatenate([c[:-1] for c in cuts]), np.concatenate([c[1:] for c in cuts])
    half = (high - low)[:, None] / 2
    return ((low + high)[:, None] / 2 + half * x).ravel(), (half * weight).ravel()


def _log_angle_density(dim: int, theta: Array) -> Array:
    """The law of the angle between two uniform directions: w0 sin(θ)^(d-2), where w0 = (d-1) c_1 / 2."""
    return math.log((dim - 1) * first_coefficient(dim) / 2) + (dim - 2) * np.log(np.sin(theta))


def _odd(top: int) -> Array:
    return np.arange(1, whole("degree", top, 1) + 1, 2, dtype=float)


def _products(ratios: Array) -> Array:
    """1, then the running products."""
    return np.concatenate(([1.0], np.cumprod(ratios)))
