"""What mixers that are attention but for one thing have in common: a window in blocks, and weights of their own."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.layers.attention import Attention
from headwise.layers.functional import distance, fast_attention, plain_attention
from headwise.mixer import ATTENTION, Mixer
from headwise.options import ModelOptions
from headwise.shape import AttentionShape
from headwise.spec import SpecError

Mask = Tensor | None


@dataclass(frozen=True)
class SoftmaxMixer(Mixer):
    """Costs as of plain attention, with a window; each file says what it adds, and what applies to it."""

    window: int = 0

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        return ATTENTION.parameters(shape, options)

    def products(
        self, shape: AttentionShape, options: ModelOptions, queries: int, keys: int, cached: bool = False
    ) -> int:
        keys = min(keys, self.window or keys) if cached else keys
        whole = ATTENTION.products(shape, options, queries, keys, cached)
        skipped = queries * keys - self.pairs(options, queries, keys, cached)
        return whole - skipped * shape.heads * (shape.qk_rank + shape.v_rank)

    def pairs(self, options: ModelOptions, queries: int, keys: int, cached: bool = False, first: int = 0) -> int:
        """Queries and keys that meet, masked or not."""
        blocks = 0 if cached or queries != keys else in_blocks(queries, self.window, options.causal, first)
        return blocks * self.window * (first + self.window * span(options.causal)) if blocks else queries * keys

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        return ATTENTION.saved(shape, options, self.pairs(options, tokens, tokens) // tokens, fused)

    def kept(self, shape: AttentionShape, tokens: int) -> int:
        return ATTENTION.kept(shape, min(tokens, self.window or tokens)) if self.causal else 0


def span(causal: bool) -> int:
    """Blocks of keys that a block of queries sees: its own and the one before, or its two neighbours."""
    return 2 if causal else 3


def in_blocks(tokens: int, window: int, causal: bool, first: int = 0) -> int:
    """The number of blocks of `window` tokens in which fewer pairs meet than in one; 0 where there is no such.

    The `first` tokens are seen from every block.
    """
    blocks = -(-tokens // window) if window else 0
    return blocks if blocks * window * (first + window * span(causal)) < tokens**2 else 0


class WholeSequence(Attention):
    """What sees a whole sequence at once: no cache, no memory, no masks but for padding."""

    mixer = ""  # until `make_layer` says which it is, nothing applies to it

    @property
    def _served(self) -> bool:
        return False

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        *,
        padding: Tensor | None = None,
        positions: Any = None,
        cache: Any = None,
        need_weights: Any = 0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """What it adds to each token; with `need_weights` those of its heads come second."""
        if cache is not None:
            raise SpecError("this mixer sees whole sequences, later tokens too: it has no cache")
        output, weights = self.mix(x, padding, bool(need_weights))
        return (output, weights) if need_weights and weights is not None else output

    def mix(self, x: Tensor, padding: Tensor | None, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """The output and, where they are at hand or wanted, weights."""
        raise NotImplementedError

    def _out(self, joined: Tensor) -> Tensor:
        return self._scaled(self._times(self.output, joined))


class WindowedAttention(Attention):
    """Attention whose window is computed in blocks of neighbours, so that it costs what it sees."""

    mixer = ""  # until `make_layer` says which it is, nothing applies to it
    first = 0  # tokens that all see

    @property
    def _served(self) -> bool:
        return False

    def _blocks(self, queries: Tensor, keys: Tensor, start: int) -> int:
        tokens = queries.shape[-2]
        alone = not start and tokens == keys.shape[-2] and not self.hardmax
        return in_blocks(tokens, self.window or 0, self.causal, self.first) if alone else 0

    def _near(self, queries: Tensor, keys: Tensor, start: int) -> Tensor:
        assert self.window
        return distance(queries, keys, start).abs() < self.window

    def _allowed(
        self, queries: Tensor, keys: Tensor, start: int, mask: Tensor | None, padding: Tensor | None
    ) -> Tensor | None:
        if mask is None and self._blocks(queries, keys, start):
            return None if padding is None else padding[:, None, None, :]
        return super()._allowed(queries, keys, start, mask, padding)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, allowed: Mask, bias: Mask, start: int, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.window and self._blocks(queries, keys, start) and (allowed is None or allowed.shape[-2] == 1):
            if bias is None and not need_weights:
                return self._in_blocks(queries, keys, values, allowed), None
            near = self._near(queries, keys, start)
            allowed = near if allowed is None else allowed & near
        return self._whole(queries, keys, values, allowed, bias, start, need_weights)

    def _whole(self, *given: Any) -> tuple[Tensor, Tensor | None]:
        return super()._attend(*given)

    def _in_blocks(self, queries: Tensor, keys: Tensor, values: Tensor, real: Tensor | None) -> Tensor:
        """(B, H, T, R), (B, G, T, R), (B, G, T, V) and (B, 1, 1, T) to (B, H, T, V), a block of queries at a time."""
        assert self.window
        window, batch, tokens = self.window, len(queries), queries.shape[-2]
        blocks, wide = -(-tokens // window), span(self.causal) * window
        rest, after = blocks * window - tokens, 0 if self.causal else window

        def neighbours(x: Tensor) -> Tensor:
            """(B, G, T, R) to (B · blocks, G, keys, R)."""
            x = F.pad(x, (0, 0, window, rest + after)).unfold(2, wide, window)
            return x.permute(0, 2, 1, 4, 3).flatten(0, 1)

        def everywhere(x: Tensor) -> Tensor:
            """The first tokens beside those of each block."""
            near, first = neighbours(x), x[:, None, :, : self.first]
            return torch.cat([first.expand(-1, blocks, -1, -1, -1).flatten(0, 1), near], dim=2) if self.first else near

        rows = F.pad(queries, (0, 0, 0, rest)).unflatten(2, (blocks, window)).transpose(1, 2).flatten(0, 1)
        query = torch.arange(blocks * window, device=keys.device).view(blocks, window, 1)
        key = torch.arange(blocks, device=keys.device).view(-1, 1, 1) * window
        key = key + torch.arange(-window, wide - window, device=keys.device)
        behind = query - key
        allowed = (key >= 0) & ((key < tokens) | (query >= tokens)) & (behind.abs() < window)
        allowed = allowed & (behind >= 0) if self.causal else allowed
        allowed = allowed[None, :, None]
        if real is not None:
            real = real.expand(batch, 1, 1, tokens)
            seen = F.pad(real, (window, rest + after)).unfold(3, wide, window)
            allowed = allowed & (seen.permute(0, 3, 1, 2, 4) | (query >= tokens)[:, None])
        if self.first:
            allowed = allowed & (key >= self.first)[:, None]
            own = allowed.new_ones(()) if real is None else real[:, None, ..., : self.first]
            always = own.expand(len(allowed), blocks, 1, window, self.first)
            allowed = torch.cat([always, allowed], dim=-1)
        allowed = allowed.expand(batch, -1, -1, -1, -1).flatten(0, 1)
        heads = self._block(rows, everywhere(keys), everywhere(values), allowed)
        return heads.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]

    def _block(self, queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
        dropout = self.dropout if self.training else 0.0
        if self.path == "plain":
            return plain_attention(queries, keys, values, self._scale, allowed, None, dropout)[0]
        return fast_attention(queries, keys, values, self._scale, allowed, False, dropout)


class WeighedAttention(WindowedAttention):
    """Attention whose weights are made from all heads' logits by `weigh`; it has one path, of matrix products."""

    def weigh(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        """(B, H, T, S) to weights of the same shape; 0 for what is not allowed."""
        return masked_softmax(logits, allowed)

    def _whole(
        self, queries: Tensor, keys: Tensor, values: Tensor, allowed: Mask, bias: Mask, start: int, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.causal and start + 1 < keys.shape[-2]:
            before = distance(queries, keys, start) >= 0
            allowed = before if allowed is None else allowed & before
        return self._weighed(queries, keys, values, allowed, bias)

    def _block(self, queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
        return self._weighed(queries, keys, values, allowed, None)[0]

    def _weighed(
        self, queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        group = queries.shape[1] // keys.shape[1]
        if group > 1:
            keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        logits = self._scale * (queries.to(values.dtype) @ keys.to(values.dtype).mT)
        weights = self.weigh(logits if bias is None else logits + bias, allowed)
        weights = F.dropout(weights, self.dropout) if self.dropout and self.training else weights
        return self._read(weights, values), weights

    def _read(self, weights: Tensor, values: Tensor) -> Tensor:
        return weights @ values


def masked_softmax(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """Over keys; a query that may look nowhere gets weights of 0, and no gradient."""
    if allowed is None:
        return logits.softmax(-1)
    blind = ~allowed.any(-1, keepdim=True)
    weights = logits.masked_fill(~allowed, -math.inf).masked_fill(blind, 0.0).softmax(-1)
    return weights.masked_fill(blind, 0.0)


def refuse(mixer: Mixer, shape: AttentionShape, options: ModelOptions, *, latents: bool = True) -> None:
    """What no mixer of this kind can have: hardmax; and, where it says so, latents."""
    if options.hardmax:
        raise SpecError(f"mixer '{mixer}' has no hardmax: leave it out, or use plain attention")
    if latents and (shape.kv_latent or shape.q_latent):
        raise SpecError(f"mixer '{mixer}' reads keys and values of its own, and no latent: leave c and q out")


def factory_of(options: dict[str, Any]) -> dict[str, Any]:
    """Device and type among a layer's options."""
    return {name: options.get(name) for name in ("device", "dtype")}
