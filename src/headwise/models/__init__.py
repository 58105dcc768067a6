"""Models of any shape: `build(shape, options)`. Each is a few lines on top of `blocks`."""

from typing import Any

from torch import nn

from headwise.models.bert import Bert as Bert
from headwise.models.decoder import Decoder as Decoder
from headwise.models.encoder import Encoder as Encoder
from headwise.models.styled import StyledViT as StyledViT
from headwise.models.vit import ViT as ViT
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.styles import check_style

_FAMILIES: dict[str, type[nn.Module]] = {"encoder": Encoder, "decoder": Decoder, "vit": ViT, "bert": Bert}


def build(shape: ModelShape | str, options: ModelOptions | None = None, **factory: Any) -> nn.Module:
    """The model that a shape and options describe; `device` and `dtype` as for any torch module."""
    shape = ModelShape.parse(shape) if isinstance(shape, str) else shape
    options = options or ModelOptions()
    check_style(shape, options)
    if options.style != "vit":
        return StyledViT(shape, options, **factory)
    return _FAMILIES[options.family](options.complete(shape), options, **factory)
