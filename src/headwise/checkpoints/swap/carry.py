"""Trained heads in other sizes: the best truncation where ranks shrink, the same function where they grow.

Letters: H heads, G key/value heads, R qk_rank, V v_rank, W width, P the rotated part of a head.

- Smaller ranks are `truncation`'s: the nearest QᵀK and OV by their singular values, whole frequency pairs under rotary.
  With tokens that the layer has seen, nearest means on those tokens (`seen`).
- Larger ranks get new rows: random ones of queries and of values, zeros of keys and of outputs. Nothing changes, and
  the zeros have gradients from the first step. √R grows, so queries grow with it.
- Behind a norm of queries and keys no change of basis is free. Pairs go for all heads alike, new rows of queries begin
  small, and the temperature makes up for the norm over another number of dimensions: near, not exact.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.heads import AttentionHeads, Cut
from headwise.checkpoints.seen import Seen, weighted
from headwise.checkpoints.truncation import LayerRanks, cut_to, pair_energies
from headwise.shape import AttentionShape
from headwise.spec import SpecError

SMALL = 0.01  # new rows behind a norm, against the old ones: their square is what the norm sees


@dataclass(frozen=True)
class Carried:
    """Heads in their new sizes."""

    heads: AttentionHeads
    pairs: Tensor | None  # (G, P/2): which of the model's frequencies each pair turns at
    temperature: float  # on logits, beside what the heads say
    values: Tensor  # (G, v, V): what the dimensions of values became


def carry(heads: AttentionHeads, shape: AttentionShape, seen: Seen | None = None) -> Carried:
    """The heads in the sizes of `shape`; one sentence where they cannot be."""
    _check(heads.shape, shape)
    if shape.kv_latent:
        return _same_latent(heads, shape)
    heads = _repeated(heads, heads.shape.group // shape.group)
    old, turning = heads.shape, shape.rotated if heads.rotated else 0
    ranks = LayerRanks(
        pairs=min(heads.rotated, turning) // 2,
        content=min(old.qk_rank - heads.rotated, shape.qk_rank - turning),
        values=min(old.v_rank, shape.v_rank),
    )
    cut = _cut(weighted(heads, seen), ranks)
    smaller = _with_norms(heads.cut(cut), cut)
    ratio = shape.qk_rank / old.qk_rank
    return Carried(
        heads=_grown(smaller, shape, turning, 1.0 if heads.normed else math.sqrt(ratio)),
        pairs=None if cut.pairs is None or not turning else _more_pairs(cut.pairs, turning // 2, heads.rotated // 2),
        temperature=1 / math.sqrt(ratio) if heads.normed else 1.0,
        values=torch.nn.functional.pad(cut.value, (0, 0, 0, shape.v_rank - ranks.values)),
    )


def even_pairs(count: int, known: int) -> Tensor:
    """(count): of the frequencies a model has, as many as are wanted, evenly chosen, some twice if need be."""
    return torch.linspace(0, known - 1, count).round().long()


def _check(old: AttentionShape, new: AttentionShape) -> None:
    if old.width != new.width:
        raise SpecError(f"the model's width is {old.width}, but {new} has {new.width}: only what is inside may differ")
    for name in ("heads", "kv_latent", "q_latent"):
        if getattr(old, name) != getattr(new, name):
            raise SpecError(
                f"{old} cannot become {new} with the weights it has: {name} differs; fresh=True starts with new weights"
            )
    if new.kv_heads % old.kv_heads:
        raise SpecError(
            f"{old} cannot become {new} with the weights it has: {old.kv_heads} key/value heads can be repeated, not "
            "joined; fresh=True starts with new weights"
        )


def _same_latent(heads: AttentionHeads, shape: AttentionShape) -> Carried:
    if shape != heads.shape:
        raise SpecError(
            f"{heads.shape} cannot become {shape} with the weights it has: beside a latent ranks stay; headwise "
            "truncate cuts them, fresh=True starts with new weights"
        )
    pairs = torch.arange(heads.rotated // 2).expand(shape.kv_heads, -1)
    values = torch.eye(shape.v_rank, dtype=torch.float64).expand(shape.kv_heads, -1, -1)
    return Carried(heads, pairs, 1.0, values)


def _repeated(heads: AttentionHeads, times: int) -> AttentionHeads:
    """As many copies of every key/value head."""
    if times == 1:
        return heads
    shared = ("key", "value", "key_bias", "value_bias", "frequencies")
    rows = {name: getattr(heads, name) for name in shared}
    rows |= {"key_scale": heads.key_scale} if heads.normed_over_heads else {}
    more: dict[str, Any] = {n: None if one is None else one.repeat_interleave(times, 0) for n, one in rows.items()}
    return replace(heads, **more)


# ---- smaller -------------------------------------------------------------------------------------------------------


def _cut(heads: AttentionHeads, ranks: LayerRanks) -> Cut:
    half = heads.rotated // 2
    if not heads.normed or (ranks.pairs == half and 2 * half + ranks.content == heads.query.shape[1]):
        return cut_to(heads, ranks)
    whole = cut_to(heads, replace(ranks, pairs=half, content=heads.query.shape[1] - 2 * half))
    pairs = pair_energies(heads).sum(0).topk(ranks.pairs).indices.sort().values
    content = 2 * half + torch.arange(ranks.content)
    chosen = whole.query[:, torch.cat([pairs, pairs + half, content])]
    pairs = pairs.expand(len(chosen), -1)
    turning = None if heads.frequencies is None else heads.frequencies.gather(1, pairs)
    return replace(whole, query=chosen, key=chosen, pairs=pairs, frequencies=turning)


def _with_norms(heads: AttentionHeads, cut: Cut) -> AttentionHeads:
    """A norm's weights follow the rows that stay, which are the same in every head."""
    if heads.query_scale is None or heads.key_scale is None:
        return heads
    query, key = (_follow(cut.query, scale) for scale in (heads.query_scale, heads.key_scale))
    return replace(heads, query_scale=query, key_scale=key)


def _follow(change: Tensor, scale: Tensor) -> Tensor:
    return (scale.double() @ change[0].mT).to(scale.dtype)


# ---- larger --------------------------------------------------------------------------------------------------------


def _grown(heads: AttentionHeads, shape: AttentionShape, turning: int, factor: float) -> AttentionHeads:
    """Rows up to the sizes of the shape; see the module's first lines."""
    pairs, old = heads.rotated // 2, heads.query.shape[1]
    places = torch.cat(
        [torch.arange(pairs), turning // 2 + torch.arange(pairs), turning + torch.arange(old - 2 * pairs)]
    )
    size, more = shape.qk_rank, shape.v_rank - heads.value.shape[1]
    small = SMALL if heads.normed else 1.0
    query = _spread(heads.query, places, size, _like(heads.query, size) * small) * factor
    query_bias = None if heads.query_bias is None else _spread(heads.query_bias, places, size) * factor
    return replace(
        heads,
        query=query,
        key=_spread(heads.key, places, size),
        value=torch.cat([heads.value, _like(heads.value, more)], dim=1),
        output=torch.nn.functional.pad(heads.output, (0, more)),
        query_bias=query_bias,
        key_bias=None if heads.key_bias is None else _spread(heads.key_bias, places, size),
        value_bias=None if heads.value_bias is None else torch.nn.functional.pad(heads.value_bias, (0, more)),
        query_scale=None if heads.query_scale is None else _scales(heads.query_scale, places, size),
        key_scale=None if heads.key_scale is None else _scales(heads.key_scale, places, size),
        frequencies=None,
    )


def _like(rows: Tensor, count: int) -> Tensor:
    """(N, count, W): random rows as large as the given ones."""
    size = rows.double().square().mean().sqrt().item()
    return size * torch.randn(rows.shape[0], count, rows.shape[2], dtype=rows.dtype)


def _spread(rows: Tensor, places: Tensor, size: int, into: Tensor | None = None) -> Tensor:
    """(N, r, ...) to (N, size, ...): row i at its place, elsewhere what `into` has, or 0."""
    spread = rows.new_zeros(rows.shape[0], size, *rows.shape[2:]) if into is None else into
    return spread.index_copy(1, places, rows)


def _scales(scale: Tensor, places: Tensor, size: int) -> Tensor:
    return scale.new_ones(*scale.shape[:-1], size).index_copy(-1, places, scale)


def _more_pairs(pairs: Tensor, count: int, known: int) -> Tensor:
    """(G, count): those that stay, then new ones."""
    new = even_pairs(count - pairs.shape[1], known)
    return torch.cat([pairs, new.expand(len(pairs), -1)], dim=1)
