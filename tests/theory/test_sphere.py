"""Harmonics against closed forms, other libraries, quadrature and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special

from headwise.spec import SpecError
from headwise.theory.sphere import (
    alternating_sign,
    first_coefficient,
    harmonics,
    log_harmonics,
    polynomials,
    sign_coefficients,
    sign_spectrum,
    zonal_spectrum,
)
from helpers.theory import GOLDEN

DIMS = [2, 3, 4, 5, 8, 17, 64]


def density(dim, t):
    """The law of <u, y>, from log-gammas: another route than the module's."""
    scale = math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2) - math.log(math.pi) / 2
    return np.exp(scale + (dim - 3) / 2 * np.log1p(-(t**2)))


def directions(rng, count, dim):
    points = rng.standard_normal((count, dim))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


# ---- dimensions ----------------------------------------------------------------------------------------------------


def test_dimensions_known_in_closed_form():
    assert [harmonics(2, degree) for degree in range(5)] == [1, 2, 2, 2, 2]
    assert [harmonics(3, degree) for degree in range(5)] == [1, 3, 5, 7, 9]
    assert [harmonics(4, degree) for degree in range(5)] == [1, 4, 9, 16, 25]
    assert all(harmonics(*map(int, key.split(","))) == count for key, count in GOLDEN["Ndim"].items())


@given(st.integers(2, 200), st.integers(0, 200))
def test_polynomials_are_harmonics_times_powers_of_the_radius(dim, degree):
    of_degree = sum(harmonics(dim, low) for low in range(degree % 2, degree + 1, 2))
    assert of_degree == math.comb(degree + dim - 1, dim - 1)


@pytest.mark.parametrize(("dim", "degree"), [(3, 4), (4, 3), (5, 2)])
def test_dimension_is_the_rank_of_a_gram_matrix(dim, degree):
    points = directions(np.random.default_rng(0), 60, dim)
    gram = polynomials(dim, degree, np.clip(points @ points.T, -1, 1))[degree]
    assert np.linalg.matrix_rank(gram, tol=1e-8) == harmonics(dim, degree)


@pytest.mark.parametrize("dim", [2, 3, 64, 4096])
def test_log_dimensions(dim):
    logs = log_harmonics(dim, 2000)
    exact = [math.log(harmonics(dim, degree)) for degree in (0, 1, 2, 7, 500, 2000)]
    assert logs[[0, 1, 2, 7, 500, 2000]] == pytest.approx(exact, rel=1e-13, abs=1e-13)


# ---- polynomials ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", DIMS)
def test_polynomials_against_scipy(dim):
    t = np.linspace(-1, 1, 41)
    ours = polynomials(dim, 30, t)
    for degree in range(31):
        theirs = np.cos(degree * np.arccos(t))
        if dim > 2:
            half = dim / 2 - 1
            theirs = special.eval_gegenbauer(degree, half, t) / special.eval_gegenbauer(degree, half, 1.0)
        assert ours[degree] == pytest.approx(theirs, abs=1e-11)


def test_polynomials_stay_bounded_where_everything_is_large():
    values = polynomials(4096, 2000, np.linspace(-1, 1, 9))
    assert np.all(np.isfinite(values))
    assert np.max(np.abs(values)) <= 1 + 1e-12
    assert values[:, -1] == pytest.approx(1.0)


# ---- the sign ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", DIMS)
def test_coefficients_against_the_beta_function(dim):
    found = sign_coefficients(dim, 41)
    degrees = np.arange(1, 42, 2)
    signs = (-1.0) ** ((degrees - 1) // 2)
    assert found == pytest.approx(signs * special.beta(dim / 2, degrees / 2) / math.pi, rel=1e-12)


@pytest.mark.parametrize("dim", [3, 4, 8, 64])
@pytest.mark.parametrize("degree", [1, 3, 7])
def test_coefficients_against_quadrature(dim, degree):
    whole_line, _ = integrate.quad(
        lambda t: 2 * polynomials(dim, degree, t)[degree] * density(dim, t), 0, 1, epsabs=1e-12
    )
    assert sign_coefficients(dim, degree)[-1] == pytest.approx(whole_line, abs=1e-9)


def test_coefficients_against_simulation():
    rng = np.random.default_rng(1)
    t = directions(rng, 200_000, 8)[:, 0]
    drawn = np.sign(t) * polynomials(8, 5, t)
    error = drawn.std(axis=1) / math.sqrt(t.size)
    assert np.all(np.abs(drawn.mean(axis=1)[1::2] - sign_coefficients(8, 5)) < 4 * error[1::2])
    assert np.all(np.abs(drawn.mean(axis=1)[::2]) < 4 * error[::2])


def test_spectrum_known_values():
    for key, value in GOLDEN["eta2"].items():
        dim, degree = map(int, key.split(","))
        assert sign_spectrum(dim, degree)[-1] == pytest.approx(value, rel=1e-13)
    assert sign_spectrum(3, 3) == pytest.approx([3 / 4, 7 / 64], rel=1e-14)
    assert sign_spectrum(2, 9) == pytest.approx(8 / (math.pi * np.arange(1, 10, 2)) ** 2, rel=1e-14)
    many_dimensions = [math.gamma(n / 2) ** 2 * 2**n / (math.factorial(n) * math.pi**2) for n in (1, 3, 5, 7)]
    assert sign_spectrum(60_000, 7) == pytest.approx(many_dimensions, rel=1e-3)


@pytest.mark.parametrize("dim", [2, 3, 8, 64, 4096])
def test_energies_sum_to_one(dim):
    """What is left falls like 1 / degree, with the constant that the ratio of gammas gives."""
    top = 10**6 + 1
    left = 1 - sign_spectrum(dim, top).sum()
    log_constant = dim * math.log(2) + 2 * math.lgamma(dim / 2) - math.lgamma(dim - 1)
    assert left * top == pytest.approx(math.exp(log_constant) / math.pi**2, rel=1e-2)


@pytest.mark.parametrize("dim", [3, 8, 32])
def test_energies_are_the_coefficients_of_the_arcsine(dim):
    t = np.array([-0.6, 0.1, 0.5])
    series = sign_spectrum(dim, 4001) @ polynomials(dim, 4001, t)[1::2]
    assert series == pytest.approx(2 / math.pi * np.arcsin(t), abs=2e-5)


@pytest.mark.parametrize(("dim", "value"), [(8, 0.347), (32, 0.357), (256, 0.3589)])
def test_energy_above_the_dimension(dim, value):
    assert (1 - sign_spectrum(dim, dim - 1).sum()) * math.sqrt(dim) == pytest.approx(value, abs=5e-4)


def test_spectrum_where_everything_is_large():
    energies = sign_spectrum(4096, 2001)
    degrees = np.arange(1, 2002, 2)
    logs = [math.log(harmonics(4096, int(degree))) for degree in (1, 999, 2001)]
    for at, log_count in zip((0, 499, 1000), logs, strict=True):
        log_energy = log_count + 2 * (special.betaln(2048, degrees[at] / 2) - math.log(math.pi))
        assert energies[at] == pytest.approx(math.exp(log_energy), rel=1e-10)
    assert np.all(np.diff(energies) < 0)
    assert np.all(energies > 0)


def test_the_first_coefficient_is_the_mean_length():
    for dim in (2, 3, 10, 4095, 4096):
        ratio = math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)
        assert first_coefficient(dim) == pytest.approx(ratio, rel=1e-10)


# ---- other targets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [2, 3, 8, 64])
def test_quadrature_finds_the_sign_again(dim):
    found = zonal_spectrum(dim, np.sign, 201, [0.0])
    assert found[1::2] == pytest.approx(sign_spectrum(dim, 201), abs=1e-14)
    assert np.max(found[::2]) < 1e-25


def test_quadrature_where_everything_is_large():
    found = zonal_spectrum(4096, np.sign, 601, [0.0])
    assert found[1::2] == pytest.approx(sign_spectrum(4096, 601), rel=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 7, 64])
def test_a_square_lives_at_degrees_zero_and_two(dim):
    found = zonal_spectrum(dim, np.square, 8)
    assert found[0] == pytest.approx(1 / dim**2, rel=1e-12)
    assert found[2] == pytest.approx(3 / (dim * (dim + 2)) - 1 / dim**2, rel=1e-12)  # E t⁴ less the mean squared
    assert np.max(found[[1, 3, 4, 5, 6, 7, 8]]) < 1e-28


@given(st.integers(2, 20), st.lists(st.floats(-0.99, 0.99), min_size=1, max_size=5, unique=True))
def test_energies_of_a_step_function_are_its_mean_square(dim, places):
    places = sorted(places)
    found = zonal_spectrum(dim, lambda t: np.searchsorted(places, t) % 2 * 2.0 - 1, 300, places)
    assert found.sum() <= 1 + 1e-12
    assert found.sum() > 0.9


@pytest.mark.parametrize(("dim", "jumps", "first"), [(3, 7, 7), (4, 9, 7), (5, 11, 9), (6, 13, 9), (8, 21, 15)])
def test_an_alternating_sign_has_no_low_degrees(dim, jumps, first):
    target, places = alternating_sign(dim, jumps)
    found = zonal_spectrum(dim, target, 40, places)
    assert np.max(found[:first]) < 1e-28
    assert found[first] > 1e-3


@pytest.mark.parametrize(("dim", "jumps"), [(4, 9), (5, 11)])
def test_an_alternating_sign_is_a_sum_of_biased_nearest_neighbours(dim, jumps):
    target, places = alternating_sign(dim, jumps)
    t = np.linspace(-1, 1, 1000)[1:-1]
    steps = sum((-1) ** j * np.sign(t - place) for j, place in enumerate(places))
    waves = np.sin((jumps + 1) * np.arccos(t)) if dim % 2 else np.cos(jumps * np.arccos(t))
    assert np.array_equal(steps, target(t))
    assert np.array_equal(np.sign(waves), target(t))
    assert np.array_equal(target(np.array([-1.0, 1.0])), [-1, 1])


# ---- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: harmonics(1, 3), "dim is 1; it must be at least 2"),
        (lambda: harmonics(3, -1), "degree is -1; it must be at least 0"),
        (lambda: harmonics(3.5, 1), "dim is 3.5; it must be a whole number"),
        (lambda: harmonics(True, 1), "dim is True"),
        (lambda: polynomials(3, 2, [1.5]), "between -1 and 1"),
        (lambda: polynomials(3, 2, math.nan), "between -1 and 1"),
        (lambda: sign_spectrum(3, 0), "degree is 0"),
        (lambda: zonal_spectrum(3, np.sign, 3, [2.0]), "between -1 and 1"),
        (lambda: zonal_spectrum(3, lambda t: t * np.inf, 3), "finite"),
        (lambda: alternating_sign(4, 2), "must be odd"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(SpecError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
