"""Student's t and the quantiles of beta, held to scipy's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special as scipys

from headwise.ledger import special

FREEDOMS = st.one_of(st.integers(1, 200).map(float), st.floats(0.5, 1e4))


@given(FREEDOMS, st.floats(-40, 40))
def test_the_tail_of_students_t_is_scipys(freedom, value):
    assert special.stdtr(freedom, value) == pytest.approx(scipys.stdtr(freedom, value), rel=1e-9, abs=1e-300)


@given(FREEDOMS, st.floats(1e-8, 1 - 1e-8))
def test_the_quantile_of_students_t_is_scipys(freedom, share):
    assert special.stdtrit(freedom, share) == pytest.approx(scipys.stdtrit(freedom, share), rel=1e-8, abs=1e-8)


@given(st.integers(1, 64), st.integers(1, 64), st.floats(1e-6, 1 - 1e-6))
def test_the_quantile_of_beta_is_scipys(a, b, share):
    assert special.betaincinv(a, b, share) == pytest.approx(scipys.betaincinv(a, b, share), rel=1e-9)


def test_the_ends_are_the_ends():
    assert (special.betainc(2, 3, 0.0), special.betainc(2, 3, 1.0)) == (0, 1)
    assert (special.stdtrit(5, 0.0), special.stdtrit(5, 1.0)) == (-math.inf, math.inf)
    assert special.stdtr(1e12, 1.0) == pytest.approx(scipys.ndtr(1.0), rel=1e-12)
