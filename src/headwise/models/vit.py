"""The vision transformer: images in, class logits out."""

from typing import Any

import torch
from torch import Tensor, nn

from headwise.models.blocks import init_linear
from headwise.models.encoder import Encoder
from headwise.models.init import INITS, begin_edges
from headwise.options import ModelOptions
from headwise.shape import ModelShape

WHITENING_STEPS = 20  # each makes a small singular value half as large again: enough where κ is below some 1,000


class ViT(nn.Module):
    """Patches as tokens, a class token in front, learned positions. Without a head: the class token's vector."""

    def __init__(self, shape: ModelShape, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        self.shape, self.options = shape, options
        width = shape.width
        self.patches = nn.Linear(options.channels * options.patch**2, width, **factory)
        self.class_token = nn.Parameter(torch.zeros(width, **factory))
        self.places = nn.Parameter(torch.empty(options.tokens, width, **factory))
        self.body = Encoder(shape, options, **factory)
        self.head = nn.Linear(width, options.classes, **factory) if options.head == "classes" else None
        init_linear(self.patches)
        nn.init.normal_(self.places, std=0.02)
        if self.head is not None:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        if options.init in INITS:
            begin_edges(self, options.init)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, side, side) to (batch, classes)."""
        x = self.patches(cut_patches(images, self.options.patch))
        first = self.class_token.expand(x.shape[0], 1, -1)
        x = torch.cat([first, x], dim=1) + self.places
        x = self.body(whiten(x) if self.options.whitened else x)[:, 0]
        return x if self.head is None else self.head(x)


def cut_patches(images: Tensor, patch: int) -> Tensor:
    """(batch, channels, side, side) to (batch, patches, channels · patch²), in the order of a convolution's weight."""
    batch, channels, height, width = images.shape
    grid = images.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def whiten(tokens: Tensor) -> Tensor:
    """(batch, tokens, width) to the nearest matrices with equal singular values, so κ = 1, of unit variance.

    By Newton and Schulz: derivatives of a decomposition would divide by differences of singular values.
    """
    x = tokens / torch.linalg.matrix_norm(tokens, keepdim=True)
    for _ in range(WHITENING_STEPS):
        x = 1.5 * x - 0.5 * (x @ x.mT) @ x
    return x * max(x.shape[-2:]) ** 0.5
