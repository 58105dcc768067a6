"""The papers' constructions as weights of the ordinary layer and models.

    construct({"name": "full-rank-head", "inverse_temperature": 100.0}, model, seed=0)

A construction fills a model's weights, and gives what is known about it in closed form as numbers by name. A run names
one as its `begin`, so that it is evaluated, stored and judged like anything trained. `needs` has their names and
options, and the model that each needs; any other is refused.

Letters: d dimension, N points, H heads, β inverse temperature, t = <u, y> with u the direction from the second of two
orthonormal points to the first.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from headwise.extras import extra
from headwise.layers.attention import Attention
from headwise.models import Encoder
from headwise.models.blocks import Block
from headwise.spec import SpecError
from headwise.theory import needs
from headwise.theory.needs import (
    BiasedHeads,
    Construction,
    FittedHeads,
    FreeSizes,
    FullRankHead,
    MajorityVote,
    RandomHeads,
)
from headwise.theory.random_features import HeadDirections, best_weights, draw_heads, nested_errors
from headwise.theory.sphere import Array, alternating_sign, first_coefficient, whole

_SAMPLES_AT_ONCE = 1024


def construct(spec: dict[str, Any], model: nn.Module, seed: int) -> dict[str, float]:
    """Fill the weights of a model; what is known of the construction comes back."""
    construction = needs.read_construction(spec)
    encoder, sizes = _fitting(construction, model)
    layers = [block.attention for block in cast(list[Block], encoder.blocks)]
    with torch.no_grad():
        return _FILL[type(construction)](construction, sizes, layers, seed)


def _fitting(construction: Construction, model: nn.Module) -> tuple[Encoder, FreeSizes]:
    """The model's encoder, and the sizes it leaves open; refused if the construction needs another."""
    encoder = next((module for module in model.modules() if isinstance(module, Encoder)), None)
    if encoder is None:
        raise SpecError(f"the construction '{construction.name}' fills an encoder, and this model has none")
    unset = construction.sizes(encoder.shape)
    sizes = FreeSizes(*(max(size, 1) for size in unset))
    shape, options, _ = construction.needed(sizes)
    if (str(encoder.shape), encoder.options, unset) != (shape, options, sizes):
        wanted = ", ".join(f"{name}={value!r}" for name, value in options.model_dump(exclude_defaults=True).items())
        others = encoder.options.model_dump()
        wrong = [f"{name}={others[name]!r}" for name, value in options.model_dump().items() if value != others[name]]
        raise SpecError(
            f"the construction '{construction.name}' needs a shape like {shape} with the options {wanted}; "
            f"this model is {encoder.shape}" + (f" with {', '.join(wrong)}" if wrong else "")
        )
    return encoder, sizes


def _set(layer: Attention, queries: Any, keys: Any, values: Any, outputs: Any, query_bias: Any = None) -> None:
    """Give each head its matrices, (H, R, W) three times (V for values) and (H, W, V); logits are then q·k unscaled."""
    scaled = np.asarray(queries) * math.sqrt(layer.shape.qk_rank)
    for (weight, bias), matrices in zip(layer.input_parts(), (scaled, keys, values), strict=True):
        weight.copy_(torch.tensor(matrices).flatten(0, 1))
        if bias is not None:
            bias.zero_()
    if query_bias is not None:
        constant = cast(Tensor, layer.input_parts()[0][1])
        constant.copy_(torch.tensor(query_bias * math.sqrt(layer.shape.qk_rank)).flatten())
    layer.output.weight.copy_(torch.tensor(outputs).movedim(0, 1).flatten(1))


def _columns(rows: int, width: int, start: int = 0) -> Array:
    """(rows, width): the identity, from a column on."""
    return np.eye(rows, width, start)


# ---- one full-rank head --------------------------------------------------------------------------------------------


def _full_rank_head(it: FullRankHead, sizes: FreeSizes, layers: list[Attention], seed: int) -> dict[str, float]:
    beta = it.inverse_temperature
    same = np.eye(sizes.dim)[None]
    _set(layers[0], same * (-1 if it.farthest else 1) * (beta or 1.0), same, same, same)
    if beta is None:
        return {"predicted_error": 0.0}
    known = {}
    if it.layout != "antipodal":
        known["asymptotic_error"] = asymptotic_error(sizes.dim, it.points - it.farthest, beta, it.layout)
    if it.points == 2 and it.layout == "orthogonal" and not it.farthest:
        known["predicted_error"] = soft_error(sizes.dim, beta)
    return known


def asymptotic_error(dim: int, points: int, inverse_temperature: float, layout: str = "orthogonal") -> float:
    """What softmax costs one full-rank head for large β: (2 ln 2 - 1) / β times how often points tie for the nearest.

    That is the density at 0 of the gap between the two largest cosines, and half the squared distance of such points.
    For large d both layouts come to √d N(N-1) ∫ φ² Φ^(N-2), with φ and Φ the normal law. Of points that ask for the
    farthest among themselves, each has N - 1 to choose from.
    """
    pairs = whole("points", points, 1) * (points - 1)
    ties = (_tied_coordinates if layout == "orthogonal" else _tied_points)(dim, max(points - 2, 0))
    return (2 * math.log(2) - 1) * pairs * ties / inverse_temperature


def _tied_coordinates(dim: int, others: int) -> float:
    """Orthogonal points see the query's coordinates: normal numbers over their common length."""
    with extra("theory", "constructions"):
        from scipy.special import ndtr

    x, step = np.linspace(-12, 12, 4801, retstep=True)  # as smooth as it is, a plain sum is exact to rounding
    tied = float(np.sum(np.exp(-(x**2)) / math.tau * ndtr(x) ** others)) * float(step)
    return math.sqrt(math.tau) * _peak(dim) * tied


def _tied_points(dim: int, others: int) -> float:
    """Uniform points that tie at t lie apart by 2 (1 - t²) in the mean of squares."""
    with extra("theory", "constructions"):
        from scipy.special import betainc

    def tied(t: Array) -> Array:
        below = 0.5 + 0.5 * np.sign(t) * betainc(0.5, (dim - 1) / 2, t**2)
        return np.asarray(_peak(dim) * (1 - t**2) ** ((dim - 1) / 2) * below**others)

    return _mean(dim, tied, [math.pi / 2], 1 / math.sqrt(dim))


def _peak(dim: int) -> float:
    """w0: the density of t at 0."""
    return (dim - 1) * first_coefficient(dim) / 2


def soft_error(dim: int, inverse_temperature: float, jumps: int = 1) -> float:
    """What softmax costs full-rank heads on two orthonormal points, exactly.

    1/2 E(g(t) - Σ_j ± tanh(β (t - t_j) / √2))²: with one jump, the nearest neighbour, 1/2 E(1 - tanh(β |t| / √2))².
    """
    target, places = alternating_sign(dim, jumps)

    def miss(t: Array) -> Array:
        terms = [
            (-1) ** j * np.tanh(inverse_temperature * (t - place) / math.sqrt(2)) for j, place in enumerate(places)
        ]
        return (target(t) - np.sum(terms, axis=0)) ** 2

    return 0.5 * _mean(dim, miss, [math.acos(place) for place in places], 1 / inverse_temperature)


def _mean(dim: int, function: Callable[[Array], Array], centres: list[float], scale: float) -> float:
    """E of a function of t = cos θ that changes over `scale` around some angles: panels double in length from there."""
    steps = [scale * 2.0**k for k in range(-3, 60) if scale * 2.0**k < math.pi]
    edges = {math.pi * part / 32 for part in range(33)}
    edges |= {centre + sign * step for centre in centres for sign in (-1, 1) for step in [0.0, *steps]}
    x, weight = np.polynomial.legendre.leggauss(24)
    total = 0.0
    for low, high in pairwise(sorted(edge for edge in edges if 0 <= edge <= math.pi)):
        theta = (low + high) / 2 + (high - low) / 2 * x
        total += (high - low) / 2 * float(np.sum(weight * np.sin(theta) ** (dim - 2) * function(np.cos(theta))))
    return _peak(dim) * total


# ---- many heads of low rank ----------------------------------------------------------------------------------------


def _random_heads(it: RandomHeads, sizes: FreeSizes, layers: list[Attention], seed: int) -> dict[str, float]:
    heads = draw_heads(sizes.dim, sizes.heads, it.keys, seed)
    same = np.broadcast_to(np.eye(sizes.dim), (sizes.heads, sizes.dim, sizes.dim))
    _set(layers[0], heads.queries[:, None], heads.keys[:, None], same, best_weights(heads)[:, None, None] * same)
    errors = nested_errors(heads)  # of the first H heads, for every H
    some = {f"predicted_error_{2**k}": float(errors[2**k - 1]) for k in range(sizes.heads.bit_length())}
    return {"predicted_error": float(errors[-1])} | some


def _fitted_heads(it: FittedHeads, sizes: FreeSizes, layers: list[Attention], seed: int) -> dict[str, float]:
    dim, heads, rank = sizes
    layer, random = layers[0], np.random.default_rng([seed, 2])
    drawn = draw_heads(dim, heads * rank, it.keys, seed)
    directions = HeadDirections(*(part.reshape(heads, rank, dim) for part in drawn))
    values = np.broadcast_to(_columns(dim, layer.shape.width), (heads, dim, layer.shape.width))
    begun = values.transpose(0, 2, 1)
    if it.thresholds:  # drawn from what they are compared with: a head's logits between two points
        pair, query = _points(random, heads, 2, dim)
        logits = np.einsum("hrd,hd,hre,he->h", directions.queries, query, directions.keys, pair[:, 0] - pair[:, 1])
        _set(layer, *_with_thresholds(directions, logits, it.points), values, begun, _last(heads, rank + 1))
    else:
        _set(layer, *directions, values, begun)
    matrices, error = _fit(it, layer, dim, random)
    layer.output.weight.zero_()
    layer.output.weight[:dim].copy_(torch.tensor(matrices).movedim(0, 1).flatten(1))
    return {"fitted_error": error}


def _with_thresholds(heads: HeadDirections, thresholds: Array, points: int) -> tuple[Array, Array]:
    """Queries and keys that read tags too, with one rank more: there a query is 1, and the first point -threshold."""
    queries, keys = (np.pad(part, [(0, 0), (0, 1), (0, points)]) for part in heads)
    keys[:, -1, -points] = -thresholds
    return queries, keys


def _last(heads: int, rank: int) -> Array:
    """The queries' bias: 1 in the rank that reads tags."""
    return np.broadcast_to(np.eye(rank)[-1], (heads, rank))


def _points(random: np.random.Generator, samples: int, points: int, dim: int) -> tuple[Array, Array]:
    """Orthonormal points, uniformly turned, and a query for each set."""
    frames, corner = np.linalg.qr(random.standard_normal((samples, dim, points)))
    frames *= np.sign(np.diagonal(corner, axis1=1, axis2=2))[:, None]
    queries = random.standard_normal((samples, dim))
    return frames.transpose(0, 2, 1), queries / np.linalg.norm(queries, axis=1, keepdims=True)


def _fit(it: FittedHeads, layer: Attention, dim: int, random: np.random.Generator) -> tuple[Array, float]:
    """The heads' values (H, d, d) of least squared error on a sample, as the layer itself attends, and that error."""
    heads = layer.shape.heads
    size = heads if it.values == "scalar" else heads * dim
    gram, moment = np.zeros((size, size)), np.zeros((size, 1 if it.values == "scalar" else dim))
    for start in range(0, it.samples, _SAMPLES_AT_ONCE):
        points, query = _points(random, min(_SAMPLES_AT_ONCE, it.samples - start), it.points, dim)
        answers = points[np.arange(len(points)), _wanted(it, points, query)]
        attended = _attended(layer, points, query)  # (samples, H, d)
        if it.values == "scalar":
            features, wanted = attended.transpose(0, 2, 1).reshape(-1, heads), answers.reshape(-1, 1)
        else:
            features, wanted = attended.reshape(len(points), -1), answers
        gram += features.T @ features
        moment += features.T @ wanted
    weights = np.linalg.lstsq(gram, moment, rcond=1e-10)[0].astype(np.float64)
    error = 1 - float(np.sum(weights * moment)) / it.samples  # answers have length 1
    if it.values == "scalar":
        return weights[:, :, None] * np.eye(dim), error
    return weights.reshape(heads, dim, dim).transpose(0, 2, 1), error


def _attended(layer: Attention, points: Array, query: Array) -> Array:
    """What each head of the layer finds: the points, weighed as it attends to them."""
    count = points.shape[1]
    tags = np.zeros((len(points), count + 1, layer.shape.width - points.shape[2]))
    if tags.shape[2]:
        tags[:, :count] = np.eye(count)
    vectors = np.concatenate([np.concatenate([points, query[:, None]], axis=1), tags], axis=2)
    tokens = torch.from_numpy(vectors).to(layer.output.weight)
    _, weights = layer(tokens[:, -1:], tokens[:, :-1], need_weights=True)
    return weights[:, :, 0].double().cpu().numpy() @ points


def _wanted(it: FittedHeads, points: Array, query: Array) -> Any:
    """The number of the right point."""
    closeness = np.einsum("snd,sd->sn", points, query)
    if it.target == "nearest":
        return closeness.argmax(1)
    sign, _ = alternating_sign(points.shape[2], it.jumps)
    return (sign(np.clip((closeness[:, 0] - closeness[:, 1]) / math.sqrt(2), -1, 1)) < 0).astype(int)


# ---- biased nearest neighbours -------------------------------------------------------------------------------------


def _biased_heads(it: BiasedHeads, sizes: FreeSizes, layers: list[Attention], seed: int) -> dict[str, float]:
    dim, heads, _ = sizes
    width = layers[0].shape.width
    thresholds = math.sqrt(2) * np.array(alternating_sign(dim, it.jumps)[1]) + it.bias
    same = np.broadcast_to(np.eye(dim), (heads, dim, dim))
    queries, keys = _with_thresholds(HeadDirections(same, same), thresholds, it.points)
    beta = it.inverse_temperature or 1.0
    values = np.broadcast_to(_columns(dim, width), (heads, dim, width))
    signs = (-1.0) ** np.arange(heads)[:, None, None]
    _set(layers[0], beta * queries, keys, values, signs * values.transpose(0, 2, 1), beta * _last(heads, dim + 1))
    if it.inverse_temperature is None:
        return {"predicted_error": 0.0}
    return {"predicted_error": soft_error(dim, beta, it.jumps)} if it.points == 2 and not it.bias else {}


# ---- the majority vote ---------------------------------------------------------------------------------------------


def _majority_vote(it: MajorityVote, sizes: FreeSizes, layers: list[Attention], seed: int) -> dict[str, float]:
    """Columns: the point, N tags, N - 1 notes, the answer. Votes are tags less their mean, in an orthonormal basis."""
    with extra("theory", "constructions"):
        from scipy.linalg import helmert

    dim, heads, _ = sizes
    width, notes = layers[0].shape.width, it.points - 1
    tally, place = dim + it.points, width - dim
    directions = np.pad(draw_heads(dim, heads, "equal", seed).queries, [(0, 0), (0, width - dim)])[:, None]
    tags = np.zeros((1, notes, width))
    tags[0, :, dim:tally] = helmert(it.points)
    count = np.broadcast_to(_columns(notes, width, tally).T, (heads, width, notes))
    votes = np.broadcast_to(tags, (heads, notes, width))
    _set(layers[0], -directions if it.farthest else directions, directions, votes, count)
    fetched, written = _columns(dim, width)[None], _columns(dim, width, place).T[None]
    _set(layers[1], _columns(notes, width, tally)[None], tags, fetched, written)
    pair = it.points == 2 and it.layout == "orthogonal" and not it.farthest
    return {"predicted_error": vote_error(dim, heads)} if pair else {}


def vote_error(dim: int, heads: int) -> float:
    """The error of an odd number of votes on two orthonormal points: 2 P(most are wrong), about √(d / H).

    A head with q = k is right with probability 1/2 + arcsin|t| / π.
    """
    with extra("theory", "constructions"):
        from scipy.special import bdtr

    if whole("heads", heads, 1) % 2 == 0:
        raise SpecError(f"{heads} heads may tie between two points; use {heads + 1}")

    def wrong(t: Array) -> Array:
        return np.asarray(bdtr((heads - 1) // 2, heads, 0.5 + np.arcsin(np.abs(t)) / math.pi))

    return 2 * _mean(dim, wrong, [math.pi / 2], 1 / math.sqrt(heads))


_FILL: dict[type[Construction], Callable[..., dict[str, float]]] = {
    FullRankHead: _full_rank_head,
    RandomHeads: _random_heads,
    FittedHeads: _fitted_heads,
    BiasedHeads: _biased_heads,
    MajorityVote: _majority_vote,
}
