"""headwise's layer as it stands inside someone else's model, and what is known of the layer it stands in for."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.checkpoints.files import Weights
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.swap.carry import Carried, even_pairs
from headwise.layers.attention import Angles, Attention
from headwise.layers.functional import turn
from headwise.shape import AttentionShape
from headwise.spec import SpecError


class HostAttention(Attention):
    """Attention that turns by the model's own table, so that it turns exactly as the model does.

    `positions` are then the table's cosines and sines, (2, B, T, n); `pairs` (G, P/2) says which of the n frequencies
    each pair of a key/value head has. A norm `over_heads` is one of all queries, and of all keys, of a token.
    """

    pairs: Tensor | None

    def __init__(
        self,
        shape: AttentionShape,
        pairs: Tensor | None = None,
        *,
        over_heads: bool = False,
        sinks: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(shape, **options)
        self.over_heads = over_heads
        self.register_buffer("pairs", None if pairs is None else pairs.to(options.get("device")))
        factory: dict[str, Any] = {name: options.get(name) for name in ("device", "dtype")}
        if over_heads:
            each = (shape.heads * shape.qk_rank, shape.kv_heads * shape.qk_rank)
            self.take_norms(*(nn.RMSNorm(size, options.get("norm_eps", 1e-6), **factory) for size in each))
        self.sinks = nn.Parameter(torch.zeros(shape.heads, **factory)) if sinks else None

    def take_norms(self, query: nn.Module, key: nn.Module) -> None:
        """Let queries and keys pass these."""
        norms: tuple[Any, Any] = (OverHeads(query), OverHeads(key)) if self.over_heads else (query, key)
        self.query_norm, self.key_norm = norms

    @property
    def norms(self) -> tuple[Any, Any]:
        """Of queries and of keys, as modules with weights."""
        query, key = (norm.norm if isinstance(norm, OverHeads) else norm for norm in (self.query_norm, self.key_norm))
        return query, key

    def _angles(self, tokens: Tensor, positions: Tensor | None, start: int) -> Angles:
        return None if self.pairs is None or positions is None else (positions[0], positions[1])

    def _rotate(self, heads: Tensor, angles: Angles) -> Tensor:
        if self.pairs is None or angles is None:
            return heads
        count, groups = heads.shape[1], len(self.pairs)
        pairs = self.pairs[:count] if count < groups else self.pairs.repeat_interleave(count // groups, dim=0)
        return turn(heads, *(table[..., pairs].movedim(-2, 1) for table in angles))  # (B, T, H, P/2) to (B, H, T, P/2)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, *given: Any) -> tuple[Tensor, Tensor | None]:
        """A sink is one key before all others, of no value, whose logit is the sink's."""
        if self.sinks is None:
            return super()._attend(queries, keys, values, *given)
        allowed, bias, start, need_weights = given
        keys, values = (F.pad(one, (0, 0, 1, 0)) for one in (keys, values))
        sink = F.pad(self.sinks.view(-1, 1, 1), (0, keys.shape[-2] - 1))
        allowed = None if allowed is None else F.pad(allowed, (1, 0), value=True)
        bias = sink if bias is None else F.pad(bias, (1, 0)) + sink
        heads, weights = super()._attend(queries, keys, values, allowed, bias, start + 1, need_weights)
        return heads, None if weights is None else weights[..., 1:]

    @property
    def _served(self) -> bool:
        return super()._served and self.pairs is None and self.sinks is None


class OverHeads(nn.Module):
    """A norm over all heads of a token at once."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, heads: Tensor) -> Tensor:
        """(B, H, T, R) to the same."""
        normed: Tensor = self.norm(heads.transpose(1, 2).flatten(2))
        return normed.unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)


@dataclass
class AttentionPlace(ABC):
    """One attention layer of a model: what it computes, and how another takes its place."""

    name: str
    module: Any  # what it sees is what attention sees
    heads: AttentionHeads
    causal: bool = False
    dropout: float = 0.0
    temperature: float = 1.0  # on logits, beside 1/√rank
    norm_eps: float | None = None  # of queries and keys, where they pass a norm; None is torch's own
    plain_norm: bool = False  # a norm without weights
    latent_eps: float = 1e-6  # of norms on a latent
    softcap: float = 0.0  # that bounds logits
    factory: dict[str, Any] = field(default_factory=dict)

    def build(self, shape: AttentionShape, carried: Carried | None) -> HostAttention:
        """A layer with the heads carried over, or with new weights."""
        turning = shape.rotated if self.heads.rotated else 0
        pairs = None
        if turning:
            known = self.heads.rotated // 2
            new = even_pairs(turning // 2, known).expand(shape.kv_heads, -1)
            pairs = new if carried is None else carried.pairs
        normed = self.heads.normed
        layer = HostAttention(
            shape,
            pairs,
            causal=self.causal,
            dropout=self.dropout,
            inverse_temperature=self.temperature * (1.0 if carried is None else carried.temperature),
            qk_norm="none" if not normed else "rms-plain" if self.plain_norm else "rms",
            norm_eps=self.latent_eps,
            input_bias=any(bias is not None for bias in self.heads.biases),
            output_bias=self.heads.output_bias is not None,
            softcap=self.softcap,
            over_heads=self.heads.normed_over_heads and not shape.kv_latent,
            sinks=self.heads.sinks is not None,
            **self.factory,
        )
        for norm in layer.norms:
            if norm is not None:  # a mean over another number of squares
                ratio = 1.0 if carried is None else self.heads.shape.qk_rank / shape.qk_rank
                norm.eps = None if self.norm_eps is None else self.norm_eps * ratio
        if carried is not None:
            fill_layer(layer, carried.heads)
        elif not self.heads.output.any():  # some models begin with outputs of 0
            nn.init.zeros_(layer.output.weight)
        return layer

    def sees(self, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
        """The tokens among the arguments of a call, (B, T, W)."""
        return args[0] if args else options["hidden_states"]

    @abstractmethod
    def original(self, x: Tensor, extra: Tensor | None) -> Tensor:
        """What the model's own code makes of tokens (B, T, W), in their precision; `extra` as `extras` gives it."""

    def swapped(self, layer: HostAttention, x: Tensor, extra: Tensor | None, carried: Carried | None) -> Tensor:
        """What the layer makes of them in its place."""
        output: Tensor = layer(x, positions=self.table(x))
        return output

    @property
    def longest(self) -> int | None:
        """Tokens that the model's rotary table has room for, where it has a table."""
        return None

    def extras(self, x: Tensor) -> Tensor | None:
        """What else attention reads beside the tokens, drawn at random; nothing for most."""
        return None

    def table(self, x: Tensor) -> Tensor | None:
        """(2, 1, T, n): cosines and sines for positions 0, 1, 2, ...; none where nothing turns."""
        if self.heads.frequencies is None:
            return None
        angles = torch.arange(x.shape[1])[:, None] * self.heads.frequencies[0]
        return torch.stack([angles.cos(), angles.sin()])[:, None].to(x)

    @abstractmethod
    def put(self, layer: HostAttention, carried: Carried | None) -> None:
        """Let the layer do the work from now on."""


@torch.no_grad()
def fill_layer(layer: HostAttention, heads: AttentionHeads) -> None:
    """Give the layer these heads."""
    layer.input.weight.copy_(torch.cat([rows.flatten(0, 1) for rows in (heads.query, heads.key, heads.value)]))
    layer.output.weight.copy_(heads.output.movedim(0, 1).flatten(1))
    rows = (heads.query, heads.key, heads.value)
    if layer.input.bias is not None:  # where there is none (Whisper's keys), it is one of 0
        layer.input.bias.copy_(
            torch.cat(
                [
                    (one.new_zeros(one.shape[:2]) if bias is None else bias).flatten()
                    for one, bias in zip(rows, heads.biases, strict=True)
                ]
            )
        )
    if heads.output_bias is not None:
        layer.output.bias.copy_(heads.output_bias)
    for norm, scale in zip(layer.norms, (heads.query_scale, heads.key_scale), strict=True):
        if norm is not None and scale is not None and norm.weight is not None:
            norm.weight.copy_(scale.flatten())
    if layer.sinks is not None and heads.sinks is not None:
        layer.sinks.copy_(heads.sinks)


class InMemory(Weights):
    """The weights of a model that is loaded already, for the readers of checkpoints."""

    def __init__(self, model: nn.Module, config: dict[str, Any]) -> None:
        super().__init__(Path(type(model).__name__), [], config)
        self.state = model.state_dict()
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self.state.items()}

    def stored(self, name: str) -> Tensor:
        tensor = self.state[name]
        if tensor.is_meta:
            raise SpecError(f"'{name}' has a shape but no numbers (device meta): swap attention when weights are there")
        return tensor.detach().cpu()

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)


def factory_of(linear: Any) -> dict[str, Any]:
    return {"device": linear.weight.device, "dtype": linear.weight.dtype}


def by_name(module: nn.Module, skipped: int) -> tuple[str, ...]:
    """The names of what a module's forward takes, after the first so many."""
    import inspect

    return tuple(inspect.signature(type(module).forward).parameters)[1 + skipped :]
