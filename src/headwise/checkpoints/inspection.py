"""What the heads of a trained checkpoint use of the rank they pay for.

    model = headwise.inspect("path/or/owner/name")
    model.heads                                    # a frame, one row per head
    model.layers[0].heads[3].qk_effective_rank, model.summary, model.chart()

Effective ranks, condition numbers and overlaps are those of the matrices QᵀK and OV alone: without biases, and with the
weights of a query/key norm or of a latent's norm multiplied in. A rotary QK is another matrix at every distance: ranks
are given at distance 0, where nothing is turned, and as the mean over queries 0, 1, 2, 4, ... MOST_DISTANT tokens
after the key.
Energies say what `truncation` would keep, so there rotated dimensions count as whole pairs.
"""

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.checkpoints import Chosen, open_checkpoint
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.on_text import OnText, TextChange
from headwise.checkpoints.reader import LayerWatch, Reader
from headwise.checkpoints.truncation import content_energies, count_for, kept, padded_tensors, pair_energies, plan
from headwise.measure.spectra import condition_of, rank_of, singular_values
from headwise.shape import ModelShape
from headwise.shown import Shown

if TYPE_CHECKING:
    import polars

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
    qk_spectrum: tuple[float, ...] = ()  # singular values as parts of the largest
    vo_spectrum: tuple[float, ...] = ()


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
class Inspection(Shown):
    """A whole checkpoint."""

    family: str
    shape: ModelShape
    rotary: bool
    normed: bool
    dtype: str
    layers: list[Layer]

    keep: float = KEEP  # the energy that heads keep where they are cut to see what the loss does
    on_text: TextChange | None = None  # where there was text to run the model on

    @property
    def heads(self) -> "polars.DataFrame":
        """One row per head, with its layer and its number."""
        return self.table

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(layer.kv_bytes_per_token for layer in self.layers)

    @property
    def summary(self) -> str:
        """One line each: what QK uses, what VO uses, what random weights would use, which heads are alike."""
        first = self.layers[0]
        chance = [random_rank(rank, self.shape.width) for rank in (first.qk_rank, first.v_rank)]
        by_chance = f"Random weights of these sizes would use {chance[0]:.0f} (QK) and {chance[1]:.0f} (VO)."
        return "\n".join([_in_use(self.layers, "qk"), _in_use(self.layers, "vo"), by_chance, *_alike(self.layers)])

    @property
    def headline(self) -> str:
        return f"{self.shape} ({self.family}, {self.kv_bytes_per_token:,} KV cache bytes/token). {self.summary}"

    def as_dict(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("family", "rotary", "normed", "dtype", "kv_bytes_per_token")}
        facts |= {"shape": str(self.shape), "layers": [asdict(layer) for layer in self.layers]}
        return facts | {"summary": self.summary} | (self.on_text.as_dict() if self.on_text else {})

    def records(self) -> list[dict[str, Any]]:
        return [
            {"layer": number, "head": index, "qk_rank": layer.qk_rank, "v_rank": layer.v_rank, **_numbers(head)}
            for number, layer in enumerate(self.layers)
            for index, head in enumerate(layer.heads)
        ]

    @property
    def kept(self) -> dict[str, float]:
        """The rank that keeps 99 % of the energy, as a part of the rank there is: mean over heads of QK and of VO."""
        parts: dict[str, list[float]] = {"qk": [], "vo": []}
        for layer in self.layers:
            parts["qk"].append(layer.mean_of("qk_rank_99") / layer.qk_rank)
            parts["vo"].append(layer.mean_of("vo_rank_99") / layer.v_rank)
        return {pair: mean(some) for pair, some in parts.items()}

    def chart(self) -> Any:
        """Heat maps, one square per head: how much of its rank is in use, and how like another head it is."""
        from headwise.checkpoints.heat_maps import heat_maps

        return heat_maps(self.records(), str(self.shape), self.summary.split("\n"))


def inspect(
    source: str | Path | Reader,
    *,
    heads: int | None = None,
    data: str | Path | None = None,
    keep: float = KEEP,
    reader: Chosen = None,
    watch: LayerWatch | None = None,
) -> Inspection:
    """What rank the heads of a trained model really use, layer by layer.

    `source` is a folder, a file, OWNER/NAME on the Hugging Face hub, or an opened reader. With `data`, text, the model
    is run: every head gets the entropy of its attention, and `on_text` says what the loss becomes when heads keep
    `keep` of their energy. The rest is as in `open_checkpoint`.
    """
    opened = source if isinstance(source, Reader) else open_checkpoint(source, heads, reader, watch)
    text = None if data is None else OnText(opened, data)
    cut = padded_tensors(opened, plan(opened, keep, text.seen).ranks, text.seen) if text else ()
    layers, shapes = [], []
    for number in opened.numbers():
        layer = opened.heads(number)
        shapes.append(layer.shape)
        layers.append(
            Layer(
                name=opened.layers[number].rstrip("."),
                shape=str(layer.shape),
                qk_rank=layer.shape.qk_rank,
                v_rank=layer.shape.v_rank,
                kv_bytes_per_token=layer.shape.cached_per_token * layer.output.element_size(),
                heads=measure_heads(layer, text.entropies[number] if text else None),
            )
        )
    return Inspection(
        family=opened.family,
        shape=opened.shape_of(shapes),
        rotary=bool(layer.rotated),
        normed=layer.normed,
        dtype=str(layer.output.dtype).removeprefix("torch."),
        layers=layers,
        keep=keep,
        on_text=text.compare(cut) if text else None,
    )


def measure_heads(shared: AttentionHeads, entropies: list[float] | None = None) -> list[Head]:
    """Every head of one layer."""
    heads = shared.unshared()
    (query, key), (output, value) = heads.qk_factors(), heads.vo_factors()
    qk, vo = singular_values(query, key), singular_values(output, value)
    qk_energies, vo_energies = _per_dimension(heads) if heads.rotated else qk.square(), vo.square()
    at_all_distances = rank_over_distances(heads) if heads.rotated else rank_of(qk)
    columns: dict[str, list[Any]] = {
        "qk_effective_rank": rank_of(qk).tolist(),
        "qk_effective_rank_all_distances": at_all_distances.tolist(),
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
        "qk_spectrum": _spectra(qk),
        "vo_spectrum": _spectra(vo),
    }
    return [Head(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _spectra(values: Tensor) -> list[tuple[float, ...]]:
    """As they are drawn: from the largest down, which is 1."""
    parts = values / values.amax(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    return [tuple(round(one, 4) for one in row) for row in parts.tolist()]


def _numbers(head: Head) -> dict[str, Any]:
    return {name: value for name, value in asdict(head).items() if not name.endswith("_spectrum")}


@cache
def random_rank(rank: int, width: int) -> float:
    """The effective rank of a head of independent normal weights, of the mean of four: what no learning looks like."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 4, rank, width, generator=generator, dtype=torch.float64)
    return float(rank_of(singular_values(left, right)).mean())


def rank_over_distances(heads: AttentionHeads) -> Tensor:
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


def _per_dimension(heads: AttentionHeads) -> Tensor:
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
    overlaps_of = [
        (getattr(head, f"{pair}_overlap"), number, index, pair.upper())
        for number, layer in enumerate(layers)
        for index, head in enumerate(layer.heads)
        for pair in ("qk", "vo")
        if len(layer.heads) > 1
    ]
    if not overlaps_of:
        return []
    overlap, number, index, pair = max(overlaps_of)
    return [f"Most alike another head of its layer: head {index} of layer {number} ({pair}, cosine {overlap:.2f})."]
