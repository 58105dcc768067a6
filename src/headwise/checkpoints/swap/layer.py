"""headwise's layer as it stands inside someone else's model, and what is known of the layer it stands in for."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
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
    each pair of a key/value head has.
    """

    pairs: Tensor | None

    def __init__(self, shape: AttentionShape, pairs: Tensor | None = None, **options: Any) -> None:
        super().__init__(shape, **options)
        self.register_buffer("pairs", None if pairs is None else pairs.to(options.get("device")))

    def _angles(self, tokens: Tensor, positions: Tensor | None, start: int) -> Angles:
        return None if self.pairs is None or positions is None else (positions[0], positions[1])

    def _rotate(self, heads: Tensor, angles: Angles) -> Tensor:
        if self.pairs is None or angles is None:
            return heads
        count, groups = heads.shape[1], len(self.pairs)
        pairs = self.pairs[:count] if count < groups else self.pairs.repeat_interleave(count // groups, dim=0)
        return turn(heads, *(table[..., pairs].movedim(-2, 1) for table in angles))  # (B, T, H, P/2) to (B, H, T, P/2)

    @property
    def _served(self) -> bool:
        return super()._served and self.pairs is None


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
            input_bias=self.heads.query_bias is not None,
            output_bias=self.heads.output_bias is not None,
            **self.factory,
        )
        for norm in (layer.query_norm, layer.key_norm):
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
def fill_layer(layer: Attention, heads: AttentionHeads) -> None:
    """Give the layer these heads."""
    layer.input.weight.copy_(torch.cat([rows.flatten(0, 1) for rows in (heads.query, heads.key, heads.value)]))
    layer.output.weight.copy_(heads.output.movedim(0, 1).flatten(1))
    biases = [(heads.query, heads.query_bias), (heads.key, heads.key_bias), (heads.value, heads.value_bias)]
    if heads.query_bias is not None:  # Whisper's keys have none, which is one of 0
        layer.input.bias.copy_(
            torch.cat([(rows.new_zeros(rows.shape[:2]) if one is None else one).flatten() for rows, one in biases])
        )
    if heads.output_bias is not None:
        layer.output.bias.copy_(heads.output_bias)
    norms = ((layer.query_norm, heads.query_scale), (layer.key_norm, heads.key_scale))
    for norm, scale in norms:
        if norm is not None and scale is not None and norm.weight is not None:
            norm.weight.copy_(scale)


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
