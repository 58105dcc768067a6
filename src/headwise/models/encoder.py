"""The encoder: vectors in, vectors out. It is also the body of every other model."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.layers.cache import KVCache
from headwise.mixer import layer_mixers
from headwise.models.blocks import Block, init_linear, make_norm
from headwise.models.init import INITS, begin_body
from headwise.options import ModelOptions
from headwise.shape import ModelShape


class Encoder(nn.Module):
    """A stack of blocks. `preset("encoder")` is the rank paper's: post-norm, unit norms with a scalar, biases, ReLU."""

    def __init__(self, shape: ModelShape, options: ModelOptions | None = None, **factory: Any) -> None:
        super().__init__()
        options = options or ModelOptions()
        shape = options.complete(shape)
        self.shape, self.options = shape, options
        self.blocks = nn.ModuleList(
            Block(attention, mlp, options, mixer, number, **factory)
            for number, (attention, mlp, mixer) in enumerate(
                zip(shape.layers, shape.mlps, layer_mixers(options, shape), strict=True)
            )
        )
        self.final_norm = make_norm(options, shape.width, **factory) if options.final_norm else None
        if options.init in INITS:
            begin_body(cast(list[Block], self.blocks), options.init)
        elif options.init == "torch":
            self._begin_as_torch()
        elif options.norm_place == "pre" and options.residual:
            self._tame_residuals()
        if options.init == "orthogonal":
            self._make_orthogonal()

    def _begin_as_torch(self) -> None:
        """Each `width` of heads as one nn.MultiheadAttention begins, the MLP as nn.Linear does."""
        width = self.shape.width
        for block in cast(list[Block], self.blocks):
            for linear in (module for module in block.attention.modules() if isinstance(module, nn.Linear)):
                nn.init.uniform_(linear.weight, -((1.5 / width) ** 0.5), (1.5 / width) ** 0.5)  # Xavier of 3w × w
            nn.init.uniform_(block.attention.output.weight, -(width**-0.5), width**-0.5)
            if block.mlp is not None:
                block.mlp.input.reset_parameters()
                block.mlp.output.reset_parameters()

    def _tame_residuals(self) -> None:
        """Before a norm the stream adds up: each of its 2·depth parts starts with 1 / (2·depth) of the variance."""
        scale = (2 * self.shape.depth) ** -0.5
        for block in cast(list[Block], self.blocks):
            init_linear(block.attention.output, scale)
            if block.mlp is not None:
                init_linear(block.mlp.output, scale)

    @torch.no_grad()
    def _make_orthogonal(self) -> None:
        """Every matrix of attention as it was drawn, in direction and size, but with equal singular values."""
        for attention in (block.attention for block in cast(list[Block], self.blocks)):
            for linear in (module for module in attention.modules() if isinstance(module, nn.Linear)):
                sizes = attention.sections if linear is attention.input else [linear.out_features]
                for part in linear.weight.split(sizes):
                    left, values, right = torch.linalg.svd(part, full_matrices=False)
                    part.copy_(left @ right * values.square().mean().sqrt())

    def forward(
        self,
        x: Tensor,
        *,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
        caches: list[KVCache] | None = None,
    ) -> Tensor:
        """(batch, tokens, width) to the same; `padding` (batch, tokens) is true for real tokens."""
        for layer, block in enumerate(self.blocks):
            x = block(x, padding=padding, positions=positions, cache=caches[layer] if caches else None)
        return x if self.final_norm is None else self.final_norm(x)
