"""Certified: how small the error of H heads of rank r can be, and how many heads an error needs.

The task is nearest neighbour among two points of R^d: u and v an orthonormal pair, uniformly turned, the points
(v ± u)/√2, the query y uniform on the sphere and independent; the answer is the point nearer to y. Errors are
E‖F - f‖², so that answering zero scores 1 and answering the mean of the points scores 1/2.

The heads are general: F = Σ_h V_h X φ_h(K_hᵀX, y), where K_h has r columns and φ_h is ANY square-integrable function,
softmax or not, with biases and positions or not. So no training, temperature or position code gets below the bound.
What does matter is V_h, and there are two bounds:

- scalar values, V_h = a_h I (`scalar_bound`): at degree l the heads see at most H·m(l, r) of N(d, l) dimensions;
- free values, any d × d matrices (`free_bound`): smaller, because a matrix lets a head see a few times more.

With `skip`, any function of y is added to F. Not covered: more than two points, points that are not orthogonal, a
second layer, an MLP after the heads. A model outside may be shown beside a bound; it is not judged by it.

Proofs in docs/reference/theory.md; ours, and checked only by us and by simulation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from headwise.spec import SpecError
from headwise.theory.exact import SeenTerms, Values, least_heads, parts_of, tail_factor, total_parts
from headwise.theory.sphere import Array, log_harmonics, sign_spectrum, whole

HYPOTHESES = (
    "One layer, two orthonormal points, a uniform query; keys of rank r, attention weights any function of keys and "
    "query. Scalar values: every value matrix is a multiple of the identity; free values: any matrices."
)
_TOP = 2**18 + 1  # higher degrees count as captured: what is returned stays a lower bound, by less than √dim / 10**6
_WIDEST = 2**16
_DEEPEST = 20_001  # the highest degree that may decide how many heads are needed


# ---- the bounds ----------------------------------------------------------------------------------------------------


def scalar_bound(dim: int, rank: Any, heads: Any, *, skip: bool = False) -> Any:
    """The error of `heads` heads of rank `rank` with scalar values is at least this (hypotheses: see the module).

    1/2 Σ_{l odd} η_l² max(0, 1 - H m(l, r) / N(d, l)). Only different key spaces count: grouped queries give H = key
    heads, and keys made from one latent of width c give H = 1, r = c. False for free values.
    Rank and heads may be arrays, which are broadcast. Double precision; 0 where rank = dim.
    """
    return _over_cells(dim, rank, heads, lambda r, h: _bound(dim, r, h, "scalar", skip))


def free_bound(dim: int, rank: Any, heads: Any, *, skip: bool = False) -> Any:
    """The error of `heads` heads of rank `rank` with free values is at least this (hypotheses: see the module).

    H counts query heads: each has a value matrix of its own, also where keys are shared. Arrays as in `scalar_bound`.
    With `skip` the degrees are counted one by one, which is sometimes the sharper way: the larger of both numbers
    holds for a layer without skip connection, since adding nothing is a case of adding something.
    """
    return _over_cells(dim, rank, heads, lambda r, h: _bound(dim, r, h, "free", skip))


def graded_bound(
    dim: int,
    rank: Any,
    heads: Any,
    spectrum: Any,
    *,
    values: Values = "scalar",
    skip: bool = False,
    energy: float = 1.0,
) -> Any:
    """The same for the answer (v + g(<u, y>) u)/√2 with any g, from its spectrum (`sphere.zonal_spectrum`).

    1/2 Σ_l ζ_l² max(0, 1 - H D(l) / N(d, l)), where D is m(l, r) for scalar values, and for free ones what a matrix
    adds. `energy` is E[g²]: what of it lies above the last degree given counts with the share of the degree after it.
    """
    given = np.asarray(spectrum, dtype=float)
    if given.ndim != 1 or given.size < 2 or not np.all(np.isfinite(given)) or np.any(given < 0):
        raise SpecError("a spectrum has one energy for each degree 0, 1, 2, …: finite numbers, not negative")
    if not math.isfinite(energy) or energy < 0:
        raise SpecError(f"energy is {energy}; it must be a finite number, not negative")
    rest = max(0.0, energy - float(np.sum(given)))

    def cell(r: int, h: int) -> float:
        if r == dim:
            return 0.0
        parts = parts_of(values, dim, r)
        seen = _seen(dim, r, h, parts, len(given))[:-1]
        seen[1] = 1.0 if skip else seen[1]
        return 0.5 * (float(np.sum(given * (1 - seen))) + rest * (1 - _most_seen(dim, r, h, parts, len(given))))

    return _over_cells(dim, rank, heads, cell)


def _over_cells(dim: int, rank: Any, heads: Any, cell: Callable[[int, int], float]) -> Any:
    dim = whole("dim", dim, 2, _WIDEST)
    ranks, counts = np.broadcast_arrays(np.asarray(rank, dtype=object), np.asarray(heads, dtype=object))
    cells = zip(ranks.flat, counts.flat, strict=True)
    bounds = [cell(whole("rank", r, 1, dim), whole("heads", h, 1)) for r, h in cells]
    return np.array(bounds, dtype=float).reshape(ranks.shape) if ranks.ndim else bounds[0]


def _bound(dim: int, rank: int, heads: int, values: Values, skip: bool) -> float:
    if rank == dim or (rank == dim - 1 and (values == "free" or heads > 1)):
        return 0.0  # the heads see everything
    capture = _capture_in_total if values == "free" and not skip else _capture_by_degree
    first = 4 * dim + 2001
    while True:
        captured, doubt = capture(dim, rank, heads, values, skip, first)
        if doubt < 1e-13 or first >= _TOP:
            return max(0.0, 0.5 * (1 - captured))
        first = min(8 * first + 1, _TOP)


def _capture_by_degree(dim: int, rank: int, heads: int, values: Values, skip: bool, first: int) -> tuple[float, float]:
    """The share of the sign that heads can capture at most, each degree by itself; and what the tail leaves open."""
    parts = parts_of(values, dim, rank)
    seen = _seen(dim, rank, heads, parts, first)[1:-1:2]
    seen[0] = 1.0 if skip else seen[0]
    tail, doubt = _tail(dim, rank, heads, parts, first)
    return float(np.sum(_sign_spectrum(dim, first)[:-1] * seen)) + tail, doubt


def _capture_in_total(dim: int, rank: int, heads: int, values: Values, skip: bool, first: int) -> tuple[float, float]:
    """The same where all degrees up to each are limited together: the lowest, which pay most, are filled first."""
    log_count, log_all, log_one, parts = _totals(dim, rank, first)
    log_reach = log_one + math.log(heads)
    short = np.flatnonzero(log_reach < log_all)
    if not short.size:
        return 1.0, 1.0
    start = int(short[0])  # below, every degree is full; from here on, the heads are used up
    before = np.concatenate((log_all[start - 1 : start] if start else [-np.inf], log_reach[start:-1]))
    share = np.ones_like(log_count)
    share[start:] = np.exp(log_reach[start:] - log_count[start:]) - np.exp(before - log_count[start:])
    tail, doubt = _tail(dim, rank, heads, parts, first)
    return float(np.sum(_sign_spectrum(dim, first)[:-1] * np.clip(share, 0, 1))) + tail, doubt


def _tail(dim: int, rank: int, heads: int, parts: SeenTerms, first: int) -> tuple[float, float]:
    """At most what degrees first, first + 2, … add to the capture, and how much less it might be."""
    energy = _sign_spectrum(dim, first)
    rest = max(0.0, 1 - float(np.sum(energy[:-1])))
    most = rest * _most_seen(dim, rank, heads, parts, first)
    low = high = 0.0
    for shift, weight in parts:
        factors = tail_factor(dim, rank, shift, first)
        if factors is None or most == rest:
            return most, most
        term = float(energy[-1]) * _seen_at(dim, rank, heads, ((shift, weight),), first)
        low, high = low + term * float(factors[0]), high + term * float(factors[1])
    return min(high, most), min(high, most) - min(low, most)


def _seen(dim: int, rank: int, heads: int, parts: SeenTerms, top: int) -> Array:
    """At degrees 0 … top: the share of the harmonics that the heads can see, at most 1."""
    return np.exp(np.minimum(0, math.log(heads) + _log_share(dim, rank, parts, top)))


def _seen_at(dim: int, rank: int, heads: int, parts: SeenTerms, degree: int) -> float:
    """The same at one degree, from 2 on."""
    size = float(_ratios(rank, parts, np.array([degree], dtype=float))[0])
    return math.exp(min(0.0, math.log(heads) + float(_log_share(dim, rank, ((0, 1),), degree)[-1]) + math.log(size)))


def _most_seen(dim: int, rank: int, heads: int, parts: SeenTerms, degree: int) -> float:
    """No degree from this one on is seen more than this: with m(l) for m(l-1) and m(l-2), the share falls with l."""
    return _seen_at(dim, rank, heads, tuple((max(shift, 0), weight) for shift, weight in parts), degree)


@lru_cache(maxsize=16)
def _sign_spectrum(dim: int, top: int) -> Array:
    return sign_spectrum(dim, top)


@lru_cache(maxsize=16)
def _totals(dim: int, rank: int, first: int) -> tuple[Array, Array, Array, SeenTerms]:
    """At odd degrees below `first`, in logs: harmonics, all up to each, what one head reaches; and what comes next."""
    each, total = parts_of("free", dim, rank), total_parts(rank)
    log_count = log_harmonics(dim, first)
    log_each, log_total = (_log_share(dim, rank, parts, first) + log_count for parts in (each, total))
    log_each = np.logaddexp.accumulate(log_each[1:-1:2])
    log_total = np.logaddexp.accumulate(np.concatenate(([math.log(2 * rank)], log_total[1:-1:2])))[1:]
    ahead = each if log_each[-1] <= log_total[-1] else total
    log_count = log_count[1:-1:2]
    return log_count, np.logaddexp.accumulate(log_count), np.minimum(log_each, log_total), ahead


@lru_cache(maxsize=32)
def _log_share(dim: int, rank: int, parts: SeenTerms, top: int) -> Array:
    """log of what one head sees over the harmonics, at degrees 0 … top."""
    degree = np.arange(top + 1, dtype=float)
    log_m = np.concatenate(([0.0], np.cumsum(np.log((degree[:-1] + rank) / (degree[:-1] + 1)))))
    return log_m + np.log(_ratios(rank, parts, degree)) - log_harmonics(dim, top)


def _ratios(rank: int, parts: SeenTerms, degree: Array) -> Array:
    """Σ weight · m(l + shift) / m(l); m is 0 below degree 0."""
    up, down = (degree + rank) / (degree + 1), degree / np.maximum(degree + rank - 1, 1)
    further = np.maximum(degree - 1, 0) / np.maximum(degree + rank - 2, 1)
    ratios = {-2: down * further, -1: down, 0: np.ones_like(degree), 1: up, 2: up * (degree + rank + 1) / (degree + 2)}
    return sum((weight * ratios[shift] for shift, weight in parts), np.zeros_like(degree))


# ---- how many heads ------------------------------------------------------------------------------------------------


def certified_heads(dim: int, rank: int, error: Any, *, values: Values = "scalar", skip: bool = False) -> int:
    """The least number of heads that the bound does not exclude: with any fewer, no heads reach this error.

    An exact whole number, also where it has thousands of digits. It says nothing about whether that many suffice.
    `error` is read as it is written: 0.1 is one tenth.
    """
    dim = whole("dim", dim, 2, _WIDEST)
    rank, allowed = whole("rank", rank, 1, dim), read_error(error)
    one = _bound(dim, rank, 1, values, skip)
    if rank == dim or one + math.sqrt(dim) / 10**6 < allowed:  # clear without exact numbers
        return 1
    if rank == dim - 1:  # two heads see everything, as far as the bound can tell
        return 1 if one <= allowed else 2
    if not allowed:
        raise SpecError(f"no number of heads of rank {rank} reaches error 0 in dim {dim}; ask for a larger error")
    least = 0.5 * (1 - float(np.sum(_sign_spectrum(dim, _DEEPEST))))
    if allowed < least:
        raise SpecError(f"error {error} is too small to be resolved in dim {dim}; ask for at least {least:.1e}")
    doublings = _least(lambda k: _bound(dim, rank, 2**k, values, skip) > allowed + 1e-12, 0)
    return least_heads(dim, rank, allowed, values, skip, 2 ** max(0, doublings - 1))


def graded_heads_needed(
    dim: int, rank: int, error: Any, spectrum: Any, *, values: Values = "scalar", energy: float = 1.0
) -> int:
    """The least H that `graded_bound` does not exclude, as far as a spectrum of doubles tells: some twelve digits."""
    allowed = float(read_error(error))
    return _least(lambda h: graded_bound(dim, rank, h, spectrum, values=values, energy=energy) > allowed, 1)


def _least(excluded: Callable[[int], bool], start: int) -> int:
    """The least number from `start` on that is not excluded, where all above it are not either."""
    if not excluded(start):
        return start
    low, high = start, start + 1
    while excluded(high):
        low, high = high, 2 * high
        if high.bit_length() > 2**15:
            raise SpecError("this error is excluded for every number of heads; ask for a larger one")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excluded(middle) else (low, middle)
    return high


def read_error(error: Any) -> Fraction:
    """A squared error as it is written, exactly."""
    try:
        value = Fraction(str(error))
    except (ValueError, ZeroDivisionError):
        raise SpecError(f"error is {error}; it must be a number, such as 0.1") from None
    if value < 0:
        raise SpecError(f"error is {error}; a squared distance is not negative")
    return value


# ---- which bound applies -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """A lower bound on an error, or why there is none. `heads` and `rank` are those that count after sharing."""

    applies: bool
    value: float
    why: str
    values: Values
    dim: int
    rank: int
    heads: int
    skip: bool


def certified(
    dim: int,
    rank: int,
    heads: int,
    values: Values = "scalar",
    skip: bool = False,
    *,
    kv_heads: int | None = None,
    kv_latent: int | None = None,
    tokens: int = 2,
    orthonormal: bool = True,
    depth: int = 1,
    mlp: bool = False,
) -> Bound:
    """The bound for a layer given by plain facts; where a hypothesis fails, value 0 and a sentence that says which.

    `values` is "free" for any ordinary attention layer with trained values and output projection. `kv_latent` is the
    width of all that keys are computed from, a rotated part included. `mlp` means one after the heads.
    """
    dim = whole("dim", dim, 2, _WIDEST)
    rank, heads = whole("rank", rank, 1, dim), whole("heads", heads, 1)
    whole("tokens", tokens, 2)
    if values not in ("scalar", "free"):
        raise SpecError(f"values is '{values}'; it must be scalar or free")
    groups = heads if kv_heads is None else whole("kv_heads", kv_heads, 1, heads)
    latent = dim if kv_latent is None else min(dim, whole("kv_latent", kv_latent, 1))
    broken = {
        f"it covers two points, not {tokens}": tokens != 2,
        "it covers orthonormal points only": not orthonormal,
        f"it covers one layer, not {depth}": whole("depth", depth, 1) != 1,
        "it does not cover an MLP after the heads": mlp,
    }
    why = "; ".join(reason for reason, is_so in broken.items() if is_so)
    if why:
        return Bound(False, 0.0, why, values, dim, rank, heads, skip)
    candidates = [(heads, min(rank, latent))] if values == "free" else [(groups, min(rank, latent)), (1, latent)]
    value, count, width = max((_bound(dim, r, h, values, skip), h, r) for h, r in candidates)
    return Bound(True, value, HYPOTHESES, values, dim, width, count, skip)
