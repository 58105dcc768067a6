"""Exact counting for the bounds: dimensions that heads see, and the least number of heads in whole numbers.

What H heads capture of a sign is concave and piecewise linear in H, captured(H) = P + Q·H on each piece. So from a
number of heads that is too small, the piece's own line gives the next candidate, which is never too large, and the
search ends at the least H (Newton's method, from below). The numbers may have thousands of digits: P and Q are held
between two integers that stand for multiples of 2^-bits, and precision grows until both lead to the same H.

P and Q are infinite sums. Their tails are Σ c_l² m(l + j, r), whose terms have a rational ratio; `tail_factor` encloses
them. Letters as in bounds.py.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from headwise.spec import SpecError

Values = Literal["scalar", "free"]
# What one head sees at degree l, as (shift, weight): Σ weight · m(l + shift, r).
SeenTerms = tuple[tuple[int, int], ...]

_LAST = 2**20  # the highest degree that is looked at
_MOST_BITS = 2**18


def invariants(degree: int, rank: int) -> int:
    """m(l, r): the dimension of the harmonics of degree l that are functions of r coordinates, r below d."""
    return math.comb(degree + rank - 1, rank - 1) if degree >= 0 else 0


def parts_of(values: Values, dim: int, rank: int) -> SeenTerms:
    """What one head sees at a degree: functions of Kᵀu, and with free values two kinds more."""
    return ((0, 1),) if values == "scalar" else ((0, 1), (-1, min(2 * rank, dim - rank)), (-2, 1))


def total_parts(rank: int) -> SeenTerms:
    """With free values, by how much what degrees up to l see of one head can grow from l - 2 to l."""
    return ((2, 1), (1, rank))


@lru_cache(maxsize=1024)
def _off_by(dim: int, rank: int, shift: int) -> tuple[Fraction, tuple[Fraction, Fraction, Fraction]]:
    """β of `tail_factor`, and the sizes of the quadratic that q - 1 has over its quartic: of l², of l, of 1."""
    up, down = (shift + rank, shift + rank + 1), (shift + 1, shift + 2)
    fall = 2 * (dim - rank) + 2
    second = Fraction(fall**2, 2) + dim**2 - Fraction(up[0] ** 2 + up[1] ** 2 - down[0] ** 2 - down[1] ** 2, 2)
    beta = second / fall - 2

    def miss(at: int) -> Fraction:
        above = at**2 * (at + up[0]) * (at + up[1])
        guess, after = ((it + beta) / (2 * (dim - rank)) for it in (at, at + 2))
        return (guess - 1) * _below(dim, shift, at) - after * above

    even, odd = (miss(1) + miss(-1)) / 2, (miss(1) - miss(-1)) / 2  # miss is a quadratic: three values tell it
    return beta, (abs(even - miss(0)), abs(odd), abs(miss(0)))


def _below(dim: int, shift: int, at: int) -> int:
    return (at + dim) ** 2 * (at + shift + 1) * (at + shift + 2)


def tail_factor(dim: int, rank: int, shift: int, first: int) -> tuple[Fraction, Fraction] | None:
    """Σ over l = first, first + 2, … of c_l² m(l + shift, r), between two multiples of its first term.

    With R(l) the ratio of the term at l + 2 to that at l, and g(l) = (l + β) / 2(d-r), the sum is g(first) times the
    first term, divided by some mean of q(l) = g(l) - R(l) g(l + 2). β is chosen so that q - 1 is a quadratic over a
    quartic; its size falls with l from l = 2d + 8 on, so that q(first) bounds them all. None where that says nothing.
    """
    if first < 2 * dim + 8:
        return None
    beta, (square, linear, constant) = _off_by(dim, rank, shift)
    off = (square * first**2 + linear * first + constant) / _below(dim, shift, first)
    guess = (first + beta) / (2 * (dim - rank))
    return (guess / (1 + off), guess / (1 - off)) if off < 1 else None


def least_heads(dim: int, rank: int, error: Fraction, values: Values, skip: bool, start: int) -> int:
    """The least H that the bound does not exclude, from a `start` that it does exclude (or from 1). rank <= dim - 2."""
    heads, bits = start, 128
    while bits <= _MOST_BITS:
        bits = max(bits, 4 * heads.bit_length() + 128)
        lines = _lines(dim, rank, heads, values, skip, bits)
        goal = (1 - 2 * error) * 2**bits
        # where the line reaches the goal, rounded up: once with captured(H) too low, once too high
        candidates = {math.ceil((goal - constant) / slope) for constant, slope in lines}
        if len(candidates) != 1:
            bits *= 2
        elif (candidate := candidates.pop()) <= heads:
            return heads
        else:
            heads = candidate
    raise SpecError(f"the heads of rank {rank} in dim {dim} for error {float(error):g} cannot be determined exactly")


def _lines(dim: int, rank: int, heads: int, values: Values, skip: bool, bits: int) -> list[tuple[Fraction, Fraction]]:
    """P and Q at `heads`, in multiples of 2^-bits: once not above the truth, once not below; none if bits run out."""
    in_total = values == "free" and not skip  # else the heads are limited at each degree by itself
    each, total = parts_of(values, dim, rank), total_parts(rank)
    seen_each, seen_total = 0, 2 * rank
    filled, per_head = 0, 0  # captured dimensions up to here: filled + per_head · heads
    limits = (each, total) if in_total else (each,)
    constant, slope, check = [0, 0], [0, 0], 2 * dim + 9
    for degree, count, seen, square in _odd_degrees(dim, rank, bits):
        if degree >= check:  # has the tail become simple, and small enough?
            check += check // 8
            parts = total if in_total and seen_total <= seen_each else each
            if all(_size(limit, seen, at_most=True) * heads <= count for limit in limits):
                for_ever = not in_total or _stays_lower(dim, rank, degree, parts is total)
                tail = _tail(dim, rank, parts, degree, seen, square, for_ever)
                if tail and (tail[1] - tail[0]) * heads * 1024 < slope[0]:
                    return [(Fraction(constant[end]), slope[end] + tail[end]) for end in (0, 1)]
        here = _size(each, seen)
        if in_total:
            seen_each, seen_total = seen_each + here, seen_total + _size(total, seen)
            reach = min(seen_each, seen_total)
            full = filled + per_head * heads + count <= reach * heads
            step = (count, 0) if full else (-filled, reach - per_head)
            filled, per_head = filled + step[0], per_head + step[1]
        else:
            full = here * heads >= count or (skip and degree == 1)
            step = (count, 0) if full else (0, here)
        for end in (0, 1):
            constant[end] += step[0] * square[end if step[0] >= 0 else 1 - end]
            slope[end] += step[1] * square[end]
    return []


def _odd_degrees(dim: int, rank: int, bits: int) -> Iterator[tuple[int, int, list[int], tuple[int, int]]]:
    """For l = 1, 3, …: l, N(d, l), m(l-2) … m(l+2), and c_l² between two integers; ends where these lose precision."""
    count, seen = dim, [invariants(degree, rank) for degree in range(-1, 4)]
    low, high = _first_square(dim, bits)
    for degree in range(1, _LAST, 2):
        if (high - low) << 20 > low:
            return
        yield degree, count, seen, (low, high)
        low, high = low * degree**2 // (degree + dim) ** 2, -(-high * degree**2 // (degree + dim) ** 2)
        count *= (2 * degree + dim + 2) * (degree + dim - 2) * (degree + dim - 1)
        count //= (2 * degree + dim - 2) * (degree + 1) * (degree + 2)
        ahead = seen[4] * (degree + 2 + rank) // (degree + 3)
        seen = [*seen[2:], ahead, ahead * (degree + 3 + rank) // (degree + 4)]
    raise SpecError(f"heads of rank {rank} in dim {dim} need harmonics above degree {_LAST}; ask for a larger error")


def _size(parts: SeenTerms, seen: list[int], at_most: bool = False) -> int:
    """Σ weight · m(l + shift); `at_most` puts m(l) for what is below it, so that the ratio to N falls with l."""
    return sum(weight * seen[2 + (max(shift, 0) if at_most else shift)] for shift, weight in parts)


def _tail(
    dim: int, rank: int, parts: SeenTerms, first: int, seen: list[int], square: tuple[int, int], for_ever: bool
) -> tuple[Fraction, Fraction] | None:
    """What degrees first, first + 2, … add to the slope: at least and at most. Other parts may follow, and add less."""
    low = high = Fraction(0)
    for shift, weight in parts:
        factors = tail_factor(dim, rank, shift, first)
        if factors is None:
            return None
        low += weight * seen[2 + shift] * square[0] * factors[0]
        high += weight * seen[2 + shift] * square[1] * factors[1]
    return low if for_ever else Fraction(0), high


def _stays_lower(dim: int, rank: int, first: int, total: bool) -> bool:
    """Whether of the two limits of free heads the one that is lower now, `total` or not, stays the lower one.

    The difference of their steps, times a positive factor, is a polynomial of degree four in l: where its forward
    differences share a sign, it keeps that sign.
    """
    wide = min(2 * rank, dim - rank)

    def step(at: int) -> int:
        rising = [at + rank - 2, at + rank - 1, at + rank, at + rank + 1]
        falling = [at - 1, at, at + 1, at + 2]
        terms = [math.prod(rising[:k]) * math.prod(falling[k:]) for k in range(5)]  # as m(l-2) … m(l+2)
        return terms[0] + wide * terms[1] + terms[2] - rank * terms[3] - terms[4]

    row = [step(first + 2 * k) for k in range(5)]
    leading = []
    while row:
        leading.append(row[0])
        row = [b - a for a, b in pairwise(row)]
    return min(leading) >= 0 if total else max(leading) <= 0


def _first_square(dim: int, bits: int) -> tuple[int, int]:
    """c_1² between two multiples of 2^-bits: a product of fractions, with 4 / π² where the dimension is even."""
    steps = range(2 - dim % 2, dim - 1, 2)
    above, below = math.prod(steps) ** 2 << bits, math.prod(step + 1 for step in steps) ** 2
    if dim % 2:
        return above // below, -(-above // below)
    pi = _pi(bits)
    above <<= 2 * bits + 2
    return above // (below * (pi + 1) ** 2), -(-above // (below * (pi - 1) ** 2))


def _pi(bits: int) -> int:
    """π · 2^bits to within one, by Machin's formula."""

    def arc(x: int) -> int:  # arctan(1/x), with 32 bits to spare for rounding
        term, total, k = (1 << (bits + 32)) // x, 0, 1
        while term:
            total, term, k = total + term // k, -term // (x * x), k + 2
        return total

    return (16 * arc(5) - 4 * arc(239)) >> 32
