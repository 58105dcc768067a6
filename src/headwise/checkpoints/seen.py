"""What a layer has seen of real tokens, and heads weighted by it: nearest then means on those tokens.

Rows are multiplied by a root of the tokens' second moment, so that sums of squares are those of the queries, keys and
values that tokens really give. Without rotation that of keys is taken around their mean, for softmax does not see what
all keys share.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.checkpoints.heads import AttentionHeads


@dataclass(frozen=True)
class Seen:
    """Tokens that came into a layer: their mean, their second moment, and some of them."""

    mean: Tensor  # (W)
    second: Tensor  # (W, W)
    some: Tensor  # (1, T, W)


class Watch:
    """Sums over the tokens that come into a layer, and the first sequence of them."""

    def __init__(self, width: int, kept: int) -> None:
        self.kept, self.count = kept, 0
        self.sum, self.squares = (torch.zeros(size, dtype=torch.float64) for size in ((width,), (width, width)))
        self.some: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """(B, T, W)"""
        x = x.detach().cpu().double()
        rows = x.flatten(0, -2)
        self.count, self.sum = self.count + len(rows), self.sum + rows.sum(0)
        self.squares = self.squares + rows.mT @ rows
        self.some = x[:1, : self.kept] if self.some is None else self.some

    @property
    def seen(self) -> Seen | None:
        return None if self.some is None else Seen(self.sum / self.count, self.squares / self.count, self.some)


def weighted(heads: AttentionHeads, seen: Seen | None) -> AttentionHeads:
    """Heads whose sums of squares are those of queries, keys and values of the tokens seen; as they are without."""
    if seen is None:
        return heads
    second, mean = seen.second, seen.mean
    whole = torch.cat([torch.cat([second, mean[:, None]], 1), torch.cat([mean, mean.new_ones(1)])[None]])
    around = second - mean[:, None] * mean
    key = _rows(heads.key, heads.key_bias) @ _root(whole) if heads.rotated else heads.key.double() @ _root(around)
    return replace(
        heads,
        query=_rows(heads.query, heads.query_bias) @ _root(whole),
        key=key,
        value=heads.value.double() @ _root(second),
        query_bias=None,
        key_bias=None,
    )


def _rows(rows: Tensor, bias: Tensor | None) -> Tensor:
    """With one more column, for a token's constant 1."""
    bias = rows.new_zeros(rows.shape[:2]) if bias is None else bias
    return torch.cat([rows, bias[..., None]], dim=-1).double()


def _root(moment: Tensor) -> Tensor:
    """S with S Sᵀ = moment."""
    values, vectors = torch.linalg.eigh(moment)
    return vectors * values.clamp(min=0).sqrt()
