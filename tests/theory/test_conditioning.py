"""Conditioning at initialisation: predictions against simulation, real heads against numbers measured independently.

The numbers below were measured once by a separate program on its own random heads, one draw a cell (the Jacobians: the
median of seven). A draw of ours must be able to give them: within 3.5 standard deviations of our draws, in logarithms.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.shape import AttentionShape
from headwise.spec import SpecError
from headwise.theory import conditioning
from headwise.theory.conditioning import (
    block_conditions,
    gaussian_condition,
    jacobian_conditions,
    limit_condition,
)
from headwise.theory.gaussian import marchenko_pastur

DEVIATIONS = 3.5


def assert_plausible(draws, measured, rounding, of_median=1):
    """`measured`, known to a relative `rounding`, as one more draw; or as the median of so many draws."""
    logs = np.log(draws)
    spread = logs.std(ddof=1) * (1.2533 / math.sqrt(of_median) if of_median > 1 else 1)
    spread *= math.sqrt(1 + of_median / len(draws))  # our own mean is not exact either
    centre = np.median(logs) if of_median > 1 else logs.mean()
    distance = max(0.0, abs(math.log(measured) - centre) - rounding)
    assert distance < DEVIATIONS * spread, f"{measured} against {np.exp(centre):.4g} times {math.exp(spread):.3f}^±1"


def heads_of(heads, **sizes):
    return AttentionShape(width=256, heads=heads, **sizes)


# ---- independent Gaussian entries ----------------------------------------------------------------------------------


def test_the_prediction_by_hand():
    assert marchenko_pastur(1, 4) == pytest.approx(3)
    assert marchenko_pastur(64, 256) == pytest.approx(3)
    assert marchenko_pastur(64, 16384) == pytest.approx(17 / 15)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_prediction_is_symmetric_and_falls_away_from_a_square(tokens, columns):
    if tokens == columns:
        with pytest.raises(SpecError, match="no finite value for a square"):
            marchenko_pastur(tokens, columns)
        return
    assert marchenko_pastur(tokens, columns) == marchenko_pastur(columns, tokens) > 1
    if columns > tokens:
        assert marchenko_pastur(tokens, columns + 1) < marchenko_pastur(tokens, columns)


def test_sizes_are_checked():
    with pytest.raises(SpecError, match="tokens is 0, but must be 1 or more"):
        marchenko_pastur(0, 3)
    with pytest.raises(SpecError, match="columns is -1"):
        gaussian_condition(3, -1)
    with pytest.raises(SpecError, match="tokens is 0"):
        block_conditions(heads_of(2), 0)


@pytest.mark.parametrize(
    ("columns", "measured"), [(80, 13.7), (96, 8.7), (128, 5.48), (256, 2.93), (1024, 1.635), (16384, 1.130)]
)
def test_gaussian_matrices_follow_the_prediction(columns, measured):
    draws = [gaussian_condition(64, columns, seed) for seed in range(6 if columns > 2000 else 30)]
    assert_plausible(draws, measured, 0.004)
    assert np.mean(draws) < marchenko_pastur(64, columns)  # finite matrices stay inside the asymptotic edge
    if columns >= 128:
        assert np.mean(draws) == pytest.approx(marchenko_pastur(64, columns), rel=0.08)


def test_the_prediction_is_the_limit_of_large_matrices():
    errors = [
        abs(np.mean([gaussian_condition(n, 4 * n, seed) for seed in range(8)]) / marchenko_pastur(n, 4 * n) - 1)
        for n in (16, 256)
    ]
    assert errors[1] < errors[0] / 2
    assert errors[1] < 0.02


# ---- real heads ----------------------------------------------------------------------------------------------------

FIXED_RANK = {  # 64 tokens, width 256, rank 16: for each scale of the logits, heads and condition number of A
    1.0: {8: 29.2, 16: 17.7, 64: 11.0, 256: 9.2},
    4.0: {8: 9.2, 16: 5.2, 64: 3.1, 256: 2.7},
    16.0: {8: 8.5, 16: 4.5, 64: 2.7, 256: 2.1},
}
CENTRED = {8: 10.5, 16: 5.1, 64: 2.7, 256: 2.1}  # at scale 1, without the mean over tokens
FIXED_WIDTH = {  # the same with heads × rank = 256
    1.0: {1: 901, 2: 39, 4: 23, 8: 18, 16: 16, 32: 15, 64: 17},
    4.0: {1: 11046, 2: 17.6, 4: 7.5, 8: 5.9, 16: 5.1, 32: 6.0, 64: 6.9},
    16.0: {2: 27, 4: 6.6, 8: 4.9, 16: 4.2, 32: 4.7, 64: 6.0},
}


def cells(table):
    """Scale and heads; hundreds of heads at more than one scale only in the slow tests."""
    return [
        pytest.param(scale, heads, marks=[pytest.mark.slow] if heads == 256 and scale > 1 else [])
        for scale, row in table.items()
        for heads in row
    ]


@pytest.mark.parametrize(("scale", "heads"), cells(FIXED_RANK))
def test_heads_of_fixed_rank(scale, heads):
    """Far from the theorem's number; at scale 1 within a factor of about two when their common mean is removed."""
    shape = heads_of(heads, qk_rank=16)
    found = [block_conditions(shape, 64, scale=scale, seed=seed) for seed in range(4 if heads == 256 else 8)]
    draws, centred = [one.heads for one in found], [one.centred_heads for one in found]
    assert_plausible(draws, FIXED_RANK[scale][heads], 0.02)
    assert np.mean(draws) > 1.4 * marchenko_pastur(64, 16 * heads)
    if scale == 1:
        assert_plausible(centred, CENTRED[heads], 0.03)
        assert 1.4 < np.mean(centred) / marchenko_pastur(64, 16 * heads) < 2.3


@pytest.mark.parametrize(("scale", "heads"), cells(FIXED_WIDTH))
def test_heads_of_fixed_width(scale, heads):
    draws = [block_conditions(heads_of(heads), 64, scale=scale, seed=seed).heads for seed in range(6)]
    assert_plausible(draws, FIXED_WIDTH[scale][heads], 0.03)


def test_a_single_sharp_head_is_all_but_singular():
    assert min(block_conditions(heads_of(1), 64, scale=16.0, seed=seed).heads for seed in range(4)) > 1e7


def test_more_heads_of_one_width_help_up_to_eight():
    """Paired: seeds share their tokens."""
    found = {
        h: np.array([math.log(block_conditions(heads_of(h), 64, seed=seed).heads) for seed in range(8)])
        for h in (1, 2, 8, 64)
    }
    for few, many in ((1, 2), (2, 8)):
        assert (found[many] < found[few]).all()
    assert abs((found[64] - found[8]).mean()) < 0.15


def test_the_residual_hides_it_all():
    for heads, measured in ((1, 3.24), (4, 3.06), (16, 3.01), (64, 3.15)):
        found = [block_conditions(heads_of(heads), 64, seed=seed) for seed in range(8)]
        assert_plausible([one.residual for one in found], measured, 0.002)
        assert_plausible([one.tokens for one in found], 2.80, 0.002)
        assert max(one.residual for one in found) < 1.4 * min(one.tokens for one in found)


def test_causal_heads_and_rank_one():
    for heads, measured in ((4, 31), (16, 20), (64, 20)):
        draws = [block_conditions(heads_of(heads), 64, causal=True, seed=seed).heads for seed in range(8)]
        assert_plausible(draws, measured, 0.025)
    assert block_conditions(heads_of(1), 64, causal=True).heads > 1e9
    rank_one = heads_of(8, qk_rank=1, v_rank=32)
    assert_plausible([block_conditions(rank_one, 64, seed=seed).heads for seed in range(8)], 1e6, 0.4)


def test_shapes_of_one_width_share_their_tokens():
    found = [block_conditions(shape, 16, seed=3).tokens for shape in (heads_of(1), heads_of(8), heads_of(2, qk_rank=3))]
    assert len(set(found)) == 1
    assert block_conditions(heads_of(1), 16, seed=4).tokens != found[0]


def test_nothing_random_is_left_behind():
    before = torch.get_rng_state()
    first = block_conditions(heads_of(2), 8, seed=1)
    torch.rand(3)
    assert block_conditions(heads_of(2), 8, seed=1) == first
    torch.set_rng_state(before)
    block_conditions(heads_of(2), 8, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_block_by_hand():
    """The layer's own weights, and numpy's softmax."""
    shape = AttentionShape(width=12, heads=3, qk_rank=2, v_rank=5)
    call = conditioning._random_call(shape, 7, 2.0, 5)
    query, key, value, output = (weight.numpy() for weight in call.layer.head_weights())
    x = call.given["x"][0].numpy()
    logits = 2.0 / math.sqrt(2) * (x @ query.transpose(0, 2, 1)) @ (x @ key.transpose(0, 2, 1)).transpose(0, 2, 1)
    weights = np.exp(logits)
    weights /= weights.sum(-1, keepdims=True)
    heads = weights @ (x @ value.transpose(0, 2, 1))
    added = (heads @ output.transpose(0, 2, 1)).sum(0)
    side_by_side = np.concatenate(list(heads), axis=1)
    found = block_conditions(shape, 7, scale=2.0, seed=5)
    assert found.tokens == pytest.approx(np.linalg.cond(x))
    assert found.heads == pytest.approx(np.linalg.cond(side_by_side))
    assert found.output == pytest.approx(np.linalg.cond(added))
    assert found.residual == pytest.approx(np.linalg.cond(x + added))


# ---- many heads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "measured", "rough"),
    [
        (1.0, 8.98, 6.5),
        pytest.param(4.0, 2.44, 1.84, marks=pytest.mark.slow),
        pytest.param(16.0, 1.92, 1.48, marks=pytest.mark.slow),
        (None, 1.86, 1.42),  # hardmax
    ],
)
def test_the_limit_of_many_heads_is_not_one(scale, measured, rough):
    options = {"hardmax": True} if scale is None else {"scale": scale}
    draws = [limit_condition(heads_of(1, qk_rank=16), 64, seed=seed, **options) for seed in range(3)]
    assert_plausible(draws, measured, 0.01)
    # With orthogonal tokens and unrelated patterns the mean is (p − 1/N) I + 11ᵀ/N, p the mean of Σ weight².
    call = conditioning._random_call(heads_of(64, qk_rank=16), 64, scale or 1.0, 0, hardmax=scale is None)
    spare = call.weights.square().sum(-1).mean().item() - 1 / 64
    assert math.sqrt((spare + 1) / spare) == pytest.approx(rough, rel=0.03)


def test_the_limit_by_hand(monkeypatch):
    """Few heads, one after the other."""
    monkeypatch.setattr(conditioning, "LIMIT_HEADS", 3)
    call = conditioning._random_call(AttentionShape(width=12, heads=3, qk_rank=2, v_rank=1), 5, 2.0, 7)
    x = call.given["x"][0].numpy()
    mean = sum(head.numpy() @ x @ x.T @ head.numpy().T for head in call.weights) / 3
    found = limit_condition(AttentionShape(width=12, heads=1, qk_rank=2), 5, scale=2.0, seed=7)
    assert found == pytest.approx(math.sqrt(np.linalg.cond(mean)))


def test_heads_approach_the_limit():
    """Directly, with values and all, on the same tokens: 1024 heads of rank 16."""
    limit = limit_condition(heads_of(1, qk_rank=16), 64, scale=4.0)
    few, many = (block_conditions(heads_of(h, qk_rank=16), 64, scale=4.0).heads for h in (64, 1024))
    assert many == pytest.approx(limit, rel=0.05)
    assert abs(many - limit) < abs(few - limit) / 2


# ---- Jacobians -----------------------------------------------------------------------------------------------------

JACOBIANS = {  # 8 tokens, width 16, heads × rank = 16: by tokens, with the residual, by parameters
    1: (1.1e6, 74, 801),
    2: (1.1e5, 45, 81),
    4: (7e4, 36, 84),
    8: (6e4, 37, 45),
    16: (1.3e5, 26, 57),
}
SHARP_RESIDUAL = {1: 784, 2: 2301, 4: 6035, 8: 2463, 16: 1408}  # queries and keys three times as large


@pytest.mark.parametrize("heads", JACOBIANS)
def test_jacobians_of_random_blocks(heads):
    shape = AttentionShape(width=16, heads=heads)
    found = [jacobian_conditions(shape, 8, seed=seed) for seed in range(15)]
    for part, measured in zip(("output", "residual", "parameters"), JACOBIANS[heads], strict=True):
        assert_plausible([getattr(one, part) for one in found], measured, 0.05, of_median=7)
    sharp = [jacobian_conditions(shape, 8, scale=9.0, seed=seed).residual for seed in range(15)]
    assert_plausible(sharp, SHARP_RESIDUAL[heads], 0.001, of_median=7)


def test_one_head_is_worst_by_its_parameters_and_more_than_two_change_little():
    found = {}
    for heads in (1, 2, 16):
        shape = AttentionShape(width=16, heads=heads)
        found[heads] = np.median([jacobian_conditions(shape, 8, seed=seed).parameters for seed in range(9)])
    assert found[1] > 5 * found[2]
    assert 0.3 < found[16] / found[2] < 1.5


def test_jacobians_are_autograds():
    shape = AttentionShape(width=6, heads=2)
    call = conditioning._random_call(shape, 3, 1.0, 2)
    layer, x = call.layer.requires_grad_(True), call.given["x"]
    by_x = torch.autograd.functional.jacobian(layer, x).reshape(18, 18).numpy()
    rows = []
    for output in layer(x).flatten():
        gradients = torch.autograd.grad(output, list(layer.parameters()), retain_graph=True)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    found = jacobian_conditions(shape, 3, seed=2)
    assert found.output == pytest.approx(np.linalg.cond(by_x))
    assert found.residual == pytest.approx(np.linalg.cond(np.eye(18) + by_x))
    assert found.parameters == pytest.approx(np.linalg.cond(torch.stack(rows).numpy()))
