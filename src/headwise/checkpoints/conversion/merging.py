"""Trained heads in another shape, worked out at once: fewer key/value heads, fewer frequencies, or one latent for all.

Letters: H heads, G key/value heads, R qk_rank, V v_rank, W width, P the rotated part of a head, C kv_latent.

Keys. A rotated pair of rows is one complex row, and a frequency turns it by a phase. A key that several heads share is
the best of rank 1 for each frequency: what |q̄ k|² summed over their queries loses least, averaged over distances.
Phases and sizes that differ from head to head go into the queries, so heads are aligned before they are joined.

What does not turn (a part of each head, or whole layers) has no phase: its keys share the best subspace that is read.

Values. Heads that share values share the best subspace of O V, all of their outputs together.

A latent. The rotary key that all heads share is such a key, at the frequencies that the smaller part has. The other
pairs are read without turning, scaled by how far they turn over the distances that matter; they and the values are
factorised together. With tokens seen, every sum of squares is that of real queries, keys and values.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.seen import Seen, weighted

Groups = list[list[int]]  # for each new key/value head, the old ones it stands for
NEAR = 32  # tokens: the distances over which an unturned pair is fitted


@dataclass(frozen=True)
class LatentHeads:
    """Heads that read one latent: keys are (rotated, shared by all; content, from the latent)."""

    query: Tensor  # (H, R, W): rotated rows first
    rope_key: Tensor  # (P, W)
    down: Tensor  # (C, W)
    key_up: Tensor  # (H, R - P, C)
    value_up: Tensor  # (H, V, C)
    output: Tensor  # (H, W, V)
    size: float  # of the latent's entries, in the root mean square
    query_bias: Tensor | None = None  # (H, R)
    rope_bias: Tensor | None = None  # (P)
    down_bias: Tensor | None = None  # (C)


# ---- which heads belong together -----------------------------------------------------------------------------------


def choose_groups(heads: AttentionHeads, count: int, seen: Seen | None) -> Groups:
    """Key/value heads in so many groups of equal size, those together that lose least by it."""
    old = len(heads.key)
    if count == old:
        return [[i] for i in range(old)]
    losses = _merge_losses(weighted(heads, seen))
    size, free, groups = old // count, set(range(old)), []
    while free:
        pairs = [(float(losses[a, b]), a, b) for a in free for b in free if a < b]
        group = list(min(pairs)[1:]) if pairs and size > 1 else [min(free)]
        while len(group) < size:
            rest = free - set(group)
            group.append(min(rest, key=lambda one: float(losses[one, group].mean())))
        groups.append(sorted(group))
        free -= set(group)
    return sorted(groups)


def _merge_losses(heads: AttentionHeads) -> Tensor:
    """(G, G): the share of the energy of keys and of values that two heads lose by sharing."""
    old, parts = len(heads.key), (_content_parts(heads), _value_parts(heads))
    keys = _key_parts(heads)
    totals = keys.abs().square().sum((1, 2)) + parts[0].square().sum((1, 2)), parts[1].square().sum((1, 2))
    losses = torch.zeros(old, old, dtype=torch.float64)
    for a in range(old):
        for b in range(a + 1, old):
            turned = torch.linalg.svdvals(keys[[a, b]].movedim(0, 1))[:, 1:].square().sum()
            still, values = (
                torch.linalg.svdvals(part[[a, b]].flatten(0, 1))[part.shape[1] :].square().sum() for part in parts
            )
            lost = (turned + still) / (totals[0][a] + totals[0][b]) + values / (totals[1][a] + totals[1][b])
            losses[a, b] = losses[b, a] = lost
    return losses


def _content_parts(heads: AttentionHeads) -> Tensor:
    """(G, n, W): what does not turn of keys, times the root of what reads it."""
    return _query_roots(heads) @ heads.key.double()[:, heads.rotated :]


def _query_roots(heads: AttentionHeads) -> Tensor:
    query = heads.query.double()[:, heads.rotated :]
    return _root((query @ query.mT).unflatten(0, (len(heads.key), -1)).sum(1))


def _complex(rows: Tensor, rotated: int) -> Tensor:
    """(N, R, n) to (N, P/2, n): rotated pairs as complex rows."""
    first, second = rows[:, :rotated].double().chunk(2, dim=1)
    return torch.complex(first, second)


def _real(rows: Tensor) -> Tensor:
    return torch.cat([rows.real, rows.imag], dim=1)


def _sizes(heads: AttentionHeads) -> Tensor:
    """(G, P/2): root of the energy of the queries that read each pair of a key/value head."""
    query = _complex(heads.query, heads.rotated).abs().square().sum(-1)
    return query.unflatten(0, (len(heads.key), -1)).sum(1).sqrt().clamp(min=1e-12)


def _key_parts(heads: AttentionHeads) -> Tensor:
    """(G, P/2, n): keys as complex rows, times the size of their queries."""
    return _complex(heads.key, heads.rotated) * _sizes(heads)[..., None]


def _output_roots(heads: AttentionHeads) -> Tensor:
    """(G, V, V): roots of the Gram matrix of what reads each value."""
    output = heads.output.double()
    return _root((output.mT @ output).unflatten(0, (len(heads.key), -1)).sum(1))


def _value_parts(heads: AttentionHeads) -> Tensor:
    return _output_roots(heads) @ heads.value.double()


def _root(moment: Tensor) -> Tensor:
    """The symmetric root."""
    values, vectors = torch.linalg.eigh(moment)
    return (vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT


# ---- fewer key/value heads, fewer frequencies ----------------------------------------------------------------------


def merge(
    heads: AttentionHeads, groups: Groups, pairs: Tensor, rank: int, v_rank: int, seen: Seen | None
) -> tuple[AttentionHeads, Tensor]:
    """Heads with a key/value head for each group, turning at these of the old frequencies, of these ranks.

    Query heads are put in the order of their groups; the second result is which old head each is.
    """
    each = heads.shape.group
    order = torch.tensor([g * each + i for group in groups for g in group for i in range(each)])
    measured = weighted(heads, seen)
    turned = _merged_keys(heads, measured, groups, pairs)
    still = _merged_content(heads, measured, groups, rank - 2 * len(pairs))
    query, key, query_bias, key_bias = (
        None if a is None or b is None else torch.cat([a, b], dim=1) for a, b in zip(turned, still, strict=True)
    )
    assert query is not None
    assert key is not None
    value, output, value_bias = _merged_values(heads, measured, groups, v_rank)
    return (
        replace(
            heads,
            query=query[order].to(heads.query.dtype),
            key=key.to(heads.key.dtype),
            value=value.to(heads.value.dtype),
            output=output[order].to(heads.output.dtype),
            query_bias=None if query_bias is None else query_bias[order].to(heads.query.dtype),
            key_bias=None if key_bias is None else key_bias.to(heads.key.dtype),
            value_bias=None if value_bias is None else value_bias.to(heads.value.dtype),
            frequencies=None if heads.frequencies is None else heads.frequencies[: len(groups), pairs],
            sinks=None if heads.sinks is None else heads.sinks[order],
        ),
        order,
    )


def _merged_content(
    heads: AttentionHeads, measured: AttentionHeads, groups: Groups, rank: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """What does not turn, in this many dimensions."""
    each, rotated = heads.shape.group, heads.rotated
    rows: list[Tensor | None] = [heads.query, heads.key, heads.query_bias, heads.key_bias]
    query, key, query_bias, key_bias = (None if one is None else one.double()[:, rotated:] for one in rows)
    assert query is not None
    assert key is not None
    if max(map(len, groups)) == 1 and rank == query.shape[1]:
        return query, key, query_bias, key_bias
    roots, parts = _query_roots(measured), _content_parts(measured)
    queries, biases = query.new_zeros(len(query), rank, query.shape[2]), query.new_zeros(len(query), rank)
    keys, key_biases = [], []
    for group in groups:
        left = torch.linalg.svd(parts[group].flatten(0, 1), full_matrices=False).U[:, :rank]
        left = left.unflatten(0, (len(group), -1))
        down, back = left.mT @ roots[group], torch.linalg.pinv(roots[group], rtol=1e-10) @ left  # (n, r, R), (n, R, r)
        keys.append((down @ key[group]).sum(0))
        if key_bias is not None:
            key_biases.append((down @ key_bias[group][..., None]).sum(0)[..., 0])
        for i, g in enumerate(group):
            rows_of = slice(g * each, (g + 1) * each)
            queries[rows_of] = back[i].mT @ query[rows_of]
            if query_bias is not None:
                biases[rows_of] = (back[i].mT @ query_bias[rows_of][..., None])[..., 0]
    return (
        queries,
        torch.stack(keys),
        None if query_bias is None else biases,
        None if key_bias is None else torch.stack(key_biases),
    )


def _merged_keys(
    heads: AttentionHeads, measured: AttentionHeads, groups: Groups, pairs: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    rotated, each = heads.rotated, heads.shape.group
    sizes, parts = _sizes(measured)[:, pairs], _key_parts(measured)[:, pairs]
    key, query = _complex(heads.key, rotated)[:, pairs], _complex(heads.query, rotated)[:, pairs].clone()
    biases = [
        None if bias is None else _complex(bias[..., None], rotated)[:, pairs]
        for bias in (heads.query_bias, heads.key_bias)
    ]
    query_bias, key_bias = None if biases[0] is None else biases[0].clone(), biases[1]
    keys, key_biases = [], []
    for group in groups:
        left = torch.linalg.svd(parts[group].movedim(0, 1), full_matrices=False).U[..., 0].mT  # (n, P/2)
        if len(group) == 1:
            left = torch.ones_like(left)
            shares = answers = left
        elif heads.normed:  # a norm lets phases through, not sizes
            phases = left / left.abs().clamp(min=1e-12)
            shares, answers = phases.conj() / len(group), phases
        else:
            size = sizes[group]
            shares, answers = left.conj() * size, left / size
            scale = answers.abs().square().mean(0).sqrt().clamp(min=1e-12)  # queries keep their size
            shares, answers = shares * scale, answers / scale
        keys.append((shares[..., None] * key[group]).sum(0))
        if key_bias is not None:
            key_biases.append((shares[..., None] * key_bias[group]).sum(0))
        for i, g in enumerate(group):
            rows = slice(g * each, (g + 1) * each)
            query[rows] *= answers[i].conj()[:, None]
            if query_bias is not None:
                query_bias[rows] *= answers[i].conj()[:, None]
    return (
        _real(query),
        _real(torch.stack(keys)),
        None if query_bias is None else _real(query_bias)[..., 0],
        None if key_bias is None else _real(torch.stack(key_biases))[..., 0],
    )


def _merged_values(
    heads: AttentionHeads, measured: AttentionHeads, groups: Groups, v_rank: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    each, value, output = heads.shape.group, heads.value.double(), heads.output.double().clone()
    bias = None if heads.value_bias is None else heads.value_bias.double()
    if max(map(len, groups)) == 1 and v_rank == value.shape[1]:
        return value[[g for (g,) in groups]], output, None if bias is None else bias[[g for (g,) in groups]]
    roots = _output_roots(measured)
    new_output = output.new_zeros(*output.shape[:2], v_rank)
    values, biases = [], []
    for group in groups:
        rows = (roots[group] @ measured.value.double()[group]).flatten(0, 1)
        left = torch.linalg.svd(rows, full_matrices=False).U[:, :v_rank].unflatten(0, (len(group), -1))
        down = left.mT @ roots[group]  # (n, v, V)
        values.append((down @ value[group]).sum(0))
        if bias is not None:
            biases.append((down @ bias[group][..., None]).sum(0)[..., 0])
        back = torch.linalg.pinv(roots[group], rtol=1e-10) @ left  # (n, V, v)
        for i, g in enumerate(group):
            rows_of = slice(g * each, (g + 1) * each)
            new_output[rows_of] = output[rows_of] @ back[i]
    return torch.stack(values), new_output, torch.stack(biases) if bias is not None else None


# ---- one latent ----------------------------------------------------------------------------------------------------


def to_latent(heads: AttentionHeads, latent: int, rotated: int, seen: Seen | None) -> LatentHeads:
    """Heads that read a latent of this width, and a rotary key of this many rows that all share."""
    if heads.query_bias is not None:
        return _biased_latent(heads, latent, rotated, seen)
    half, groups, pairs = heads.rotated // 2, len(heads.key), latent_pairs(heads.rotated, rotated)
    rest = torch.tensor([i for i in range(half) if i not in set(pairs.tolist())], dtype=torch.long)
    measured = weighted(heads, seen)
    turned, rope_key, _, _ = _merged_keys(
        replace(heads, query_bias=None, key_bias=None, query_scale=None),
        replace(measured, query_scale=None),
        [list(range(groups))],
        pairs,
    )
    rows = torch.cat([rest, rest + half])
    turns = _mean_cosines(heads, rest)
    query = heads.query.double()[:, rows] * turns.repeat(2)[:, None]
    key, value = heads.key.double()[:, rows], heads.value.double()
    reads = measured.query.double()[:, rows] * turns.repeat(2)[:, None]
    gram = (reads @ reads.mT).unflatten(0, (groups, -1)).sum(1)
    key_root, value_root = _root(gram), _output_roots(measured)
    blocks = [
        (key_root @ measured.key.double()[:, rows, :]).flatten(0, 1),
        (value_root @ measured.value.double()).flatten(0, 1),
    ]
    wide = max(block.shape[1] for block in blocks)
    sizes = [block.norm().clamp(min=1e-12) for block in blocks]
    both = torch.cat(
        [torch.nn.functional.pad(b, (0, wide - b.shape[1])) / s for b, s in zip(blocks, sizes, strict=True)]
    )
    left = torch.linalg.svd(both, full_matrices=False).U[:, :latent]
    left = torch.nn.functional.pad(left, (0, latent - left.shape[1]))
    key_left, value_left = left.split([len(block) for block in blocks])
    key_left, value_left = (part.unflatten(0, (groups, -1)) for part in (key_left / sizes[0], value_left / sizes[1]))
    down = (key_left.mT @ key_root @ key).sum(0) + (value_left.mT @ value_root @ value).sum(0)
    query, key_size = _without(key_root, query, groups)
    output, value_size = _without(value_root, heads.output.double().mT, groups)
    second = torch.eye(heads.query.shape[2], dtype=torch.float64) if seen is None else seen.second
    size = float((down @ second * down).sum(1).mean().clamp(min=1e-24).sqrt())
    return LatentHeads(
        query=torch.cat([turned, query], dim=1),
        rope_key=rope_key[0],
        down=down,
        key_up=heads.each_head(key_left * sizes[0] ** 2 / key_size),
        value_up=heads.each_head(value_left * sizes[1] ** 2 / value_size),
        output=output.mT,
        size=size,
    )


def latent_pairs(old: int, rotated: int) -> Tensor:
    """Of the pairs of a head those that still turn: the frequencies θ^(-2i/P) of the smaller part."""
    return torch.linspace(0, old // 2, rotated // 2 + 1).round().long()[:-1]


def _biased_latent(heads: AttentionHeads, latent: int, rotated: int, seen: Seen | None) -> LatentHeads:
    """A bias is what a further entry of every token, a constant 1, is multiplied by."""
    rows = [
        torch.cat([weight, (weight.new_zeros(weight.shape[:2]) if bias is None else bias)[..., None]], dim=2)
        for weight, bias in (
            (heads.query, heads.query_bias),
            (heads.key, heads.key_bias),
            (heads.value, heads.value_bias),
        )
    ]
    whole = replace(heads, query=rows[0], key=rows[1], value=rows[2], query_bias=None, key_bias=None, value_bias=None)
    if seen is not None:
        mean = torch.cat([seen.mean, seen.mean.new_ones(1)])
        second = torch.nn.functional.pad(seen.second, (0, 1, 0, 1))
        second[-1], second[:, -1] = mean, mean
        seen = replace(seen, mean=mean, second=second)
    new = to_latent(whole, latent, rotated, seen)
    three = (new.query, new.rope_key, new.down)
    query, rope_key, down = (one[..., :-1] for one in three)
    query_bias, rope_bias, down_bias = (one[..., -1] for one in three)
    return replace(
        new,
        query=query,
        rope_key=rope_key,
        down=down,
        query_bias=query_bias,
        rope_bias=rope_bias,
        down_bias=down_bias,
    )


def _without(roots: Tensor, rows: Tensor, groups: int) -> tuple[Tensor, float]:
    """Rows (H, n, W) with the roots (G, n, n) taken out of them, as large as before, and by what they were multiplied.

    What reads a latent is then of one size in every direction. Left to the expansion, directions that are hardly read
    would give it entries so large that no training step fits them and the others.
    """
    even = (torch.linalg.pinv(roots, rtol=1e-8)[:, None] @ rows.unflatten(0, (groups, -1))).flatten(0, 1)
    size = float(rows.norm() / even.norm().clamp(min=1e-24))
    return even * size, size


def _mean_cosines(heads: AttentionHeads, pairs: Tensor) -> Tensor:
    """How much of a pair is left where it does not turn: the mean cosine over near distances, at least 0."""
    assert heads.frequencies is not None
    angles = torch.arange(NEAR, dtype=torch.float64)[:, None] * heads.frequencies[0, pairs]
    return angles.cos().mean(0).clamp(min=0)


def even_pairs_of(old: int, new: int) -> Tensor:
    """Of `old` frequencies θ^(-i/old) those that a head of `new` pairs turns at, or the nearest."""
    places = (torch.arange(new, dtype=torch.float64) * old / new).round().long()
    assert all(a < b for a, b in pairwise(places.tolist()))
    return places
