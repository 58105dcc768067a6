"""Random rank-1 hard heads with the best scalar weights: their error in closed form, for any number of heads.

Head h answers with one of two orthonormal points, by the sign of (q_h·y)(k_h·u), where u is the direction from the
second point to the first and y the query. With weights a the error is 1 - 2 b·a + aᵀCa, and both are known:

    C_hg = 1/2 + (2/π²) arcsin(q_h·q_g) arcsin(k_h·k_g)        b_h = 1/2 + 1/2 agreement(q_h·k_h)

so that the best error is 1 - bᵀC⁻¹b. One Cholesky factor C = LLᵀ gives it for every number of heads up to H at once:
with w = L⁻¹b it is 1 - w_1² - … - w_H'². Where C does not fit into memory, conjugate gradients compute its blocks again
for each product. Single precision is enough, with sums in double: C's condition number, but for the mean, is in the
hundreds.

    errors = nested_errors(draw_heads(8, 4096, "uniform", seed=0))      # errors[H - 1] is that of the first H heads
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from headwise.extras import extra
from headwise.spec import SpecError
from headwise.theory.needs import Keys
from headwise.theory.sphere import Array, first_coefficient, whole

MOST_FACTORED = 2**15  # heads: C takes 4 GiB there
_BLOCK = 256  # heads: a block stays in the cache, which is what its speed hangs on
_NODES = 128
_PATIENCE = 8  # steps


class HeadDirections(NamedTuple):
    """Queries and keys, one row per head; unit vectors unless they are to be as published."""

    queries: Array
    keys: Array


def draw_heads(
    dim: int, heads: int, keys: Keys = "independent", seed: int = 0, *, as_published: bool = False
) -> HeadDirections:
    """Random heads; the first of many are the same as the few.

    Keys are independent of the queries, equal to them, or at an angle whose cosine is uniform in [-1, 1]. The published
    code makes the last kind from a part of a unit vector that it forgets to bring back to unit length: `as_published`.
    """
    whole("dim", dim, 2), whole("heads", heads, 1)
    directions, angles = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    drawn = directions.standard_normal((heads, 2, dim))
    queries, others = np.moveaxis(drawn / np.linalg.norm(drawn, axis=-1, keepdims=True), 1, 0)
    if keys == "equal":
        return HeadDirections(queries, queries.copy())
    if keys == "independent":
        return HeadDirections(queries, others)
    cosines = angles.uniform(-1, 1, (heads, 1))
    across = others - np.sum(queries * others, axis=1, keepdims=True) * queries
    made = cosines * queries + np.sqrt(1 - cosines**2) * (across if as_published else _unit(across))
    return HeadDirections(queries, made)


def agreement(dim: int, cosine: Any) -> Array:
    """E[σ s]: how far a head whose query and key have this cosine agrees with the nearest neighbour.

    Given ψ = arcsin(k·y), the sign of k·u agrees with that of u·y as 2ψ/π, and the sign of q·y, given k·y, is that of a
    coordinate on the sphere one dimension below, shifted; it is certain once ψ passes the angle between q and k.
    """
    t = np.clip(np.atleast_1d(np.asarray(cosine, dtype=float)), -1, 1)
    angle = np.arccos(np.abs(t))[:, None]
    if whole("dim", dim, 2) == 2:
        size = 0.5 - 2 * (angle[:, 0] / math.pi) ** 2
    else:
        density = (dim - 1) * first_coefficient(dim) / 2
        size = 4 / math.pi * density * (_unsure(dim, angle) + _certain(dim, angle))
    return np.reshape(np.sign(t) * size, np.shape(cosine))


def _unsure(dim: int, angle: Array) -> Array:
    """∫ ψ cos(ψ)^(d-2) P(|coordinate| < tan ψ / tan angle) over 0 … angle, with ψ = angle (1 - x²): smooth in x."""
    with extra("theory", "constructions"):
        from scipy.special import betainc

    x, weight = _gauss()
    psi = angle * (1 - x**2)
    certainty = betainc(0.5, (dim - 2) / 2, np.minimum((np.tan(psi) / np.tan(np.maximum(angle, 1e-300))) ** 2, 1))
    return np.sum(2 * angle * x * weight * psi * np.cos(psi) ** (dim - 2) * certainty, axis=1)


def _certain(dim: int, angle: Array) -> Array:
    """∫ ψ cos(ψ)^(d-2) over angle … π/2."""
    x, weight = _gauss()
    span = math.pi / 2 - angle
    psi = angle + span * x
    return np.sum(span * weight * psi * np.cos(psi) ** (dim - 2), axis=1)


def _gauss() -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on 0 … 1."""
    x, weight = np.polynomial.legendre.leggauss(_NODES)
    return (x + 1) / 2, weight / 2


# ---- moments -------------------------------------------------------------------------------------------------------


def moments(heads: HeadDirections) -> Array:
    """b: each head's answer times the right one."""
    return 0.5 + 0.5 * agreement(heads.queries.shape[1], np.sum(heads.queries * heads.keys, axis=1))


def correlations(heads: HeadDirections) -> Iterator[tuple[slice, slice, Any]]:
    """The lower half of C, block by block, in single precision: rows, columns, and the block between them."""
    count = len(heads.queries)
    single = [part.astype(np.float32) for part in heads]
    own = _own(heads)
    places = [slice(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK)]
    for number, rows in enumerate(places):
        for columns in places[: number + 1]:
            arcs = [np.arcsin(np.clip(part[rows] @ part[columns].T, -1, 1)) for part in single]
            block = np.float32(0.5) + np.float32(2 / math.pi**2) * arcs[0] * arcs[1]
            if rows == columns:
                np.fill_diagonal(block, own[rows])
            yield rows, columns, block


def _own(heads: HeadDirections) -> Array:
    """The diagonal of C in double: at 1, arcsin turns a rounding of 1e-7 into one of 1e-4."""
    squares = [np.sum(part**2, axis=1) for part in heads]
    arcs = [np.arcsin(np.where(square > 1 - 1e-12, 1, square)) for square in squares]
    return 0.5 + 2 / math.pi**2 * arcs[0] * arcs[1]


# ---- the best error ------------------------------------------------------------------------------------------------


def nested_errors(heads: HeadDirections) -> Array:
    """The best error of the first 1, 2, …, H heads."""
    with extra("theory", "constructions"):
        from scipy.linalg import solve_triangular

    factor = _factor(heads)
    whitened = solve_triangular(factor, moments(heads).astype(np.float32), lower=True, check_finite=False)
    return 1 - np.cumsum(np.square(whitened, dtype=np.float64))


def best_weights(heads: HeadDirections) -> Array:
    """C⁻¹b: the weights of the least error."""
    return _solve(heads, moments(heads))


def error_of(weights: Array, heads: HeadDirections) -> float:
    """The error of any weights: 1 - 2 b·a + aᵀCa."""
    return float(1 - 2 * moments(heads) @ weights + weights @ _times(heads, weights))


def iterated_error(heads: HeadDirections, tolerance: float = 1e-5) -> tuple[float, int]:
    """The best error without ever holding C, and the number of products with it; to within about `tolerance`.

    Conjugate gradients from zero weights: after each step b·a is what the weights capture, so the error they reach is
    1 - b·a, exactly that of weights that exist, and it only falls. Ends when some steps together gained no more than
    the tolerance.
    """
    residual = moments(heads)
    direction, gains = residual.copy(), [math.inf]
    while (size := residual @ residual) > 0 and sum(gains[-_PATIENCE:]) > tolerance:
        image = _times(heads, direction)
        step = size / (direction @ image)
        gains.append(float(step * size))
        residual = residual - step * image
        direction = residual + (residual @ residual) / size * direction
    return 1 - sum(gains[1:]), len(gains) - 1


def _factor(heads: HeadDirections) -> Any:
    """The lower Cholesky factor of C, in C's own memory."""
    with extra("theory", "constructions"):
        from scipy.linalg import cholesky

    count = len(heads.queries)
    if count > MOST_FACTORED:
        raise SpecError(f"{count} heads are too many for one factor; use iterated_error, or at most {MOST_FACTORED}")
    gram = np.empty((count, count), dtype=np.float32, order="F")
    for rows, columns, block in correlations(heads):
        gram[rows, columns] = block
    return cholesky(gram, lower=True, overwrite_a=True, check_finite=False)


def _solve(heads: HeadDirections, right: Array) -> Array:
    with extra("theory", "constructions"):
        from scipy.linalg import cho_solve

    return cho_solve((_factor(heads), True), right.astype(np.float32), check_finite=False).astype(np.float64)


def _times(heads: HeadDirections, vector: Array) -> Array:
    """C times a vector: each block is made once, used for both of its places, and dropped."""
    product, single = np.zeros_like(vector), vector.astype(np.float32)
    for rows, columns, block in correlations(heads):
        product[rows] += block @ single[columns]
        if rows != columns:
            product[columns] += single[rows] @ block
    return product


def _unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# ---- the published figure ------------------------------------------------------------------------------------------


class AsPublished(NamedTuple):
    """What the published computation says of its heads, what its weights do, and what the best weights would."""

    reported: float
    true: float
    best: float


def published_error(dim: int, heads: int, seed: int = 0) -> AsPublished:
    """The published figure's point, with its two mistakes, beside the truth about the same heads.

    Keys are shorter than 1, but C and b are written for unit keys: the diagonal of C is then below the 1 it is, so the
    formula rewards heads for a variance they do have. And b is rounded to half precision. Hard heads do not see the
    length of a key, so the truth is that of the same keys at unit length.
    """
    short = draw_heads(dim, heads, "uniform", seed, as_published=True)
    unit = HeadDirections(short.queries, _unit(short.keys))
    rounded = moments(short).astype(np.float16).astype(np.float64)
    weights = _solve(short, rounded)
    reported = float(1 - 2 * rounded @ weights + weights @ _times(short, weights))
    return AsPublished(reported, error_of(weights, unit), float(nested_errors(unit)[-1]))
