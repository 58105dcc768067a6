"""Singular values: condition numbers, effective ranks, the extremes of a Jacobian. Plain functions of tensors.

    condition_number(heads)                      # (tokens, H·V): every head's output side by side
    effective_rank(query.mT @ key)               # what a head uses of the rank it pays for
    jacobian_extremes(lambda x: x + layer(x), tokens).condition

They need no headwise model: give them the tensors of any other. Work in float64 where a condition number may pass 1e6,
since float32 cannot tell a larger one from infinity.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.spec import SpecError

RankForm = Literal["entropy", "stable", "participation"]
Function = Callable[[Tensor], Tensor]

EXACT_SIZE = 2048  # up to this many inputs a Jacobian is written out: 7 seconds on one core, 32 MB
STEPS, CHECKED_EVERY = 400, 20  # of Lanczos above it: two products with the Jacobian each
LONG = 2  # times as many rows as columns, or the other way round
TOLERANCE = 0.05  # relative error at which an extreme counts as converged


def singular_values(left: Tensor, right: Tensor) -> Tensor:
    """Those of leftᵀ right that can differ from 0, for factors (..., rank, columns); the product is never formed."""
    small = torch.linalg.qr(left.mT).R @ torch.linalg.qr(right.mT).R.mT
    return torch.linalg.svdvals(small)


def condition_of(values: Tensor) -> Tensor:
    """Largest singular value over smallest, values falling along the last dimension.

    Infinite where the smallest is 0 to working precision: what division gives there is rounding, not measurement.
    """
    if not values.shape[-1]:
        return values.new_full(values.shape[:-1], math.nan)
    noise = torch.finfo(values.dtype).eps * values.shape[-1]
    largest, smallest = values[..., 0], values[..., -1]
    return torch.where(smallest > noise * largest, largest / smallest, math.inf)


def condition_number(matrices: Tensor, *, centred: bool = False) -> Tensor:
    """For each matrix of (..., rows, columns); `centred`, without the mean of its rows and the rank that takes."""
    if not centred:
        return condition_of(_values_of(matrices))
    values = _values_of(matrices - matrices.mean(-2, keepdim=True))
    return condition_of(values[..., : matrices.shape[-2] - 1])


def _values_of(matrices: Tensor) -> Tensor:
    """Singular values; of a long or wide matrix those of its triangular factor, which are the same and sooner had."""
    rows, columns = matrices.shape[-2:]
    if max(rows, columns) < LONG * min(rows, columns):
        return torch.linalg.svdvals(matrices)
    return torch.linalg.svdvals(torch.linalg.qr(matrices if rows > columns else matrices.mT, mode="r").R)


def rank_of(values: Tensor, form: RankForm = "entropy") -> Tensor:
    """How many singular values σ count: 1 for rank one, n for n equal ones, 0 where all are 0.

    entropy        exp(entropy of σ/Σσ): counts small values most
    participation  (Σσ²)²/Σσ⁴
    stable         Σσ²/max σ²: counts large values only
    """
    parts = torch.nan_to_num(values / values[..., :1])  # the largest is 1, or 0 in a matrix of zeros
    squares = parts.square()
    if form == "stable":
        return squares.sum(-1)
    if form == "participation":
        return torch.nan_to_num(squares.sum(-1).square() / squares.square().sum(-1))
    if form != "entropy":
        raise SpecError(f"no effective rank '{form}'; there are entropy, participation, stable")
    shares = parts / parts.sum(-1, keepdim=True)
    return torch.nan_to_num(torch.special.entr(shares).sum(-1).exp())


def effective_rank(matrices: Tensor, form: RankForm = "entropy") -> Tensor:
    """Of each matrix of (..., rows, columns); see `rank_of`."""
    return rank_of(_values_of(matrices), form)


# ---- Jacobians -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extremes:
    """The largest and the smallest singular value of a Jacobian, and how far each may be from a true one."""

    largest: float
    smallest: float
    largest_error: float = 0.0
    smallest_error: float = 0.0

    @property
    def at_least(self) -> float:
        """A bound from below for the condition number, whatever the errors: Lanczos sees only a part of the range."""
        return self.largest / self.smallest if self.smallest else math.inf

    @property
    def converged(self) -> bool:
        """Whether both are known to TOLERANCE."""
        return self.largest_error <= TOLERANCE * self.largest and self.smallest_error <= TOLERANCE * self.smallest

    @property
    def condition(self) -> float:
        """The condition number, or NaN where an extreme has not converged: `at_least` is all that is known then."""
        return self.at_least if self.converged else math.nan


@torch.no_grad()
def jacobian(function: Function, x: Tensor) -> Tensor:
    """(outputs, inputs): all derivatives of a function of one tensor, both written out flat."""
    flat = torch.func.jacrev(lambda t: function(t.view_as(x)).flatten(), chunk_size=128)
    return flat(x.flatten())


@torch.no_grad()
def jacobian_extremes(function: Function, x: Tensor, *, exact_size: int = EXACT_SIZE, steps: int = STEPS) -> Extremes:
    """Of a function with as many outputs as inputs: exact up to `exact_size` inputs, by Lanczos above.

    The largest is found in tens of steps. The smallest takes about as many as the condition number: of a residual
    block it is usually found, of bare attention only where the Jacobian can be written out: 1e5 and more, and of causal
    attention more by a factor with every token. The function must have forward derivatives, which fused kernels lack.
    """
    if x.numel() > exact_size:
        return _by_lanczos(function, x, min(steps, x.numel()))
    values = torch.linalg.svdvals(jacobian(function, x))
    return _extremes(values, torch.zeros_like(values))


def _by_lanczos(function: Function, x: Tensor, steps: int) -> Extremes:
    """Golub-Kahan bidiagonalisation, every new vector made orthogonal to all before it.

    J V = U B and Jᵀ U = V Bᵀ + rest, so the singular values of B lie inside the range of J's; a singular vector p of B
    leaves a residual of |rest| · |last entry of p|, and a true singular value is no farther than that over √2.
    """
    transposed = torch.func.vjp(function, x)[1]
    generator = torch.Generator(x.device).manual_seed(0)
    right = torch.randn(x.numel(), generator=generator, device=x.device, dtype=x.dtype)
    rest = float(right.norm())
    rights, lefts = right.new_empty(steps, x.numel()), right.new_empty(steps, x.numel())
    core = torch.zeros(steps, steps, dtype=x.dtype)
    for step in range(steps):
        if step:
            core[step - 1, step] = rest
        rights[step] = right / rest
        left = torch.func.jvp(function, (x,), (rights[step].view_as(x),))[1].flatten()
        left = _orthogonal(left, lefts[:step])
        core[step, step] = scale = float(left.norm())
        seen = core[: step + 1, : step + 1]
        noise = torch.finfo(x.dtype).eps * float(core.max())
        if scale <= noise:  # a direction the function does not feel at all
            return _of_core(seen, 0.0)
        lefts[step] = left / scale
        right = _orthogonal(transposed(lefts[step].view_as(x))[0].flatten(), rights[: step + 1])
        rest = float(right.norm())
        if (step + 1) % CHECKED_EVERY == 0 or step + 1 == steps or rest <= noise:
            extremes = _of_core(seen, rest)
            if extremes.converged or rest <= noise:
                break
    return extremes


def _orthogonal(vector: Tensor, basis: Tensor) -> Tensor:
    """What of a vector is at right angles to orthonormal rows; once leaves rounding that grows where values cluster."""
    for _ in range(2):
        vector = vector - (basis @ vector) @ basis
    return vector


def _of_core(core: Tensor, rest: float) -> Extremes:
    left, values, _ = torch.linalg.svd(core)
    return _extremes(values, rest * left[-1].abs() / math.sqrt(2))


def _extremes(values: Tensor, errors: Tensor) -> Extremes:
    singular = bool(condition_of(values).isinf())
    return Extremes(float(values[0]), 0.0 if singular else float(values[-1]), float(errors[0]), float(errors[-1]))
