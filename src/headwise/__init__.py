"""headwise: a laboratory for the shape of attention.

Names are loaded when first used, so that `import headwise` and `headwise --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.checkpoints.configuration import read_config as read_config
    from headwise.checkpoints.export import Exported as Exported
    from headwise.checkpoints.export import export_hf as export_hf
    from headwise.checkpoints.inspection import Inspection as Inspection
    from headwise.checkpoints.inspection import inspect as inspect
    from headwise.checkpoints.swap import swap as swap
    from headwise.checkpoints.truncation import Truncation as Truncation
    from headwise.checkpoints.truncation import truncate as truncate
    from headwise.cost import price as price
    from headwise.known import KNOWN as KNOWN
    from headwise.known import find as find
    from headwise.layers.attention import Attention as Attention
    from headwise.layers.cache import KVCache as KVCache
    from headwise.layers.multihead import MultiheadAttention as MultiheadAttention
    from headwise.models import build as build
    from headwise.options import ModelOptions as ModelOptions
    from headwise.options import preset as preset
    from headwise.report.page import Report as Report
    from headwise.report.page import write_report as write_report
    from headwise.report.theory import bound as bound
    from headwise.report.theory import conditioning as conditioning
    from headwise.report.theory import heads_needed as heads_needed
    from headwise.search import equal_cost as equal_cost
    from headwise.shape import AttentionShape as AttentionShape
    from headwise.shape import ModelShape as ModelShape
    from headwise.shape import ShapeError as ShapeError
    from headwise.spec import SpecError as SpecError
    from headwise.training.doctor import doctor as doctor

__version__ = "0.1.0"

_HOME = {
    "Attention": "layers.attention",
    "AttentionShape": "shape",
    "Exported": "checkpoints.export",
    "Inspection": "checkpoints.inspection",
    "KNOWN": "known",
    "KVCache": "layers.cache",
    "ModelOptions": "options",
    "ModelShape": "shape",
    "MultiheadAttention": "layers.multihead",
    "Report": "report.page",
    "ShapeError": "shape",
    "SpecError": "spec",
    "Truncation": "checkpoints.truncation",
    "bound": "report.theory",
    "build": "models",
    "conditioning": "report.theory",
    "doctor": "training.doctor",
    "equal_cost": "search",
    "export_hf": "checkpoints.export",
    "find": "known",
    "heads_needed": "report.theory",
    "inspect": "checkpoints.inspection",
    "preset": "options",
    "price": "cost",
    "read_config": "checkpoints.configuration",
    "swap": "checkpoints.swap",
    "truncate": "checkpoints.truncation",
    "write_report": "report.page",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute '{name}'")
    return getattr(import_module(f"headwise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
