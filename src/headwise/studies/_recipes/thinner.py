"""Depth for heads: the leaner paper's pair of shapes, its control, and shapes of equal parameters."""

from collections.abc import Iterator

from headwise.cost import parameters
from headwise.ledger.study import Preset
from headwise.options import ModelOptions
from headwise.shape import ModelShape

MARGIN = 0.01  # of a loss on text that counts as kept


class ThinnerPreset(Preset):
    """The base and its thin variants, each (layers, heads), and the depths of the variants of equal parameters."""

    width: int
    base: tuple[int, int]
    thin: tuple[tuple[int, int], ...]
    equal: tuple[int, ...]


def variants(preset: ThinnerPreset, options: ModelOptions) -> Iterator[tuple[str, ModelShape]]:
    """Every variant's kind and shape: the base, the paper's thin ones, their controls, those of equal parameters."""
    depth, heads = preset.base
    base = ModelShape(width=preset.width, heads=heads, depth=depth)
    yield "base", base
    for layers, more in preset.thin:
        yield "thin", ModelShape(width=preset.width, heads=more, depth=layers)
    for layers in dict.fromkeys(layers for layers, _ in preset.thin):
        yield "control", ModelShape(width=preset.width, heads=heads, depth=layers)
    for layers in preset.equal:
        yield "equal parameters", as_large(base, layers, options)


def as_large(base: ModelShape, depth: int, options: ModelOptions) -> ModelShape:
    """So many layers with heads of the base's size, as many as come nearest to the base's parameters; its MLP stays."""

    def shaped(heads: int) -> ModelShape:
        return ModelShape(width=base.width, heads=heads, qk_rank=size, depth=depth, mlp=base.mlps[0])

    size = base.layers[0].qk_rank
    wanted, one, two = (parameters(shape, options)["total"] for shape in (base, shaped(1), shaped(2)))
    return shaped(1 + round((wanted - one) / (two - one)))


def variant_label(kind: str, shape: ModelShape) -> str:
    """What the grid calls a variant: part of stored and pinned places, so its wording stays."""
    layer = shape.layers[0]
    return f"{kind}: {shape.depth} × {layer.heads} heads of {layer.qk_rank}"
