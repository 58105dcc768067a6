"""What the heads of a trained checkpoint use of the rank they pay for.

    found = inspect(open_checkpoint("path"))
    found.layers[0].heads[3].qk_effective_rank, found.summary

Effective ranks, condition numbers and overlaps are those of the matrices QᵀK and OV alone: without biases, and with the
weights of a query/key norm or of a latent's norm multiplied in. A rotary QK is another matrix at every distance: ranks
are given at distance 0, where nothing is turned, and as the mean over queries 0, 1, 2, 4, ... MOST_DISTANT tokens
after the key.
Energies say what `truncation` would keep, so there rotated dimensions count as whole pairs.
"""

from dataclasses import asdict, dataclass
from functools import cache
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.heads import Heads
from headwise.checkpoints.reader import Reader
from headwise.checkpoints.truncation import content_energies, count_for, kept, pair_energies
from headwise.measure.spectra import condition_of, rank_of, singular_values
from headwise.shape import ModelShape

KEEP = 0.99
MOST_DISTANT = 1024
_DISTANCES = [0, *(2**power for power in range(MOST_DISTANT.bit_length()))]


@dataclass(frozen=True)
class Head:
    """One query head. An overlap is the largest |cosine| between its matrix and another head's; NaN for one head."""

    qk_effective_rank: float
    qk_effective_rank_all_distances: float
    qk_rank_99: int  # the smallest rank that keeps 99 % of the energy
    qk_energy_half: float  # what half of the rank would keep
    qk_condition: float
    qk_overlap: float
    vo_effective_rank: float
    vo_rank_99: int
    vo_energy_half: float
    vo_condition: float
    vo_overlap: float
    entropy: float | None = None  # of its attention, nats, where there was text to read


@dataclass(frozen=True)
class Layer:
    """One attention layer."""

    name: str
    shape: str
    qk_rank: int
    v_rank: int
    kv_bytes_per_token: int
    heads: list[Head]

    def mean_of(self, field: str) -> float:
        return mean(getattr(head, field) for head in self.heads)


@dataclass(frozen=True)
class Inspection:
    """A whole checkpoint."""

    family: str
    shape: ModelShape
    rotary: bool
    normed: bool
    dtype: str
    layers: list[Layer]

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(layer.kv_bytes_per_token for layer in self.layers)

    @property
    def summary(self) -> str:
        """A line each: what QK uses, what VO uses, what random weights would, which heads are alike."""
        first = self.layers[0]
        chance = [random_rank(rank, self.shape.width) for rank in (first.qk_rank, first.v_rank)]
        told = f"Random weights of these sizes would use {chance[0]:.0f} (QK) and {chance[1]:.0f} (VO)."
        return "\n".join([_in_use(self.layers, "qk"), _in_use(self.layers, "vo"), told, *_alike(self.layers)])

    def as_dict(self) -> dict[str, Any]:
        facts = asdict(self) | {"shape": str(self.shape), "summary": self.summary}
        return facts | {"kv_bytes_per_token": self.kv_bytes_per_token}


def inspect(reader: Reader, entropies: list[list[float]] | None = None) -> Inspection:
    """Every layer, one at a time; `entropies` of every head where attention was measured on text."""
    layers, shapes = [], []
    for number in reader.numbers():
        heads = reader.heads(number)
        stored = heads.output.element_size()
        shapes.append(heads.shape)
        layers.append(
            Layer(
                name=reader.layers[number].rstrip("."),
                shape=str(heads.shape),
                qk_rank=heads.shape.qk_rank,
                v_rank=heads.shape.v_rank,
                kv_bytes_per_token=heads.shape.cached_per_token * stored,
                heads=measure(heads, entropies[number] if entropies else None),
            )
        )
    dtype = str(heads.output.dtype).removeprefix("torch.")
    return Inspection(reader.family, reader.shape_of(shapes), bool(heads.rotated), heads.normed, dtype, layers)


def measure(shared: Heads, entropies: list[float] | None = None) -> list[Head]:
    """Every head of one layer."""
    heads = shared.unshared()
    (query, key), (output, value) = heads.qk_factors(), heads.vo_factors()
    qk, vo = singular_values(query, key), singular_values(output, value)
    qk_energies, vo_energies = _per_dimension(heads) if heads.rotated else qk.square(), vo.square()
    columns: dict[str, list[Any]] = {
        "qk_effective_rank": rank_of(qk).tolist(),
        "qk_effective_rank_all_distances": rank_over_distances(heads).tolist(),
        "qk_rank_99": [count_for(one, KEEP) for one in qk_energies.split(1)],
        "qk_energy_half": _half(qk_energies),
        "qk_condition": condition_of(qk).tolist(),
        "qk_overlap": overlaps(query, key).tolist(),
        "vo_effective_rank": rank_of(vo).tolist(),
        "vo_rank_99": [count_for(one, KEEP) for one in vo_energies.split(1)],
        "vo_energy_half": _half(vo_energies),
        "vo_condition": condition_of(vo).tolist(),
        "vo_overlap": overlaps(output, value).tolist(),
        "entropy": entropies or [None] * len(query),
    }
    return [Head(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


@cache
def random_rank(rank: int, width: int) -> float:
    """The effective rank of a head of independent normal weights, of the mean of four: what no learning looks like."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 4, rank, width, generator=generator, dtype=torch.float64)
    return float(rank_of(singular_values(left, right)).mean())


def rank_over_distances(heads: Heads) -> Tensor:
    """(H): the effective rank of Qᵀ R(distance) K, mean over distances; R turns each pair by its frequency."""
    query, key = heads.qk_factors()
    if heads.frequencies is None:
        return rank_of(singular_values(query, key))
    half = heads.rotated // 2
    left, right = torch.linalg.qr(query.mT).R, torch.linalg.qr(key.mT).R
    ranks = []
    for distance in _DISTANCES:
        angles = -distance * heads.frequencies[:, None]  # the query comes after the key
        cos, sin = angles.cos(), angles.sin()
        first, second, rest = right.split([half, half, right.shape[-1] - 2 * half], dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
        ranks.append(rank_of(torch.linalg.svdvals(left @ turned.mT)))
    return torch.stack(ranks).mean(0)


def overlaps(left: Tensor, right: Tensor) -> Tensor:
    """(H): each head's largest |cosine| with another head's leftᵀ right; the products are never formed."""
    count = len(left)
    if count == 1:
        return left.new_full((1,), torch.nan)
    left, right = left.float(), right.float()  # most of the work, and a cosine needs no more
    products = left.new_zeros(count, count)
    for i in range(count):  # <LᵢᵀRᵢ, LⱼᵀRⱼ> is the sum over both ranks of (Lᵢ Lⱼᵀ) times (Rᵢ Rⱼᵀ)
        products[i, i:] = ((left[i] @ left[i:].mT) * (right[i] @ right[i:].mT)).sum((-2, -1))
    norms = products.diagonal().clamp_min(torch.finfo(products.dtype).tiny).sqrt()
    cosines = (products / norms[:, None] / norms).abs().triu(1)
    return torch.maximum(cosines, cosines.mT).amax(-1)


def _per_dimension(heads: Heads) -> Tensor:
    """(H, R): energy of each dimension of queries and keys; the two of a rotated pair share its own."""
    pairs = pair_energies(heads) / 2
    return torch.cat([pairs.repeat_interleave(2, dim=-1), content_energies(heads)], dim=-1)


def _half(energies: Tensor) -> list[float]:
    return kept(energies)[:, max(energies.shape[-1] // 2, 1) - 1].tolist()


# ---- in words ------------------------------------------------------------------------------------------------------


def _in_use(layers: list[Layer], pair: str) -> str:
    """'QK: layers 0–2 use 12 of 64, layers 3–11 use 40 of 64.'"""
    rank = "qk_rank" if pair == "qk" else "v_rank"
    parts = []
    for first, last, used, paid in _runs(
        [(layer.mean_of(f"{pair}_effective_rank"), getattr(layer, rank)) for layer in layers]
    ):
        which = f"layer {first} uses" if first == last else f"layers {first}–{last} use"
        parts.append(f"{which} {used:.0f} of {paid}")
    return f"{pair.upper()}: {', '.join(parts)}."


def _runs(layers: list[tuple[float, int]]) -> list[tuple[int, int, float, int]]:
    """Neighbours of one rank whose use differs by an eighth of it at most, as one: first, last, mean use, rank."""
    runs: list[tuple[int, list[float], int]] = []
    for number, (used, paid) in enumerate(layers):
        if runs and runs[-1][2] == paid and max(*runs[-1][1], used) - min(*runs[-1][1], used) <= paid / 8:
            runs[-1][1].append(used)
        else:
            runs.append((number, [used], paid))
    return [(first, first + len(used) - 1, mean(used), paid) for first, used, paid in runs]


def _alike(layers: list[Layer]) -> list[str]:
    """The two heads that are most alike."""
    found = [
        (getattr(head, f"{pair}_overlap"), number, index, pair.upper())
        for number, layer in enumerate(layers)
        for index, head in enumerate(layer.heads)
        for pair in ("qk", "vo")
        if len(layer.heads) > 1
    ]
    if not found:
        return []
    overlap, number, index, pair = max(found)
    return [f"Most alike another head of its layer: head {index} of layer {number} ({pair}, cosine {overlap:.2f})."]
