"""Whole numbers: the counting behind the bounds, enclosed tails, and the least number of heads to its last digit."""

import math
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.theory.bounds import certified_heads, scalar_bound
from headwise.theory.exact import _stays_lower, invariants, least_heads, parts_of, tail_factor, total_parts
from headwise.theory.sphere import harmonics
from helpers.theory import BOUNDS, cells, golden


def test_counts():
    assert all(invariants(degree, rank) == count for degree, rank, count in golden("minv"))
    for dim, degree, rank, count in golden("Dfull"):
        assert sum(weight * invariants(degree + at, rank) for at, weight in parts_of("free", dim, rank)) == count


@given(st.integers(3, 30), st.data())
def test_tails_are_enclosed(dim, data):
    """The enclosure at l and the one at l + 2, moved back by one exact term, must overlap; as must one far away."""
    rank = data.draw(st.integers(1, dim - 1))
    shift = data.draw(st.integers(-2, 2))
    first = 2 * dim + 9 + 2 * data.draw(st.integers(0, 200))
    low, high = tail_factor(dim, rank, shift, first) or (0, math.inf)
    total, term = Fraction(0), Fraction(1)
    for degree in range(first, first + 60, 2):
        total += term
        above = degree**2 * (degree + shift + rank) * (degree + shift + rank + 1)
        term *= Fraction(above, (degree + dim) ** 2 * (degree + shift + 1) * (degree + shift + 2))
    later = tail_factor(dim, rank, shift, first + 60)
    assert total < high
    if later:
        assert low <= total + term * later[1]
        assert total + term * later[0] <= high
        assert later[1] / later[0] < 1.05 or first < 8 * dim


@given(st.integers(4, 40), st.data(), st.booleans())
def test_the_lower_limit_stays_lower_where_it_is_said_to(dim, data, total):
    rank, first = data.draw(st.integers(1, dim - 2)), 1 + 2 * data.draw(st.integers(0, 60))
    each, both = parts_of("free", dim, rank), total_parts(rank)
    if _stays_lower(dim, rank, first, total):
        for degree in range(first, first + 400, 2):
            a, b = (sum(weight * invariants(degree + at, rank) for at, weight in parts) for parts in (each, both))
            assert (b <= a) if total else (a <= b)
    assert _stays_lower(dim, rank, 10**9 + 1, min(2 * rank, dim - rank) > rank - 1)  # in the end one of them does


def test_limits_that_cross_late_are_not_settled_early():
    assert not _stays_lower(512, 256, 1033, True)
    assert not _stays_lower(512, 256, 1033, False)


# ---- how many heads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "values"), [("heads_needed_scalar", "scalar"), ("heads_needed_full", "free")])
def test_golden_heads(name, values):
    for dim, rank, error, value in golden(name):
        found = certified_heads(dim, rank, error, values=values)
        assert found == value if value < 10**15 else found == pytest.approx(value, rel=1e-10)


@settings(max_examples=40)
@given(cells(most=20), st.sampled_from(["scalar", "free"]), st.booleans(), st.decimals("0.004", "0.6", places=4))
def test_heads_needed_is_where_the_bound_crosses(cell, values, skip, error):
    dim, rank, _ = cell
    found = certified_heads(dim, rank, error, values=values, skip=skip)
    assert isinstance(found, int)
    assert BOUNDS[values](dim, rank, found, skip=skip) <= float(error) + 1e-12
    if found > 1:
        below = found - max(1, found // 10**9)  # closer, doubles cannot tell
        assert BOUNDS[values](dim, rank, below, skip=skip) > float(error) - 1e-12


@settings(max_examples=30)
@given(st.integers(3, 14), st.data(), st.decimals("0.02", "0.45", places=3), st.sampled_from(["scalar", "free"]))
def test_any_start_below_leads_to_the_same_heads(dim, data, error, values):
    rank = data.draw(st.integers(1, dim - 2))
    found = certified_heads(dim, rank, error, values=values)
    for start in (1, max(1, found // 3), max(1, found - 1)):
        assert least_heads(dim, rank, Fraction(str(error)), values, False, start) == found


@pytest.mark.parametrize(("dim", "rank", "error"), [(128, 1, "0.02"), (64, 16, "0.05"), (33, 1, "0.03")])
def test_the_last_digit_is_right(dim, rank, error):
    """At H and H - 1, with another library's 150 digits and no enclosure: the series itself, far enough."""
    mpmath = pytest.importorskip("mpmath")
    found = certified_heads(dim, rank, error)
    with mpmath.workdps(150):
        allowed = mpmath.mpf(error)

        def bound(heads):
            total = mpmath.mpf(0)
            for degree in range(1, 1600, 2):
                square = (mpmath.beta(mpmath.mpf(dim) / 2, mpmath.mpf(degree) / 2) / mpmath.pi) ** 2
                total += square * min(harmonics(dim, degree), heads * invariants(degree, rank))
            return (1 - total) / 2

        assert bound(found) <= allowed < bound(found - 1)


def test_regimes():
    """Exponential in d at small errors; a power of d, the odd degree that carries the error, at fixed ones."""
    needed = cache(lambda dim, rank, error, values="scalar": certified_heads(dim, rank, error, values=values))
    small = {dim: str(round(0.1 / math.sqrt(dim), 12)) for dim in (16, 32, 64, 128)}
    for share, rates in [(16, [2.34, 2.55, 2.67, 2.74]), (4, [1.54, 1.60, 1.63, 1.64]), (2, [0.84, 0.91, 0.94, 0.96])]:
        ranks = {dim: 1 if share == 16 else dim // share for dim in small}
        found = [math.log2(needed(dim, ranks[dim], small[dim])) / dim for dim in small]
        assert found == pytest.approx(rates, abs=6e-3)
    for error, power in [(0.2, 1.00), (0.15, 3.01), (0.12, 5.03), (0.1, 7.07)]:
        assert math.log2(needed(1024, 1, error) / needed(512, 1, error)) == pytest.approx(power, abs=6e-3)
    assert [needed(dim, dim // 8, 0.1) for dim in (128, 1024)] == pytest.approx([1.3e5, 5.7e5], rel=0.02)


@pytest.mark.parametrize(
    ("dim", "rank", "error", "scalar", "free"),
    [
        (16, 1, 0.15, 297, 53),
        (64, 1, 0.15, 24558, 4110),
        (128, 1, 0.1, 2.2e10, 2.3e9),
        (32, 1, 0.05, 1.5e12, 1.1e11),
        (64, 1, 0.05, 1.6e18, 8.2e16),
        (64, 32, 0.05, 37279, 2635),
        (128, 64, 0.05, 3.8e5, 21170),
        (64, 32, 0.02, 5.3e12, 1.9e11),
    ],
)
def test_heads_of_fixed_errors(dim, rank, error, scalar, free):
    for values, number in (("scalar", scalar), ("free", free)):
        near = 0 if isinstance(number, int) else 0.02
        assert certified_heads(dim, rank, error, values=values) == pytest.approx(number, rel=near)


def test_thousands_of_digits():
    found = certified_heads(4096, 1, "0.01")
    assert found.bit_length() == 2483
    assert scalar_bound(4096, 1, found) == pytest.approx(0.01, abs=1e-11)
    assert scalar_bound(4096, 1, found * 99 // 100) > 0.01


@pytest.mark.parametrize("values", BOUNDS)
def test_few_heads_beside_a_skip_connection(values):
    """So few that degree 1 would not be full without it."""
    found = certified_heads(64, 1, "0.17918", values=values, skip=True)
    assert 1 < found < 16
    assert BOUNDS[values](64, 1, [found, found - 1], skip=True) == pytest.approx([0.17918, 0.17918], abs=2e-5)
    assert BOUNDS[values](64, 1, found, skip=True) <= 0.17918 < BOUNDS[values](64, 1, found - 1, skip=True)


def test_easy_errors_need_one_head():
    assert certified_heads(64, 64, 0) == 1
    assert certified_heads(64, 1, 0.5) == certified_heads(64, 1, 3) == 1
    assert certified_heads(8, 7, 0) == 2  # two planes of rank d - 1 see everything, as far as the bound can tell
    assert certified_heads(8, 7, 0, values="free") == 1
