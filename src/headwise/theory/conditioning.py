"""How well attention is conditioned before training: what random matrices predict, and what real heads do.

    block_conditions(AttentionShape.parse("w256-h64-r16"), tokens=64).heads      # 10.9: real heads of that size
    limit_condition(AttentionShape.parse("w256-h1-r16"), tokens=64)              # 8.7: where more heads lead to

The published theorem takes the outputs of heads for independent Gaussian columns. Then the condition number falls to 1
as columns are added, and only their number counts, not how heads divide it. Real heads differ in two ways. All of them
average over the same tokens, so their outputs share a direction, and more heads lead to a limit above 1. And one head
S X V inherits the condition of its own pattern S, so that a second and a third help for a reason of their own, up to
8 or 16. With the residual little of either is left.

All is measured on `headwise.Attention` with its own first weights, tokens of independent N(0, 1), in float64.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.layers.attention import Attention
from headwise.measure.probes import Call
from headwise.measure.spectra import condition_number, jacobian, jacobian_extremes
from headwise.shape import AttentionShape
from headwise.theory.gaussian import check_sizes

LIMIT_HEADS = 1024  # averaged: 4096 move the limit by 1 %


def gaussian_condition(tokens: int, columns: int, seed: int = 0) -> float:
    """The condition number of one such matrix."""
    check_sizes(tokens=tokens, columns=columns)
    generator = torch.Generator().manual_seed(seed)
    return float(condition_number(torch.randn(tokens, columns, generator=generator, dtype=torch.float64)))


@dataclass(frozen=True)
class BlockConditions:
    """Condition numbers of the matrices (one row per token) that one random layer makes of random tokens."""

    tokens: float  # x itself
    heads: float  # A, the outputs of all heads side by side
    centred_heads: float  # A without its mean over tokens
    output: float  # a(x) = A Oᵀ
    residual: float  # x + a(x)


@dataclass(frozen=True)
class JacobianConditions:
    """Condition numbers of the derivatives of one random layer at random tokens."""

    output: float  # of a(x) by x
    residual: float  # of x + a(x) by x
    parameters: float  # of a(x) by all weights


def block_conditions(
    shape: AttentionShape, tokens: int, *, scale: float = 1.0, causal: bool = False, seed: int = 0
) -> BlockConditions:
    """Of a random layer; `scale` multiplies the logits, so that 16 is nearly hardmax."""
    call = _random_call(shape, tokens, scale, seed, causal=causal)
    parts = {part: call.matrices(part)[0] for part in ("tokens", "heads", "output", "residual")}
    conditions = {part: float(condition_number(matrix)) for part, matrix in parts.items()}
    return BlockConditions(centred_heads=float(condition_number(parts["heads"], centred=True)), **conditions)


def jacobian_conditions(
    shape: AttentionShape, tokens: int, *, scale: float = 1.0, causal: bool = False, seed: int = 0
) -> JacobianConditions:
    """Of a random layer; written out, so for small ones: a few hundred numbers (tokens × width)."""
    call = _random_call(shape, tokens, scale, seed, causal=causal)
    output, residual = (jacobian_extremes(*next(call.functions(residual))).condition for residual in (False, True))
    return JacobianConditions(output, residual, float(condition_number(_by_parameters(call))))


def limit_condition(
    shape: AttentionShape, tokens: int, *, scale: float = 1.0, hardmax: bool = False, seed: int = 0
) -> float:
    """What the condition number of A tends to as heads like these are added: √cond(E[S x xᵀ Sᵀ]) over random heads S.

    The values' weights average out: E[V Vᵀ] is a multiple of the identity. Only rank and width of the shape count.
    """
    many = AttentionShape(width=shape.width, heads=LIMIT_HEADS, qk_rank=shape.qk_rank, v_rank=1)
    call = _random_call(many, tokens, scale, seed, hardmax=hardmax)
    weights, x = call.weights, call.matrices("tokens")[0]
    mean = (weights @ (x @ x.mT)).transpose(0, 1).flatten(1) @ weights.transpose(0, 1).flatten(1).mT
    return math.sqrt(float(condition_number(mean)))


def _random_call(
    shape: AttentionShape, tokens: int, scale: float, seed: int, *, causal: bool = False, hardmax: bool = False
) -> Call:
    check_sizes(tokens=tokens)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        x = torch.randn(1, tokens, shape.width, dtype=torch.float64)  # first, so that shapes of one width share it
        layer = Attention(shape, causal=causal, inverse_temperature=scale, hardmax=hardmax, dtype=torch.float64)
    return Call(layer, {"x": x})


def _by_parameters(call: Call) -> Tensor:
    """(tokens · width, parameters): the derivative of a(x) by every weight of the layer."""
    weights = dict(call.layer.named_parameters())
    x = call.given["x"]

    def outputs(flat: Tensor) -> Tensor:
        parts = flat.split([weight.numel() for weight in weights.values()])
        given = {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}
        return torch.func.functional_call(call.layer, given, (x,))

    return jacobian(outputs, torch.cat([weight.flatten() for weight in weights.values()]))
