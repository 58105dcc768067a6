"""One attention layer of anyone's model in one form, and what cutting its ranks does to it.

Letters: H heads, G key/value heads, R qk_rank, V v_rank, W width, P the rotated part of a head.

Rows of queries and keys stand in headwise's order whatever the family's: the rotated part first, pair i being rows i
and i + P/2. So one piece of code measures and cuts them all.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.shape import AttentionShape


@dataclass(frozen=True)
class AttentionHeads:
    """What a layer's heads compute: xᵀ Qᵀ K z are logits (times a scale), O V z is what attending to z adds."""

    query: Tensor  # (H, R, W)
    key: Tensor  # (G, R, W)
    value: Tensor  # (G, V, W)
    output: Tensor  # (H, W, V)
    query_bias: Tensor | None = None  # (H, R)
    key_bias: Tensor | None = None  # (G, R)
    value_bias: Tensor | None = None  # (G, V)
    output_bias: Tensor | None = None  # (W)
    frequencies: Tensor | None = None  # (G, P/2): radians per token; none where nothing turns
    query_scale: Tensor | None = None  # (R): weights of the norm of queries; (H, R) of one norm over all heads
    key_scale: Tensor | None = None  # (R) of keys, or (G, R)
    latents: tuple[int, int] = (0, 0)  # kv_latent and q_latent
    shared_rotation: bool = False  # one rotated key for all heads (MLA)
    sinks: Tensor | None = None  # (H): logits of attending to nothing

    @property
    def rotated(self) -> int:
        """P: how many of a head's dimensions turn."""
        return 0 if self.frequencies is None else 2 * self.frequencies.shape[-1]

    @property
    def normed(self) -> bool:
        """Whether queries and keys pass a norm, which no change of basis leaves alone."""
        return self.query_scale is not None

    @property
    def normed_over_heads(self) -> bool:
        """Whether that is one norm over all heads of a token."""
        return self.query_scale is not None and self.query_scale.dim() == 2

    @property
    def biases(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of queries, keys and values."""
        return self.query_bias, self.key_bias, self.value_bias

    @property
    def shape(self) -> AttentionShape:
        heads, rank, width = self.query.shape
        sizes = {"width": width, "heads": heads, "qk_rank": rank, "v_rank": self.value.shape[1]}
        sizes |= {"kv_heads": self.key.shape[0], "kv_latent": self.latents[0], "q_latent": self.latents[1]}
        return AttentionShape(**sizes, **({} if self.frequencies is None else {"rope_rank": self.rotated}))

    def each_head(self, shared: Tensor) -> Tensor:
        """What belongs to key/value heads, repeated for each query head."""
        return shared.repeat_interleave(self.shape.group, dim=0)

    def unshared(self) -> "AttentionHeads":
        """The same with a key/value head for every query head."""
        shared = ("key", "value", "key_bias", "value_bias", "frequencies", *(("key_scale",) * self.normed_over_heads))
        rows = {name: getattr(self, name) for name in shared}
        each: dict[str, Any] = {name: None if one is None else self.each_head(one) for name, one in rows.items()}
        return replace(self, **each)

    def qk_factors(self, biases: bool = False) -> tuple[Tensor, Tensor]:
        """(G, R, H/G·n) and (G, R, n) in float64, whose product is QᵀK of the heads of each group, one below the other.

        A norm's weights are multiplied in. With `biases` a token has one more entry, a constant 1; a key's bias moves
        all logits of a query alike unless it turns, so without rotation it is left out.
        """
        query, key = self.query.double(), self.key.double()
        if biases and self.query_bias is not None:
            query = torch.cat([query, self.query_bias.double()[..., None]], dim=-1)
        if biases and self.key_bias is not None and self.rotated:
            key = torch.cat([key, self.key_bias.double()[..., None]], dim=-1)
        if self.query_scale is not None and self.key_scale is not None:
            query, key = (
                query * self.query_scale.double()[..., None],
                key * self.key_scale.double()[..., None],
            )
        return self._grouped(query), key

    def vo_factors(self) -> tuple[Tensor, Tensor]:
        """(G, V, H/G·W) and (G, V, W) in float64, whose product is OV of the heads of each group."""
        return self._grouped(self.output.double().mT), self.value.double()

    def _grouped(self, rows: Tensor) -> Tensor:
        """(H, R, n) to (G, R, H/G·n): the heads of a group side by side."""
        return rows.unflatten(0, (self.key.shape[0], -1)).movedim(1, 2).flatten(2)

    def cut(self, cut: "Cut") -> "AttentionHeads":
        """The same heads in fewer dimensions."""
        query, output = self.each_head(cut.query), self.each_head(cut.output)
        changed = replace(
            self,
            query=_apply(query, self.query),
            key=_apply(cut.key, self.key),
            value=_apply(cut.value, self.value),
            output=(self.output.double() @ output).to(self.output.dtype),
            query_bias=_apply_to_bias(query, self.query_bias),
            key_bias=_apply_to_bias(cut.key, self.key_bias),
            value_bias=_apply_to_bias(cut.value, self.value_bias),
            frequencies=cut.frequencies,
        )
        if self.value_bias is None or self.output_bias is None:
            return changed
        lost = self._constant() - changed._constant()  # attention sums to 1, so a value's bias is a constant
        return replace(changed, output_bias=(self.output_bias.double() + lost).to(self.output_bias.dtype))

    def _constant(self) -> Tensor:
        """(W): what the values' biases add to the output."""
        assert self.value_bias is not None
        biases = self.each_head(self.value_bias).double()
        return (self.output.double() @ biases[..., None]).sum(0).flatten()


@dataclass(frozen=True)
class Cut:
    """What the dimensions of each key/value head become: new rows of queries are `query` times the old, and so on."""

    query: Tensor  # (G, r, R)
    key: Tensor  # (G, r, R)
    value: Tensor  # (G, v, V)
    output: Tensor  # (G, V, v)
    frequencies: Tensor | None = None  # (G, p/2) of the pairs that stay
    pairs: Tensor | None = None  # (G, p/2): which pairs they are

    def padded(self, heads: AttentionHeads) -> "Cut":
        """The same function in the old sizes: zeros where something was cut, so that any library can run it."""
        old, new = heads.rotated // 2, 0 if self.pairs is None else self.pairs.shape[1]
        rank, groups = heads.query.shape[1], heads.key.shape[0]
        rest = 2 * old + torch.arange(self.query.shape[1] - 2 * new).expand(groups, -1)
        turned = rest[:, :0] if self.pairs is None else torch.cat([self.pairs, self.pairs + old], dim=1)
        places = torch.cat([turned, rest], dim=1)
        return Cut(
            query=_spread(self.query, places, rank),
            key=_spread(self.key, places, rank),
            value=_spread(self.value, torch.arange(self.value.shape[1]).expand(groups, -1), self.value.shape[2]),
            output=torch.nn.functional.pad(self.output, (0, self.output.shape[1] - self.output.shape[2])),
            frequencies=heads.frequencies,
        )


def _apply(change: Tensor, rows: Tensor) -> Tensor:
    return (change.double() @ rows.double()).to(rows.dtype)


def _apply_to_bias(change: Tensor, bias: Tensor | None) -> Tensor | None:
    return None if bias is None else _apply(change, bias[..., None])[..., 0]


def _spread(rows: Tensor, places: Tensor, size: int) -> Tensor:
    """(G, r, n) to (G, size, n), row i at its place."""
    spread = rows.new_zeros(rows.shape[0], size, rows.shape[2])
    return spread.scatter(1, places[..., None].expand_as(rows), rows)
