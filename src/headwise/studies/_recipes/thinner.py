"""Depth for heads: the leaner paper's pair of shapes, its control, and shapes of equal parameters."""

from collections.abc import Iterator

from headwise.cost import parameters
from headwise.ledger.claims import Variant
from headwise.ledger.study import Preset
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.store.rows import Row

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
    """What tables and charts call a variant: "thin (2 layers, 8 heads, head dim 4)"."""
    layer = shape.layers[0]
    layers, heads = (
        f"{count} {word}{'s' * (count > 1)}" for count, word in ((shape.depth, "layer"), (layer.heads, "head"))
    )
    return f"{kind} ({layers}, {heads}, head dim {layer.qk_rank})"


def labelled(kind: str, rows: list[Row]) -> Variant:
    """One side of a comparison whose place in the grid has its shape."""
    return Variant(variant_label(kind, ModelShape.parse(rows[0].cell["shape"])) if rows else kind, rows)
