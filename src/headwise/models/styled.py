"""Vision transformers with more around attention than a ViT has: XCiT, TNT, Swin and DaViT, of any shape and mixer.

`options.style` says which, and `styles.py` counts it. Stages, where the shape has them, halve the side of the grid of
patches and double width and heads. Class attention changes the class token alone, as CaiT's paper writes it.
"""

from itertools import pairwise
from math import isqrt
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.mixer import find_mixer, layer_mixers
from headwise.models.blocks import Block, make_norm
from headwise.options import ModelOptions
from headwise.shape import AttentionShape, ModelShape
from headwise.styles import CLASS_LAYERS, FOURIER, WORD_STRIDE, check_style, inner_layer, stem_sizes, words

LAYER_SCALE = 1.0  # XCiT's, where it has up to 12 layers


class StyledViT(nn.Module):
    """Images in, class logits out."""

    def __init__(self, shape: ModelShape, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        check_style(shape, options)
        self.shape, self.options = shape, options
        self.stem = _STEMS[options.style](shape.width, options, **factory)
        self.body = _Body(shape, options, **factory)
        width = shape.layers[-1].width
        self.head = nn.Linear(width, options.classes, **factory) if options.head == "classes" else None
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, side, side) to (batch, classes)."""
        x = self.body(*self.stem(images))
        return x if self.head is None else cast(Tensor, self.head(x))


class _Body(nn.Module):
    """Blocks, what joins stages, and what is made of the tokens: one vector per image."""

    def __init__(self, shape: ModelShape, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        self.shape, self.options = shape, options
        kind = TNTBlock if options.style == "tnt" else StyledBlock
        mixers = layer_mixers(options, shape)
        self.blocks = nn.ModuleList(
            kind(layer, mlp, options, mixer, number, **factory)
            for number, (layer, mlp, mixer) in enumerate(zip(shape.layers, shape.mlps, mixers, strict=True))
        )
        widths = [shape.width * 2**stage for stage in range(len(shape.stages) - 1)]
        self.merges = nn.ModuleList(_Merge(width, options, **factory) for width in widths)
        layers = CLASS_LAYERS if options.style == "xcit" else 0
        last = shape.layers[-1], shape.mlps[-1]
        self.class_blocks = nn.ModuleList(ClassBlock(*last, options, **factory) for _ in range(layers))
        self.final_norm = make_norm(options, last[0].width, **factory)

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:
        """Tokens, and what a style carries beside them: TNT's words, or XCiT's class token."""
        merges, stage = iter(self.merges), 0
        for block, place in zip(self.blocks, self.shape.stage_of, strict=True):
            x = x if place == stage else next(merges)(x)
            stage = place
            x, beside = block(x, beside)
        if self.class_blocks:
            x = torch.cat([beside.expand(len(x), 1, -1), x], dim=1)
            for block in self.class_blocks:
                x = block(x)
        if self.options.style == "davit":
            return cast(Tensor, self.final_norm(x.mean(1)))
        x = self.final_norm(x)
        return x.mean(1) if self.options.style == "swin" else x[:, 0]


# ---- blocks --------------------------------------------------------------------------------------------------------


class StyledBlock(Block):
    """A block with what XCiT and DaViT add to it; Swin adds nothing."""

    def __init__(self, shape: AttentionShape, mlp: int, options: ModelOptions, *place: Any, **factory: Any) -> None:
        super().__init__(shape, mlp, options, *place, **factory)
        self.style, width = options.style, shape.width
        if self.style == "xcit":
            self.local_norm = make_norm(options, width, **factory)
            self.local = nn.Sequential(
                _depthwise(width, **factory), nn.GELU(), nn.BatchNorm2d(width, **factory), _depthwise(width, **factory)
            )
            self.scales = nn.Parameter(torch.full((3, width), LAYER_SCALE, **factory))
        elif self.style == "davit":
            self.places = nn.ModuleList(_depthwise(width, **factory) for _ in range(2))

    def forward(self, x: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        mlp = cast(nn.Module, self.mlp)
        if self.style == "xcit":
            x = x + self.scales[0] * self.attention(self.norms[0](x))
            x = x + self.scales[1] * on_grid(self.local, self.local_norm(x))
            return x + self.scales[2] * mlp(self.norms[1](x)), beside
        if self.style == "davit":
            x = x + on_grid(self.places[0], x)
            x = x + self.attention(self.norms[0](x))
            x = x + on_grid(self.places[1], x)
            return x + mlp(self.norms[1](x)), beside
        return super().forward(x), beside


class ClassBlock(Block):
    """Class attention and an MLP of the class token, each with a scale."""

    def __init__(self, shape: AttentionShape, mlp: int, options: ModelOptions, **factory: Any) -> None:
        super().__init__(shape, mlp, options, find_mixer("class-token"), **factory)
        self.scales = nn.Parameter(torch.full((2, shape.width), LAYER_SCALE, **factory))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        first, rest = x[:, :1], x[:, 1:]
        first = first + self.scales[0] * cast(Tensor, self.attention(self.norms[0](x)))[:, :1]
        first = first + self.scales[1] * cast(nn.Module, self.mlp)(self.norms[1](first))
        return torch.cat([first, rest], dim=1)


class TNTBlock(Block):
    """The words of each patch meet, are joined into the patch, and then patches meet."""

    def __init__(self, shape: AttentionShape, mlp: int, options: ModelOptions, *place: Any, **factory: Any) -> None:
        super().__init__(shape, mlp, options, *place, **factory)
        layer, hidden = inner_layer(options)
        self.inner = Block(layer, hidden, options, **factory)
        self.inner_norm = make_norm(options, layer.width, **factory)
        self.join = nn.Linear(words(options) * layer.width, shape.width, **factory)

    def forward(self, x: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        beside = self.inner(beside)
        joined = self.join(self.inner_norm(beside).flatten(1)).unflatten(0, (len(x), -1))
        return super().forward(x + F.pad(joined, (0, 0, 1, 0))), beside


def _depthwise(width: int, **factory: Any) -> nn.Conv2d:
    return nn.Conv2d(width, width, 3, padding=1, groups=width, **factory)


def on_grid(part: nn.Module, x: Tensor) -> Tensor:
    """A convolution of (B, side², C)."""
    side = isqrt(x.shape[1])
    return cast(Tensor, part(x.mT.unflatten(2, (side, side)))).flatten(2).mT


class _Merge(nn.Module):
    """Between stages: 2 × 2 neighbours become one token of twice the width."""

    def __init__(self, width: int, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        self.joined = options.style == "swin"
        self.norm = make_norm(options, 4 * width if self.joined else width, **factory)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=not self.joined, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """Swin joins rows first; DaViT's 2 × 2 convolution has channels first, and a norm before."""
        x, side = x if self.joined else self.norm(x), isqrt(x.shape[1]) // 2
        grid = x.unflatten(1, (side, 2, side, 2))  # B, row, in row, column, in column, C
        if self.joined:
            return cast(Tensor, self.reduce(self.norm(grid.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2))))
        return cast(Tensor, self.reduce(grid.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2)))


# ---- stems: tokens, and what is carried beside them -----------------------------------------------------------------


class _PatchStem(nn.Module):
    """Swin's patches, or DaViT's overlapping ones; nothing beside."""

    def __init__(self, width: int, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        size, padding = (options.patch, 0) if options.style == "swin" else (7, 3)
        self.patches = nn.Conv2d(options.channels, width, size, options.patch, padding, **factory)
        self.norm = make_norm(options, width, **factory)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.patches(images).flatten(2).mT)
        return x, x


class _XCiTStem(nn.Module):
    """Convolutions that halve the side, sines and cosines of places; the class token beside."""

    def __init__(self, width: int, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        sizes, parts = stem_sizes(width, options), []
        for before, after in pairwise(sizes):
            parts += [nn.Conv2d(before, after, 3, 2, 1, bias=False, **factory), nn.BatchNorm2d(after, **factory)]
            parts += [nn.GELU()]
        self.convolutions = nn.Sequential(*parts[:-1])
        self.places = nn.Linear(FOURIER, width, **factory)
        self.class_token = nn.Parameter(torch.empty(width, **factory))
        nn.init.normal_(self.class_token, std=0.02)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        grid = self.convolutions(images)
        waves = _waves(grid.shape[-1], grid.device, self.places.weight.dtype)
        return grid.flatten(2).mT + self.places(waves), self.class_token


def _waves(side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(side², FOURIER): 16 sines and 16 cosines of the row, then of the column."""
    half = FOURIER // 2
    place = torch.arange(1, side + 1, device=device, dtype=torch.float32) / (side + 1e-6) * (2 * torch.pi)
    periods = 10_000.0 ** (torch.arange(0, half, 2, device=device, dtype=torch.float32) / half)
    angle = place[:, None] / periods
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).to(dtype)
    rows, columns = waves[:, None].expand(-1, side, -1), waves.expand(side, -1, -1)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)


class _TNTStem(nn.Module):
    """Words of each patch, and the patches made of them; a class token in front."""

    def __init__(self, width: int, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        inner, self.across = inner_layer(options)[0].width, options.patch // WORD_STRIDE
        joined = words(options) * inner
        self.words = nn.Conv2d(options.channels, inner, 7, WORD_STRIDE, 3, **factory)
        self.word_places = nn.Parameter(torch.empty(words(options), inner, **factory))
        self.norms = nn.ModuleList(make_norm(options, size, **factory) for size in (joined, width))
        self.join = nn.Linear(joined, width, **factory)
        self.class_token = nn.Parameter(torch.empty(width, **factory))
        self.places = nn.Parameter(torch.empty(options.tokens, width, **factory))
        for table in (self.word_places, self.class_token, self.places):
            nn.init.normal_(table, std=0.02)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        grid = self.words(images).unflatten(3, (-1, self.across)).unflatten(2, (-1, self.across))
        found = grid.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(1, 2) + self.word_places  # B, patches, words, C
        patches = self.norms[1](self.join(self.norms[0](found.flatten(2))))
        first = self.class_token.expand(len(patches), 1, -1)
        return torch.cat([first, patches], dim=1) + self.places, found.flatten(0, 1)


_STEMS: dict[str, Any] = {"swin": _PatchStem, "davit": _PatchStem, "xcit": _XCiTStem, "tnt": _TNTStem}
