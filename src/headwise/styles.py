"""What vision transformers have beside attention, MLPs and their norms: parameters and multiplications. No torch here.

| style | before the body | in each block | between stages | at the end |
|---|---|---|---|---|
| `xcit` | 3 × 3 convolutions of stride 2, Fourier positions | depthwise local part, scales | | 2 class layers |
| `tnt` | a 7 × 7 convolution of stride 4: words of a patch | inner transformer, joined into patches | | |
| `swin` | patches, a norm | | 2 × 2 neighbours joined | mean of tokens |
| `davit` | a 7 × 7 convolution, a norm | two depthwise convolutions | a 2 × 2 convolution | mean of tokens |

Every count is that of `models/styled.py`, which tests hold equal; XCiT, TNT, Swin and DaViT are its authors' names.
"""

from itertools import pairwise

from headwise.options import ModelOptions
from headwise.shape import AttentionShape, ModelShape
from headwise.spec import SpecError

CLASS_LAYERS, FOURIER = 2, 64  # XCiT's
WORD_STRIDE = 4  # TNT's


def check_style(shape: ModelShape, options: ModelOptions) -> None:
    """Refuse what cannot be built."""
    style, side, last = options.style, options.image // max(1, options.patch), len(shape.stages or (1,))
    if shape.stages and style not in ("swin", "davit"):
        raise SpecError(f"{shape} has stages, which only the styles swin and davit have: give family swin or davit")
    if style in ("swin", "davit") and side % 2 ** (last - 1):
        raise SpecError(f"{side} × {side} patches cannot be halved {last - 1} times: use fewer stages or other patches")
    if style == "xcit" and (options.patch & (options.patch - 1) or shape.width % (options.patch // 2)):
        raise SpecError("style 'xcit' needs patches of a power of two, whose half divides the width")
    if style == "tnt" and options.patch % WORD_STRIDE:
        raise SpecError(f"style 'tnt' cuts patches into squares of {WORD_STRIDE} pixels: use a multiple of that")
    if style != "vit" and options.init != "vit":
        raise SpecError(f"style '{style}' begins as its authors do: leave init out, or use init 'vit'")


def inner_layer(options: ModelOptions) -> tuple[AttentionShape, int]:
    """TNT's inner transformer: its attention, and its MLP."""
    inner = ModelShape.parse(options.inner)
    return inner.layers[0], inner.mlps[0]


def words(options: ModelOptions) -> int:
    """TNT's, of one patch."""
    return (options.patch // WORD_STRIDE) ** 2


def stem_sizes(width: int, options: ModelOptions) -> list[int]:
    """Channels through XCiT's convolutions."""
    halvings = options.patch.bit_length() - 1
    return [options.channels, *(width >> (halvings - 1 - number) for number in range(halvings))]


def stage_tokens(options: ModelOptions, stage: int) -> int:
    """Tokens of one image in a stage."""
    return options.tokens // 4**stage


# ---- parameters ----------------------------------------------------------------------------------------------------


def stem_parameters(w: int, options: ModelOptions) -> int:
    """Before the body."""
    if options.style == "xcit":
        sizes = stem_sizes(w, options)
        convolutions = sum(9 * a * b + 2 * b for a, b in pairwise(sizes))
        return convolutions + FOURIER * w + w + w
    if options.style == "tnt":
        inner, _ = inner_layer(options)
        joined = words(options) * inner.width
        first = 49 * options.channels * inner.width + inner.width + joined
        return first + 2 * joined + joined * w + w + 2 * w + w + options.tokens * w
    side = options.patch if options.style == "swin" else 7
    return side**2 * options.channels * w + w + 2 * w


def block_parameters(w: int, options: ModelOptions) -> int:
    """In each block, of width w, but for TNT's inner layer itself."""
    if options.style == "tnt":
        inner, _ = inner_layer(options)
        return 2 * inner.width + words(options) * inner.width * w + w
    return {"xcit": 27, "davit": 20}.get(options.style, 0) * w


def merge_parameters(w: int, options: ModelOptions) -> int:
    """Behind a stage of width w."""
    return 8 * w + 8 * w**2 if options.style == "swin" else 2 * w + 8 * w**2 + 2 * w


# ---- multiplications -----------------------------------------------------------------------------------------------


def stem_products(w: int, options: ModelOptions) -> int:
    """Of one image."""
    side = options.image
    if options.style == "xcit":
        sizes = stem_sizes(w, options)
        pairs = enumerate(pairwise(sizes), start=1)
        return sum((side >> number) ** 2 * 9 * a * b for number, (a, b) in pairs) + options.tokens * FOURIER * w
    if options.style == "tnt":
        inner, _ = inner_layer(options)
        first = (side // WORD_STRIDE) ** 2 * 49 * options.channels * inner.width
        return first + (options.tokens - 1) * words(options) * inner.width * w
    kernel = options.patch if options.style == "swin" else 7
    return options.tokens * kernel**2 * options.channels * w


def block_products(w: int, tokens: int, options: ModelOptions) -> int:
    """Of one image in one block, but for TNT's inner layer itself."""
    if options.style == "tnt":
        inner, _ = inner_layer(options)
        return (tokens - 1) * words(options) * inner.width * w
    return 18 * w * tokens if options.style in ("xcit", "davit") else 0


def merge_products(w: int, tokens: int) -> int:
    """Behind a stage of width w and so many tokens."""
    return tokens // 4 * 8 * w**2
