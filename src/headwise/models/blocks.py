"""What every model is made of: norms, the MLP, and the block that joins attention to them."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.layers.cache import KVCache
from headwise.layers.cpu.compiled import CrossEntropySize, MLPSize, NormSize, WideMLPSize
from headwise.layers.cpu.cross_entropy import FusedCrossEntropy, cross_entropy_size
from headwise.layers.cpu.linear import product
from headwise.layers.cpu.mlp import TiledMLP, mlp_size, panelled
from headwise.layers.cpu.norm import NormKind, TiledNorm, norm_size
from headwise.layers.cpu.tiled import served
from headwise.layers.cpu.wide_mlp import WideMLP, wide_mlp_size
from headwise.layers.paths import Pathed
from headwise.mixer import ATTENTION, Mixer
from headwise.mixers import make_layer
from headwise.options import ModelOptions
from headwise.shape import AttentionShape

ACTIVATIONS = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


class Norm(Pathed):
    """Of each token: LayerNorm, RMS norm, or to unit length times one learned scalar, the rank paper's norm.

    Without that scalar a residual block cannot weigh its two halves, and rank 1 stays at the no-skill baseline.
    """

    def __init__(self, kind: NormKind, width: int, eps: float = 1e-6, affine: bool = True, **factory: Any) -> None:
        super().__init__()
        self.kind, self.width, self.eps = kind, width, eps
        self.scale = nn.Parameter(torch.ones((), **factory)) if kind == "unit" else None
        self.weight = nn.Parameter(torch.ones(width, **factory)) if affine and kind != "unit" else None
        self.bias = nn.Parameter(torch.zeros(width, **factory)) if affine and kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        return self.of_sum(x)[1]

    def of_sum(self, x: Tensor, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x + added (x, if nothing is), and its norm: one visit to each token on the `generated` path."""
        size = self.kernel(1, x.dtype) if self.path == "generated" else None
        weight = self.weight if self.scale is None else self.scale
        if size is not None and served(x, x if weight is None else weight, self.width, size):
            total, normed = TiledNorm.apply(x, added, weight, self.bias, self.eps, size)
            return total, normed
        x = x if added is None else x + added
        if self.scale is not None:
            return x, F.normalize(x, dim=-1, eps=self.eps) * self.scale
        if self.kind == "layer":
            return x, F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)
        return x, F.rms_norm(x, (self.width,), self.weight, self.eps)

    def kernel(self, tokens: int, dtype: torch.dtype = torch.float32) -> NormSize | None:
        return norm_size(self.kind, self.width, dtype)

    def extra_repr(self) -> str:
        return f"{self.kind}, {self.width}, eps={self.eps}"


class NoNorm(nn.Identity):
    """In a norm's place."""

    def of_sum(self, x: Tensor, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = x if added is None else x + added
        return x, x


def make_norm(options: ModelOptions, width: int, **factory: Any) -> Norm | NoNorm:
    if options.norm == "none":
        return NoNorm()
    kind, _, plain = options.norm.partition("-")
    return Norm(cast(NormKind, kind), width, options.norm_eps, not plain, **factory)


class MLP(Pathed):
    """Two products with an activation between them; gated, the first gives twice the width: half gates the other.

    The `generated` path goes through a compiled kernel, which has first derivatives only.
    """

    def __init__(self, width: int, hidden: int, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        bias = options.bias == "all"
        self.gated = options.mlp_kind == "gated"
        self.activation = options.activation
        self.input = nn.Linear(width, hidden * (2 if self.gated else 1), bias=bias, **factory)
        self.output = nn.Linear(hidden, width, bias=bias, **factory)
        init_linear(self.input)
        init_linear(self.output)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Of every token; with a residual stream, what that becomes by it."""
        size = self._kernel(x)
        if size is not None:
            return self._by_kernel(x, residual, size)
        multiply = product if self.path == "generated" else F.linear
        hidden = multiply(x, self.input.weight, self.input.bias)
        activate = ACTIVATIONS[self.activation]
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            hidden = activate(gate) * hidden
        else:
            hidden = activate(hidden)
        output = multiply(hidden, self.output.weight, self.output.bias)
        return output if residual is None else residual + output

    def kernel(self, tokens: int, dtype: torch.dtype = torch.float32) -> MLPSize | WideMLPSize | None:
        width, kind = self.input.in_features, (self.activation, self.gated, dtype)
        return mlp_size(width, *kind) or wide_mlp_size(width, self.output.in_features, *kind)

    def _by_kernel(self, x: Tensor, residual: Tensor | None, size: MLPSize | WideMLPSize) -> Tensor:
        if isinstance(size, MLPSize):
            made, sums = self.prepared.get(self._panels)
            output: Tensor = TiledMLP.apply(x, residual, *made, size, sums)
            return output
        weights = self.input.weight, self.input.bias, self.output.weight, self.output.bias
        output = WideMLP.apply(x, residual, *weights, size)
        return output

    def _kernel(self, x: Tensor) -> MLPSize | WideMLPSize | None:
        """The compiled kernel for such tokens, if there is one and the path is to use it."""
        size = self.kernel(1, x.dtype) if self.path == "generated" else None
        return size if size and served(x, self.input.weight, self.input.in_features, size) else None

    def _panels(self) -> tuple[Tensor, ...]:
        return panelled(self.input.weight, self.input.bias, self.output.weight, self.output.bias, self.gated)


class CrossEntropy(Pathed):
    """Σ weight · cross-entropy, of tokens' vectors and the table of an output projection; labels of weight 0 are free.

    On the `generated` path a batch's logits are never there all at once, and those that do not count are not made.
    """

    def __init__(self, softcap: float) -> None:
        super().__init__()
        self.softcap = softcap

    def forward(self, x: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor) -> Tensor:
        """Of (N, width), (vocab, width), (vocab), (N) and (N)."""
        size = self.kernel(1, x.dtype) if self.path == "generated" else None
        if size is not None and served(x, table, table.shape[1], size):
            loss: Tensor = FusedCrossEntropy.apply(x, table, bias, labels, weights, self.softcap, size)
            return loss
        logits = self.capped(F.linear(x, table, bias))
        return (F.cross_entropy(logits, labels, reduction="none") * weights).sum()

    def capped(self, logits: Tensor) -> Tensor:
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits

    def kernel(self, tokens: int, dtype: torch.dtype = torch.float32) -> CrossEntropySize | None:
        return cross_entropy_size(self.softcap, dtype)


def counted(labels: Tensor, weights: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Labels, weights and others of the tokens that count, (N, ...): all but those of weight 0."""
    tokens = tuple(one.flatten(0, 1) for one in (labels, weights, *others))
    counts = tokens[1] != 0
    return tokens if bool(counts.all()) else tuple(one[counts] for one in tokens)


class Block(nn.Module):
    """Attention, or the mixer in its place, and an MLP, each added to the residual stream, if there is one.

    `norm_place` is where norms stand.
    """

    def __init__(
        self,
        shape: AttentionShape,
        mlp: int,
        options: ModelOptions,
        mixer: Mixer = ATTENTION,
        number: int = 0,
        **factory: Any,
    ) -> None:
        super().__init__()
        self.place, self.residual = options.norm_place, options.residual
        self.dropout = nn.Dropout(options.dropout)
        self.attention = make_layer(mixer, shape, options, number, **factory)
        self.mlp = MLP(shape.width, mlp, options, **factory) if mlp else None
        norms = (2 if mlp else 1) * (2 if self.place == "sandwich" else 1)
        self.norms = nn.ModuleList(make_norm(options, shape.width, **factory) for _ in range(norms))

    def forward(
        self,
        x: Tensor,
        *,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        def attend(y: Tensor) -> Tensor:
            return self.dropout(self.attention(y, padding=padding, positions=positions, cache=cache))

        if self.place == "pre" and self.residual:
            return self._before(x, attend)
        norms = iter(cast(list[Norm], self.norms))
        x, mlp = self._around(x, norms, attend), self.mlp
        return x if mlp is None else self._around(x, norms, lambda y: self.dropout(mlp(y)))

    def _before(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """The usual block, with each norm and each addition in one visit to the residual stream."""
        norms = cast(list[Norm], self.norms)
        x, y = norms[0].of_sum(x)
        y = attend(y)
        if self.mlp is None:
            return x + y
        x, y = norms[1].of_sum(x, y)
        dropped = self.dropout.p and self.training
        return x + self.dropout(self.mlp(y)) if dropped else cast(Tensor, self.mlp(y, x))

    def _around(self, x: Tensor, norms: Iterator[Norm], part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.place == "post":
            return next(norms).of_sum(part(x), x if self.residual else None)[1]
        y = part(next(norms)(x))
        y = next(norms)(y) if self.place == "sandwich" else y
        return x + y if self.residual else y


def init_linear(linear: nn.Linear, scale: float = 1.0) -> None:
    """Normal with variance scale² / fan-in, biases 0: unit-variance inputs give outputs of variance scale²."""
    nn.init.normal_(linear.weight, std=scale * linear.in_features**-0.5)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def make_embedding(rows: int, width: int, scale: float = 1.0, **factory: Any) -> nn.Embedding:
    embedding = nn.Embedding(rows, width, **factory)
    nn.init.normal_(embedding.weight, std=scale)
    return embedding
