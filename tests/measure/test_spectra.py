"""Singular values against numpy, Jacobians against autograd, and Lanczos against both."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise import Attention, AttentionShape
from headwise.measure.spectra import (
    TOLERANCE,
    condition_number,
    effective_rank,
    jacobian,
    jacobian_extremes,
    rank_of,
    singular_values,
)
from headwise.spec import SpecError

sizes = st.integers(1, 7)
seeds = st.integers(0, 2**32 - 1)


def normal(seed, *size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(shape, **options):
    return Attention(AttentionShape.parse(shape), dtype=torch.float64, **options)


# ---- singular values -----------------------------------------------------------------------------------------------


@given(sizes, sizes, seeds)
def test_condition_numbers_are_numpys(rows, columns, seed):
    matrix = normal(seed, rows, columns)
    assert float(condition_number(matrix)) == pytest.approx(np.linalg.cond(matrix.numpy()), rel=1e-6)


@given(st.integers(2, 7), sizes, seeds)
def test_centring_projects_the_mean_out(rows, columns, seed):
    matrix = normal(seed, rows, columns)
    basis = np.linalg.qr(np.hstack([np.ones((rows, 1)), np.eye(rows)[:, 1:]]))[0][:, 1:]  # at right angles to ones
    wanted = np.linalg.cond(basis.T @ matrix.numpy())
    assert float(condition_number(matrix, centred=True)) == pytest.approx(wanted, rel=1e-6)


def test_a_singular_matrix_has_an_infinite_condition_number():
    assert math.isinf(condition_number(torch.ones(3, 3)))
    assert math.isinf(condition_number(normal(0, 64, 3) @ normal(1, 3, 64)))
    assert math.isinf(condition_number(torch.zeros(2, 5)))
    assert math.isnan(condition_number(torch.ones(1, 5), centred=True))


@given(sizes, sizes, sizes, seeds)
def test_a_product_is_known_by_its_factors(rank, left, right, seed):
    a, b = normal(seed, 2, rank, left), normal(seed + 1, 2, rank, right)
    found = singular_values(a, b)
    whole = np.linalg.svd(a.numpy().transpose(0, 2, 1) @ b.numpy(), compute_uv=False)
    kept = min(found.shape[-1], whole.shape[-1])
    assert found.shape[-1] <= min(max(rank, left), max(rank, right))
    np.testing.assert_allclose(found[:, :kept], whole[:, :kept], atol=1e-12)
    assert float(found[:, kept:].sum() + whole[:, kept:].sum()) < 1e-12


def test_effective_ranks_by_hand():
    values = torch.tensor([2.0, 1.0], dtype=torch.float64)
    assert float(rank_of(values, "stable")) == pytest.approx(5 / 4)
    assert float(rank_of(values, "participation")) == pytest.approx(25 / 17)
    assert float(rank_of(values)) == pytest.approx(3 / 4 ** (1 / 3))  # exp(log 3 − 2/3 log 2)
    assert float(effective_rank(torch.diag(values) @ torch.linalg.qr(normal(0, 2, 2)).Q, "stable")) == pytest.approx(
        1.25
    )
    with pytest.raises(SpecError, match="no effective rank 'mood'; there are"):
        rank_of(values, "mood")


@pytest.mark.parametrize("form", ["entropy", "stable", "participation"])
def test_effective_rank_counts_equal_values(form):
    assert float(effective_rank(7 * torch.eye(5), form)) == pytest.approx(5)
    assert float(effective_rank(normal(0, 6, 1) @ normal(1, 1, 4), form)) == pytest.approx(1)
    assert float(effective_rank(torch.zeros(3, 3), form)) == 0


@given(sizes, sizes, seeds)
def test_effective_ranks_are_ordered(rows, columns, seed):
    stable, participation, shannon = (
        float(effective_rank(normal(seed, rows, columns), form)) for form in ("stable", "participation", "entropy")
    )
    assert 1 - 1e-12 <= stable <= participation + 1e-12
    assert participation <= shannon + 1e-12
    assert shannon <= min(rows, columns) + 1e-12


# ---- Jacobians -----------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(2, 40), seeds)
def test_lanczos_finds_the_extremes_of_any_matrix(size, seed):
    """To the end; the values are those of a linear map, so numpy knows them."""
    matrix = normal(seed, size, size)
    values = np.linalg.svd(matrix.numpy(), compute_uv=False)
    found = jacobian_extremes(lambda x: matrix @ x, normal(seed + 1, size), exact_size=0, steps=size)
    assert found.largest == pytest.approx(values[0], abs=found.largest_error + 1e-9)
    assert found.smallest == pytest.approx(values[-1], abs=found.smallest_error + 1e-9)
    assert found.at_least <= values[0] / values[-1] * (1 + 1e-9)
    assert found.condition == pytest.approx(values[0] / values[-1], rel=2 * TOLERANCE)


@pytest.mark.parametrize("outliers", [[0.3], [30.0, 0.5]])
def test_lanczos_survives_values_that_cluster(outliers):
    """Where vectors are made orthogonal only once, rounding grows here until the range is far too wide."""
    values = torch.cat([1 + 0.01 * normal(0, 300).sigmoid(), torch.tensor(outliers, dtype=torch.float64)])
    found = jacobian_extremes(lambda x: values * x, torch.zeros_like(values), exact_size=0, steps=100)
    assert found.converged
    assert 0 <= values.max() - found.largest + 1e-12 <= found.largest_error + 2e-12
    assert 0 <= found.smallest - values.min() + 1e-12 <= found.smallest_error + 2e-12


@pytest.mark.parametrize("steps", [1, 5, 20, 60])
@pytest.mark.parametrize("shape", ["w16-h4", "w16-h1", "w16-h8-r4"])
def test_lanczos_says_how_far_off_it_is(shape, steps):
    """Errors bound the distance to a true singular value, and the range never reaches beyond the true one."""
    layer, x = layer_of(shape, path="plain"), normal(1, 1, 6, 16)
    values = torch.linalg.svdvals(jacobian(lambda t: t + layer(t), x))
    found = jacobian_extremes(lambda t: t + layer(t), x, exact_size=0, steps=steps)
    for value, error in ((found.largest, found.largest_error), (found.smallest, found.smallest_error)):
        assert float((values - value).abs().min()) <= error + 1e-12
    assert found.largest <= values[0] + 1e-12
    assert found.smallest >= values[-1] - 1e-12
    assert found.at_least <= values[0] / values[-1] + 1e-9
    if found.converged:
        assert found.condition == pytest.approx(float(values[0] / values[-1]), rel=2 * TOLERANCE)
    else:
        assert math.isnan(found.condition)


def test_lanczos_finds_a_residual_block_in_fewer_steps_than_it_has_inputs():
    layer, x = layer_of("w64-h4", path="plain"), normal(1, 1, 16, 64)
    wanted = jacobian_extremes(lambda t: t + layer(t), x)
    found = jacobian_extremes(lambda t: t + layer(t), x, exact_size=0, steps=400)
    assert found.converged
    assert found.condition == pytest.approx(wanted.condition, rel=0.01)
    bare = jacobian_extremes(lambda t: layer(t), x, exact_size=0, steps=100)
    assert math.isnan(bare.condition)  # honestly not found
    assert bare.at_least < jacobian_extremes(lambda t: layer(t), x).condition


@pytest.mark.parametrize("exact_size", [0, 100])
def test_extremes_of_functions_that_are_simple(exact_size):
    def of(function):
        return jacobian_extremes(function, normal(0, 3, 4), exact_size=exact_size)

    assert of(lambda x: -3 * x).condition == pytest.approx(1)
    assert of(lambda x: -3 * x).largest == pytest.approx(3)
    assert math.isinf(of(lambda x: 0 * x).condition)
    assert math.isinf(of(lambda x: x - x.mean(0)).condition)
    assert of(lambda x: x + x.mean(0)).condition == pytest.approx(2)


def test_the_jacobian_is_autograds():
    layer, x = layer_of("w6-h2", causal=True), normal(0, 1, 4, 6)
    wanted = torch.autograd.functional.jacobian(layer, x).reshape(24, 24)
    layer.path = "plain"
    torch.testing.assert_close(jacobian(layer, x), wanted)
