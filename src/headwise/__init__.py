"""headwise: a laboratory for the shape of attention.

Names are loaded when first used, so that `import headwise` and `headwise --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.checkpoints.swap import swap as swap
    from headwise.cost import price as price
    from headwise.known import KNOWN as KNOWN
    from headwise.known import find as find
    from headwise.layers.attention import Attention as Attention
    from headwise.layers.cache import KVCache as KVCache
    from headwise.layers.multihead import MultiheadAttention as MultiheadAttention
    from headwise.models import build as build
    from headwise.options import ModelOptions as ModelOptions
    from headwise.options import preset as preset
    from headwise.search import equal_cost as equal_cost
    from headwise.shape import AttentionShape as AttentionShape
    from headwise.shape import ModelShape as ModelShape
    from headwise.shape import ShapeError as ShapeError
    from headwise.spec import SpecError as SpecError

__version__ = "0.1.0"

_HOME = {
    "Attention": "layers.attention",
    "AttentionShape": "shape",
    "KNOWN": "known",
    "KVCache": "layers.cache",
    "ModelOptions": "options",
    "ModelShape": "shape",
    "MultiheadAttention": "layers.multihead",
    "ShapeError": "shape",
    "SpecError": "spec",
    "build": "models",
    "equal_cost": "search",
    "find": "known",
    "preset": "options",
    "price": "cost",
    "swap": "checkpoints.swap",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute '{name}'")
    return getattr(import_module(f"headwise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
