"""What every model is made of: norms, the MLP, and the block that joins attention to them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.layers.cache import KVCache
from headwise.layers.cpu.compiled import MLPSize, NormSize
from headwise.layers.cpu.tiled import TiledMLP, TiledNorm, mlp_size, norm_size, panels, served
from headwise.layers.paths import Pathed
from headwise.options import ModelOptions
from headwise.shape import AttentionShape

ACTIVATIONS = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


class UnitNorm(Pathed):
    """Each token to unit length, times one learned scalar: the rank paper's norm.

    Without the scalar a residual block cannot weigh its two halves, and rank 1 stays at the no-skill baseline.
    """

    def __init__(self, width: int, eps: float = 1e-6, **factory: Any) -> None:
        super().__init__()
        self.width, self.eps = width, eps
        self.scale = nn.Parameter(torch.ones((), **factory))

    def forward(self, x: Tensor) -> Tensor:
        size = self.kernel(1, x.dtype) if self.path == "generated" else None
        if size is not None and served(x, self.scale, self.width, size):
            output: Tensor = TiledNorm.apply(x, self.scale, self.eps, size)
            return output
        return F.normalize(x, dim=-1, eps=self.eps) * self.scale

    def kernel(self, tokens: int, dtype: torch.dtype = torch.float32) -> NormSize | None:
        return norm_size(self.width, dtype)


def make_norm(options: ModelOptions, width: int, **factory: Any) -> nn.Module:
    if options.norm == "none":
        return nn.Identity()
    if options.norm == "unit":
        return UnitNorm(width, options.norm_eps, **factory)
    kind = nn.LayerNorm if options.norm.startswith("layer") else nn.RMSNorm
    return kind(width, options.norm_eps, elementwise_affine=not options.norm.endswith("plain"), **factory)


def make_attention(shape: AttentionShape, options: ModelOptions, **factory: Any) -> Attention:
    return Attention(
        shape,
        causal=options.causal,
        rope_base=options.rope_base if options.positions == "rotary" else None,
        qk_norm=options.qk_norm,
        norm_eps=options.norm_eps,
        hardmax=options.hardmax,
        logit_scale=options.logit_scale,
        input_bias=options.bias != "none",
        output_bias=options.bias == "all",
        dropout=options.dropout,
        output_scale=options.output_scale,
        **factory,
    )


class MLP(Pathed):
    """Two products with an activation between them; gated, the first gives twice the width: half gates the other.

    On the `generated` path a ReLU goes through a compiled kernel, which has first derivatives only.
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

    def forward(self, x: Tensor) -> Tensor:
        size = self._kernel(x)
        if size is not None:
            made, sums = self.prepared.get(self._panels)
            output: Tensor = TiledMLP.apply(x, *made, size, sums)
            return output
        hidden = self.input(x)
        activate = ACTIVATIONS[self.activation]
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            return self.output(activate(gate) * hidden)
        return self.output(activate(hidden))

    def kernel(self, tokens: int, dtype: torch.dtype = torch.float32) -> MLPSize | None:
        known = self.activation == "relu" and not self.gated
        return mlp_size(self.input.in_features, self.input.out_features, dtype) if known else None

    def _kernel(self, x: Tensor) -> MLPSize | None:
        """The compiled kernel for such tokens, if there is one and the path is to use it."""
        size = self.kernel(1, x.dtype) if self.path == "generated" else None
        return size if size and served(x, self.input.weight, self.input.in_features, size) else None

    def _panels(self) -> tuple[Tensor, ...]:
        w1, w2 = self.input.weight, self.output.weight
        b1 = w1.new_zeros(len(w1)) if self.input.bias is None else self.input.bias
        b2 = w2.new_zeros(len(w2)) if self.output.bias is None else self.output.bias
        return panels(w1.mT), b1, panels(w2), b2, w1.detach().contiguous(), w2.detach().mT.contiguous()


class Block(nn.Module):
    """Attention and an MLP, each added to the residual stream (if there is one); `norm_place` is where norms stand."""

    def __init__(self, shape: AttentionShape, mlp: int, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        self.place, self.residual = options.norm_place, options.residual
        self.dropout = nn.Dropout(options.dropout)
        self.attention = make_attention(shape, options, **factory)
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
        norms = iter(self.norms)
        x = self._add(x, norms, lambda y: self.attention(y, padding=padding, positions=positions, cache=cache))
        return x if self.mlp is None else self._add(x, norms, self.mlp)

    def _add(self, x: Tensor, norms: Any, part: Any) -> Tensor:
        if self.place == "post":
            y = self.dropout(part(x))
            return next(norms)(x + y if self.residual else y)
        y = part(next(norms)(x))
        y = self.dropout(next(norms)(y) if self.place == "sandwich" else y)
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
