"""Families that keep four linear layers without rotation, by a table of names: OPT, CLIP and SigLIP.

A family is a row. It is known by its model_type alone, for its names could be another's. Of a model with two towers the
text's is read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from headwise.checkpoints.files import Weights
from headwise.checkpoints.reader import SeparateReader


@dataclass(frozen=True)
class Row:
    """Types of config.json, and the names of queries, keys, values and outputs in a layer."""

    types: tuple[str, ...]
    names: tuple[str, str, str, str]
    causal: bool = False


_OUT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
ROWS = (
    Row(("opt",), _OUT, causal=True),
    Row(("clip", "clip_text_model"), _OUT, causal=True),
    Row(("clip_vision_model", "siglip", "siglip_text_model", "siglip_vision_model"), _OUT),
)


class TableReader(SeparateReader):
    family = "opt, clip, siglip"
    model_types = frozenset(kind for row in ROWS for kind in row.types)
    signature = r"(?P<layer>(.*\.)?layers\.\d+\.)self_attn\.q_proj\.weight"
    mlp_names: ClassVar[dict[str, int]] = {"fc1.weight": 0, "mlp.fc1.weight": 0}

    def __init__(self, weights: Weights, heads: int | None = None) -> None:
        super().__init__(weights, heads)
        self.family = weights.config["model_type"]  # type: ignore[misc]  # each row is a family
        self.row = next(row for row in ROWS if self.family in row.types)
        self.causal = self.row.causal  # type: ignore[misc]
        self.config = self.config.get("text_config") or self.config
        self.layers = [layer for layer in self.layers if "vision" not in layer] or self.layers

    @classmethod
    def matches(cls, config: dict[str, Any], names: Iterable[str]) -> bool:
        return config.get("model_type") in cls.model_types and super().matches(config, names)

    def layer_names(self, layer: str) -> tuple[str, str, str, str]:
        return self.row.names


READER = TableReader
