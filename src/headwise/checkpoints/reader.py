"""What every reader shares: finding layers by name, counting heads, turning rows into heads and back.

A reader is one file with one class. The usual one only says how its tensors are named:
see docs/guides/adding-a-reader.md.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from headwise.checkpoints.files import Weights
from headwise.checkpoints.heads import AttentionHeads, Cut
from headwise.known import Experts, Known
from headwise.options import ModelOptions
from headwise.shape import DEEPEST, AttentionShape, ModelShape
from headwise.spec import SpecError

LayerWatch = Callable[[Sequence[int]], Iterable[int]]
HEAD_COUNTS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "nhead")


@dataclass(frozen=True)
class Projection:
    """A projection as y = weight · x + bias: heads × rank rows (columns for the output)."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Projections:
    """The four projections of a layer."""

    query: Projection
    key: Projection
    value: Projection
    output: Projection


class Reader(ABC):
    """The attention of one family's checkpoints. Subclasses give names, and what is particular."""

    family: str
    model_types: ClassVar[frozenset[str]] = frozenset()  # of config.json
    signature: str  # of one tensor in every layer; the group `layer` is the prefix of all its names
    mlp_names: ClassVar[Mapping[str, int]] = {}  # tensors whose given dimension is the MLP's hidden width
    causal: bool = False
    uniform: ClassVar[bool] = False  # the configuration has one rank for all layers
    step: ClassVar[int] = 1  # the unrotated part of a head is a multiple of it

    def __init__(self, weights: Weights, heads: int | None = None) -> None:
        self.weights, self.config = weights, weights.config
        matches = (re.fullmatch(self.signature, name) for name in weights)
        self.layers = sorted({match["layer"] for match in matches if match}, key=_by_number)
        if not self.layers:
            raise SpecError(f"'{weights.path}' has no attention layer with the names of {self.family}")
        for name in weights:
            if not weights.shapes[name] and name.endswith("weight") and name.startswith(tuple(self.layers)):
                raise SpecError(f"'{weights.path}': '{name}' is a single number where a layer has a matrix or a vector")
        self.stated_heads = heads
        self.watch: LayerWatch = iter  # may show how far a walk over the layers has come

    @classmethod
    def matches(cls, config: dict[str, Any], names: Iterable[str]) -> bool:
        """Whether a checkpoint is of this family: by its model_type, or where it has none by its names."""
        kind = config.get("model_type")
        known = kind in cls.model_types if kind else True
        return known and any(re.fullmatch(cls.signature, name) for name in names)

    @classmethod
    def described(cls, config: dict[str, Any]) -> Known | None:
        """The model that a configuration of this family describes; None where it cannot be said."""
        return None

    # ---- what a subclass gives -----------------------------------------------------------------------------------

    @abstractmethod
    def heads(self, number: int) -> AttentionHeads:
        """The attention of one layer; nothing but its tensors is read."""

    @abstractmethod
    def cut(self, number: int, cut: Cut) -> dict[str, Tensor]:
        """The layer's tensors with its heads cut."""

    @abstractmethod
    def width(self, layer: str) -> int:
        """The model's width, as the layer's tensors say it."""

    def entrance(self, layer: str) -> str:
        """The name of a weight whose module reads the tokens that attention sees."""
        raise SpecError(f"the reader of {self.family} does not say where tokens enter a layer, which --data needs")

    def order(self, rank: int, rotated: int) -> Tensor:
        """Which of the family's rows each of headwise's is: the rotated part first, in halves."""
        return torch.arange(rank)

    def scale(self, rank: int) -> float:
        """What logits are multiplied by for heads of this rank."""
        return rank**-0.5

    def is_causal(self, number: int) -> bool:
        """Whether a layer sees only the tokens before; of an encoder and a decoder, the decoder's do."""
        return self.causal

    def native(self, shape: ModelShape) -> dict[str, Any] | None:
        """What to change in the family's configuration so that it says this shape; None where it cannot."""
        return None

    # ---- facts ---------------------------------------------------------------------------------------------------

    def numbers(self) -> Iterable[int]:
        """Of the layers, in order."""
        return self.watch(range(len(self.layers)))

    def head_count(self, layer: str) -> int:
        """From the command line, from a shape that headwise wrote, or from the configuration."""
        count = self.stated_heads or find_number(self.config, HEAD_COUNTS)
        if not count:
            width = self.width(layer)
            raise SpecError(
                f"'{self.weights.path}' does not say how many heads its layers have: give --heads N"
                + (f" (a width of {width} often has {width // 64})" if width % 64 == 0 else "")
            )
        return count

    def mlp(self, layer: str) -> int:
        """The MLP's hidden width; 0 where there is none, or a mixture of experts."""
        for name, dimension in self.mlp_names.items():
            if layer + name in self.weights:
                return self.weights.shapes[layer + name][dimension]
        return 0

    def shape_of(self, layers: list[AttentionShape]) -> ModelShape:
        return ModelShape.of(layers, [self.mlp(layer) for layer in self.layers])

    def _each(self, layer: str, rows: int, count: int) -> int:
        if not rows or rows % count:
            raise SpecError(f"'{layer}': {rows} rows cannot be shared by {count} heads; check --heads or the file")
        return rows // count


class ProjectionReader(Reader):
    """Families whose layer is four projections, however they are stored."""

    @abstractmethod
    def parts(self, layer: str) -> Projections:
        """The projections of a layer, each of its four as one matrix."""

    @abstractmethod
    def tensors(self, layer: str, parts: Projections) -> dict[str, Tensor]:
        """Those projections as the family's own tensors: the way back."""

    def frequencies(self, number: int, rank: int) -> Tensor | None:
        """(P/2) radians per token of each rotated pair; none where nothing turns."""
        return None

    def norms(self, layer: str, rank: int) -> tuple[Tensor, Tensor] | None:
        """The weights of the query norm and of the key norm, where there are such norms."""
        return None

    def sinks(self, layer: str) -> Tensor | None:
        """(H): logits of attending to nothing, where heads have such."""
        return None

    def entrance(self, layer: str) -> str:
        return next(iter(self.tensors(layer, self.parts(layer))))

    def width(self, layer: str) -> int:
        return self.parts(layer).query.weight.shape[1]

    def heads(self, number: int) -> AttentionHeads:
        layer = self.layers[number]
        parts, count = self.parts(layer), self.head_count(layer)
        query, output = parts.query.weight, parts.output.weight
        if any(part.weight.dim() != 2 for part in (parts.query, parts.key, parts.value, parts.output)):
            raise SpecError(f"'{layer}': its projections are no matrices")
        rank, v_rank = self._each(layer, query.shape[0], count), self._each(layer, output.shape[1], count)
        kv_heads = self._each(layer, parts.key.weight.shape[0], rank)
        if parts.value.weight.shape[0] != kv_heads * v_rank or count % kv_heads:
            sizes = [tuple(p.weight.shape) for p in (parts.query, parts.key, parts.value, parts.output)]
            raise SpecError(f"'{layer}': projections of {sizes} do not fit together for {count} heads")
        turning = self._frequencies(number, kv_heads, rank)
        order = self.order(rank, 0 if turning is None else 2 * turning.shape[-1])
        norms = self.norms(layer, rank)
        return AttentionHeads(
            query=query.unflatten(0, (count, -1))[:, order],
            key=parts.key.weight.unflatten(0, (kv_heads, -1))[:, order],
            value=parts.value.weight.unflatten(0, (kv_heads, -1)),
            output=output.unflatten(1, (count, -1)).movedim(1, 0),
            query_bias=_bias(parts.query, count, order),
            key_bias=_bias(parts.key, kv_heads, order),
            value_bias=_bias(parts.value, kv_heads),
            output_bias=parts.output.bias,
            frequencies=turning,
            query_scale=None if norms is None else norms[0][..., order],
            key_scale=None if norms is None else norms[1][..., order],
            sinks=self.sinks(layer),
        )

    def cut(self, number: int, cut: Cut) -> dict[str, Tensor]:
        before = self.heads(number)
        heads = before.cut(cut)
        return self.written(number, heads, self.scale(before.shape.qk_rank) / self.scale(heads.shape.qk_rank))

    def written(self, number: int, heads: AttentionHeads, factor: float = 1.0) -> dict[str, Tensor]:
        """Heads as the layer's own tensors; queries times the factor, so that logits keep their size."""
        back = self.order(heads.shape.qk_rank, heads.rotated).argsort()
        query, bias = heads.query * factor, None if heads.query_bias is None else heads.query_bias * factor
        parts = Projections(
            _flat(query[:, back], None if bias is None else bias[:, back]),
            _flat(heads.key[:, back], None if heads.key_bias is None else heads.key_bias[:, back]),
            _flat(heads.value, heads.value_bias),
            Projection(heads.output.movedim(0, 1).flatten(1), heads.output_bias),
        )
        return self.tensors(self.layers[number], parts)

    def _frequencies(self, number: int, kv_heads: int, rank: int) -> Tensor | None:
        """(G, P/2): those that a truncated checkpoint lists, else the family's own."""
        kept = self.config.get("headwise", {}).get("rope_frequencies")
        if kept is not None:
            return None if kept[number] is None else torch.tensor(kept[number], dtype=torch.float64)
        own = self.frequencies(number, rank)
        return None if own is None else own.expand(kv_heads, -1)


class SeparateReader(ProjectionReader):
    """Families that keep queries, keys, values and the output as four linear layers."""

    names: ClassVar[tuple[str, str, str, str]]

    def layer_names(self, layer: str) -> tuple[str, str, str, str]:
        return self.names

    def parts(self, layer: str) -> Projections:
        return Projections(*(self.linear(layer + name) for name in self.layer_names(layer)))

    def tensors(self, layer: str, parts: Projections) -> dict[str, Tensor]:
        four = zip(self.layer_names(layer), (parts.query, parts.key, parts.value, parts.output), strict=True)
        return {name: tensor for place, part in four for name, tensor in tensors_named(layer + place, part).items()}

    def linear(self, name: str) -> Projection:
        return Projection(self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))


def tensors_named(name: str, part: Projection) -> dict[str, Tensor]:
    """A linear layer as tensors by name."""
    return {f"{name}.weight": part.weight} | ({} if part.bias is None else {f"{name}.bias": part.bias})


def split_rows(
    fused: Projection, output: Projection, count: int, layer: str, kv_heads: int | None = None
) -> Projections:
    """Queries, keys and values out of one matrix that stacks them; as many key/value heads as heads, or fewer."""
    shared, rows = kv_heads or count, fused.weight.shape[0]
    v_rank = output.weight.shape[1] // count
    rank = (rows - shared * v_rank) // (count + shared)
    sizes_of = [count * rank, shared * rank, shared * v_rank]
    if min(rank, v_rank) < 1 or sum(sizes_of) != rows or count * v_rank != output.weight.shape[1]:
        sizes = f"{tuple(fused.weight.shape)} and {tuple(output.weight.shape)}"
        raise SpecError(f"'{layer}': projections of {sizes} do not fit together for {count} heads")
    biases = [None] * 3 if fused.bias is None else list(fused.bias.split(sizes_of))
    made = [Projection(weight, bias) for weight, bias in zip(fused.weight.split(sizes_of), biases, strict=True)]
    return Projections(made[0], made[1], made[2], output)


def joined_rows(parts: Projections) -> Projection:
    """The way back from `split_rows`."""
    three = (parts.query, parts.key, parts.value)
    biases = [part.bias for part in three if part.bias is not None]
    return Projection(torch.cat([part.weight for part in three]), torch.cat(biases) if biases else None)


def stated(config: dict[str, Any], *names: str) -> int:
    """The whole number that a configuration has under the first of these names it knows."""
    for name in names:
        if isinstance(config.get(name), int):
            most = DEEPEST if "layer" in name else math.inf  # no list is made for a billion of them
            if not 0 <= config[name] <= most:
                raise SpecError(f"the configuration says that {name} is {config[name]}, which no model has")
            return int(config[name])
    raise SpecError(f"the configuration does not say {' or '.join(names)}, without which there is no shape")


def activation_of(name: str) -> Any:
    """headwise's word for one of transformers' activations."""
    return {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}.get(name, name)


def known_of(
    layer: AttentionShape,
    depth: int,
    mlp: int | Sequence[int],
    options: ModelOptions,
    windows: tuple[int, ...] = (),
    experts: Experts | None = None,
) -> Known:
    """A model of layers with equal attention; an MLP of 0 stands for `experts`."""
    mlps = [mlp] * depth if isinstance(mlp, int) else mlp
    return Known("", ModelShape.of([layer] * depth, mlps), options, windows=windows, experts=experts)


def find_number(config: Any, names: Iterable[str]) -> int | None:
    """The first whole number under one of the names, at the top before further down."""
    level = [config]
    while level:
        for part in level:
            for name in names:
                if isinstance(part.get(name), int):
                    return part[name]
        level = [value for part in level for value in part.values() if isinstance(value, dict)]
    return None


def _flat(rows: Tensor, bias: Tensor | None) -> Projection:
    return Projection(rows.flatten(0, 1), None if bias is None else bias.flatten())


def _bias(part: Projection, heads: int, order: Tensor | None = None) -> Tensor | None:
    if part.bias is None:
        return None
    split = part.bias.unflatten(0, (heads, -1))
    return split if order is None else split[:, order]


def _by_number(layer: str) -> list[Any]:
    """layers.10 comes after layers.9."""
    return [(int(part), "") if part.isdecimal() and len(part) < 10 else (-1, part) for part in layer.split(".")]
