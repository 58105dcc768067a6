"""A trained model's heads in fewer dimensions: the best approximation of each QᵀK and each OV, and what it keeps.

    smaller = headwise.truncate("path", "smaller", keep=0.99, data="my.txt")
    print(smaller.before, smaller.after, smaller.bytes_after / smaller.bytes_before)

Energy is the sum of squared singular values. A layer gets the smallest ranks at which its heads keep `keep` of their
energy in the mean, both with biases (a token then has one more entry, a constant 1) and without. Three things are not
free to be mixed:
- dimensions that rotate: whole frequency pairs stay or go, each key/value head choosing its own. Averaged over
  distances pairs do not interfere, and one has the energy |Q_pair|² |K_pair|² / 2;
- the rotated key that all heads of MLA share: it stays;
- queries and keys that pass a norm: they stay, and only values and outputs are cut.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.checkpoints import Chosen, open_checkpoint
from headwise.checkpoints.files import Weights, check_new, write_config, write_weights
from headwise.checkpoints.heads import AttentionHeads, Cut
from headwise.checkpoints.on_text import OnText, TextChange
from headwise.checkpoints.reader import LayerWatch, Reader
from headwise.checkpoints.seen import Seen, weighted
from headwise.cost import cached_per_token
from headwise.measure.spectra import singular_values
from headwise.shape import AttentionShape, ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError


@dataclass(frozen=True)
class LayerRanks:
    """Of one layer: frequency pairs, dimensions of queries and keys that do not turn, dimensions of values."""

    pairs: int
    content: int
    values: int


Seens = list[Seen] | None  # of every layer
CheckpointForm = Literal[
    "native", "headwise", "padded"
]  # the family's own; headwise's alone; the family's in its old sizes


@dataclass(frozen=True)
class Truncation(Shown):
    """What became of a checkpoint, and where the new one is."""

    family: str
    before: ModelShape
    after: ModelShape
    bytes_before: int
    bytes_after: int
    kv_before: int  # numbers of the cache for one token
    kv_after: int
    form: CheckpointForm
    normed: bool  # whether queries and keys were left alone, for they pass a norm
    rotary: bool

    out: Path
    keep: float  # share of the energy that heads keep, in the mean of each layer
    aware: bool = False  # whether energy is that of tokens, not of weights
    on_text: TextChange | None = None  # where there was text to run the model on

    def as_dict(self) -> dict[str, Any]:
        """Every field, shapes as text; what was measured on text beside them."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "on_text"}
        facts |= {"before": str(self.before), "after": str(self.after), "out": str(self.out)}
        return facts | (self.on_text.as_dict() if self.on_text else {})

    def records(self) -> list[dict[str, Any]]:
        sizes = {"bytes of weights": (self.bytes_before, self.bytes_after)}
        sizes |= {"numbers in the KV cache per token": (self.kv_before, self.kv_after)}
        return [{"what": what, "before": before, "after": after} for what, (before, after) in sizes.items()]

    @property
    def lost_pairs(self) -> bool:
        """Whether fewer frequencies turn than did."""
        return any(a.rotated > b.rotated for a, b in zip(self.before.layers, self.after.layers, strict=True))

    @property
    def headline(self) -> str:
        return f"{self.before} to {self.after}; heads keep {self.keep:.4g} of their energy or more"


# ---- energies ------------------------------------------------------------------------------------------------------


def pair_energies(heads: AttentionHeads, biases: bool = False) -> Tensor:
    """(G, P/2): energy of each frequency pair, averaged over distances; see the module's first lines."""
    query, key = heads.qk_factors(biases)
    half = heads.rotated // 2
    first, second = (rows[:, : 2 * half].square().sum(-1).unflatten(1, (2, half)).sum(1) for rows in (query, key))
    return first * second / 2


def content_energies(heads: AttentionHeads, biases: bool = False) -> Tensor:
    """(G, R - P): squared singular values of QᵀK without the rotated part."""
    query, key = (rows[:, heads.rotated :] for rows in heads.qk_factors(biases))
    return _squares(query, key)


def value_energies(heads: AttentionHeads) -> Tensor:
    """(G, V): squared singular values of OV."""
    return _squares(*heads.vo_factors())


def _squares(left: Tensor, right: Tensor) -> Tensor:
    if not left.shape[1]:
        return left.new_zeros(left.shape[0], 0)
    return singular_values(left, right).square()


def kept(energies: Tensor) -> Tensor:
    """(G, n): the share that the largest 1, 2, ... keep; a head of zeros keeps all of nothing."""
    sums = energies.sort(dim=-1, descending=True).values.cumsum(-1)
    return torch.nan_to_num(sums / sums[..., -1:], nan=1.0)


def count_for(energies: Tensor, keep: float) -> int:
    """How many are the fewest that keep this share in the mean over heads."""
    if not energies.shape[-1]:
        return 0
    enough = kept(energies).mean(0) >= keep - 1e-12  # the last share is 1 but for rounding
    return int(enough.int().argmax()) + 1


def ranks_for(heads: AttentionHeads, keep: float) -> LayerRanks:
    """The smallest ranks that keep the share."""
    whole = LayerRanks(heads.rotated // 2, heads.shape.qk_rank - heads.rotated, heads.shape.v_rank)
    values = count_for(value_energies(heads), keep)
    if heads.normed:
        return LayerRanks(whole.pairs, whole.content, values)
    both = (False, True)
    content = max(count_for(content_energies(heads, biases), keep) for biases in both)
    if heads.shared_rotation:
        return LayerRanks(whole.pairs, content, values)
    return LayerRanks(max(count_for(pair_energies(heads, biases), keep) for biases in both), content, values)


# ---- cutting -------------------------------------------------------------------------------------------------------


def cut_to(heads: AttentionHeads, ranks: LayerRanks) -> Cut:
    """What turns the heads into the best ones of these ranks."""
    groups, half = heads.key.shape[0], heads.rotated // 2
    query, key = (rows[:, heads.rotated :] for rows in heads.qk_factors(biases=not heads.normed))
    new_query, new_key = _best(query, key, ranks.content)
    outputs, values = _best(*heads.vo_factors(), ranks.values)
    pairs = torch.arange(half).expand(groups, -1)
    if ranks.pairs < half:
        pairs = pair_energies(heads, biases=True).topk(ranks.pairs).indices.sort().values
    turned = torch.eye(2 * half, dtype=torch.float64)[torch.cat([pairs, pairs + half], dim=1)]
    return Cut(
        query=_beside(turned, new_query),
        key=_beside(turned, new_key),
        value=values,
        output=outputs.mT,
        frequencies=None if heads.frequencies is None else heads.frequencies.gather(1, pairs),
        pairs=pairs,
    )


def _best(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(G, rank, R) each: what to multiply both factors by so that leftᵀ right becomes the nearest of that rank.

    With leftᵀ = A L and rightᵀ = B M (A and B orthogonal) and L Mᵀ = U S Vᵀ, the factors become S^½ Uᵀ Aᵀ and
    S^½ Vᵀ Bᵀ, which are S^-½ Vᵀ M and S^-½ Uᵀ L times the old ones.
    """
    full = left.shape[1]
    if rank == full:  # nothing to do, and nothing lost to rounding
        same = torch.eye(full, dtype=left.dtype).expand(left.shape[0], -1, -1)
        return same, same
    first, second = torch.linalg.qr(left.mT).R, torch.linalg.qr(right.mT).R
    u, values, vh = torch.linalg.svd(first @ second.mT)
    values, u, vh = values[:, :rank], u[..., :rank], vh[:, :rank]
    some = values > torch.finfo(values.dtype).eps * values[:, :1]
    roots = torch.where(some, values, 1.0).rsqrt()[..., None] * some[..., None]
    return roots * (vh @ second), roots * (u.mT @ first)


def _beside(turned: Tensor, rest: Tensor) -> Tensor:
    """Two blocks on the diagonal."""
    return torch.stack([torch.block_diag(a, b) for a, b in zip(turned, rest, strict=True)])


# ---- a checkpoint --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankPlan:
    """The attention of each layer as it is, and the ranks it shall have."""

    shapes: list[AttentionShape]
    ranks: list[LayerRanks]
    normed: bool
    rotary: bool

    @property
    def reduced(self) -> list[AttentionShape]:
        return [_reduced(shape, ranks) for shape, ranks in zip(self.shapes, self.ranks, strict=True)]


def plan(reader: Reader, keep: float, seen: Seens = None) -> RankPlan:
    """The smallest ranks that keep this share; the same for all layers where the configuration has one number.

    With what the layers have seen, the energy is that of the queries, keys and values of those tokens.
    """
    if not 0 < keep <= 1:
        raise SpecError(f"--keep is {keep:g}; it is the share of the energy that stays, above 0 and at most 1")
    shapes, ranks, rotary = [], [], False
    for number in reader.numbers():
        heads = reader.heads(number)
        rotary = rotary or bool(heads.rotated)
        wanted = ranks_for(weighted(heads, seen[number] if seen else None), keep)
        content = min(wanted.content + -wanted.content % reader.step, heads.shape.qk_rank - heads.rotated)
        shapes.append(heads.shape)
        ranks.append(replace(wanted, content=content))
    if reader.uniform:
        most = LayerRanks(*(max(getattr(one, name) for one in ranks) for name in ("pairs", "content", "values")))
        ranks = [most] * len(ranks)
    return RankPlan(shapes, ranks, heads.normed, rotary)


def truncate(
    source: str | Path | Reader,
    out: str | Path,
    keep: float = 0.99,
    *,
    data: str | Path | None = None,
    pad: bool = False,
    heads: int | None = None,
    reader: Chosen = None,
    watch: LayerWatch | None = None,
) -> Truncation:
    """Write a checkpoint whose heads have the smallest ranks that keep this share of their energy.

    `source` is a folder, a file, OWNER/NAME on the Hugging Face hub, or an opened reader; `out` a new folder. With
    `pad` it has the old sizes, zeros where something was cut. `data` is text: energy is then that of the queries, keys
    and values it gives, and the loss is measured on a part of it that nothing was fitted to, before and after.
    The rest is as in `open_checkpoint`.
    """
    folder = Path(out)
    check_new(folder)  # before any work
    opened = source if isinstance(source, Reader) else open_checkpoint(source, heads, reader, watch)
    text = None if data is None else OnText(opened, data)
    planned = plan(opened, keep, text.seen if text else None)
    written = _write(opened, planned, folder, keep, pad, text.seen if text else None)
    if text is None:
        return written
    return replace(written, on_text=text.compare(padded_tensors(opened, planned.ranks, text.seen)))


def _write(reader: Reader, planned: RankPlan, out: Path, keep: float, pad: bool, seen: Seens) -> Truncation:
    """The checkpoint with heads of the planned ranks, one layer in memory at a time."""
    before, after = reader.shape_of(planned.shapes), reader.shape_of(planned.reduced)
    if before == after:
        raise SpecError("every layer needs all of its rank to keep so much of its energy: try a smaller --keep")
    native = {} if pad else reader.native(after)
    frequencies: list[Any] = []
    written = write_weights(out, _tensors(reader, planned.ranks, frequencies, pad, seen))
    entry = {"shape": str(after), **({"rope_frequencies": frequencies} if planned.rotary else {})}
    write_config(out, reader.weights.config | ({"headwise": entry} if native is None else native))
    _copy_rest(reader.weights, out)
    return Truncation(
        family=reader.family,
        before=before,
        after=after,
        bytes_before=reader.weights.nbytes,
        bytes_after=written,
        kv_before=cached_per_token(before),
        kv_after=cached_per_token(before if pad else after),
        form="padded" if pad else "headwise" if native is None else "native",
        normed=planned.normed,
        rotary=planned.rotary,
        out=out,
        keep=keep,
        aware=seen is not None,
    )


def _reduced(shape: AttentionShape, ranks: LayerRanks) -> AttentionShape:
    rank = 2 * ranks.pairs + ranks.content
    rope = 2 * ranks.pairs or (0 if shape.kv_latent else rank)  # the usual value where nothing turns
    return shape.replace(qk_rank=rank, v_rank=ranks.values, rope_rank=rope)


def padded_tensors(reader: Reader, ranks: list[LayerRanks], seen: Seens = None) -> Iterator[tuple[str, Tensor]]:
    """The attention of the truncated model in the old sizes, for whatever library runs the original."""
    for number in reader.numbers():
        heads = reader.heads(number)
        cut = cut_to(weighted(heads, seen[number] if seen else None), ranks[number])
        yield from reader.cut(number, cut.padded(heads)).items()


def _tensors(
    reader: Reader, ranks: list[LayerRanks], frequencies: list[Any], pad: bool, seen: Seens
) -> Iterator[tuple[str, Tensor]]:
    """Those of each layer's attention, cut, with what still turns in each; then all others as they are."""
    done: set[str] = set()
    for number in reader.numbers():
        heads = reader.heads(number)
        cut = cut_to(weighted(heads, seen[number] if seen else None), ranks[number])
        frequencies.append(None if cut.frequencies is None else cut.frequencies.tolist())
        changed = reader.cut(number, cut.padded(heads) if pad else cut)
        yield from ((name, tensor) for name, tensor in changed.items() if name not in done)  # ALBERT: layers share them
        done |= changed.keys()
    for name in reader.weights:
        if name not in done:
            yield name, reader.weights.stored(name)


def _copy_rest(weights: Weights, out: Path) -> None:
    """Tokenizer and the like, so that the folder stands alone."""
    source = weights.path if weights.path.is_dir() else weights.path.parent
    for file in source.iterdir():
        small = file.suffix in (".json", ".txt", ".model") and not file.name.endswith(".index.json")
        if weights.path.is_dir() and small and not (out / file.name).exists():
            shutil.copy(file, out / file.name)
