"""Families that differ in names and in little else, by a table: a family is a row.

A row is known by its model_type alone, for its names could be another's. Of a model with two towers the text's is read;
of an encoder and a decoder every layer's attention to its own tokens, not that of the decoder to the encoder. What is
added to logits whatever the tokens are (T5's and MPNet's biases of distance) is no part of the heads.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from headwise.checkpoints.files import Weights
from headwise.checkpoints.reader import Projections, SeparateReader, joined_rows, split_rows, tensors_named
from headwise.checkpoints.rotary import attention_factor, in_halves, layer_kind, rope_frequencies, settings
from headwise.spec import SpecError


@dataclass(frozen=True)
class Row:
    """Types of config.json, and the names of queries, keys, values and outputs in a layer, or of all three and outputs.

    `turns` is how pairs of rows stand: "halves" of the rotated part, "neighbours", or "grid" for the axes of an image.
    """

    types: tuple[str, ...]
    names: tuple[str, ...]
    layer: str = r"layers\.\d+\."
    causal: bool = False
    turns: str = ""
    scaled: bool = True  # logits are divided by √rank
    still: str = ""  # the kind of layers in which nothing turns
    sinks: str = ""  # a logit for each head that attends to nothing


_OUT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
_O = (*_OUT[:3], "self_attn.o_proj")
_T5 = tuple(f"SelfAttention.{name}" for name in "qkvo")
_ALBERT = r"albert_layer_groups\.\d+\.albert_layers\.\d+\."
ROWS = (
    Row(("opt",), _OUT, causal=True),
    Row(("clip", "clip_text_model"), _OUT, causal=True),
    Row(("clip_vision_model", "siglip", "siglip_text_model", "siglip_vision_model"), _OUT),
    Row(("whisper",), _OUT),
    Row(("t5", "mt5"), _T5, r"block\.\d+\.layer\.\d+\.", scaled=False),
    Row(("mpnet",), tuple(f"attention.attn.{name}" for name in "qkvo"), r"layer\.\d+\."),
    Row(("albert",), tuple(f"attention.{name}" for name in ("query", "key", "value", "dense")), _ALBERT),
    Row(("modernbert",), ("attn.Wqkv", "attn.Wo"), turns="halves"),
    Row(("dinov3_vit",), tuple(f"attention.{name}_proj" for name in "qkvo"), r"layer\.\d+\.", turns="grid"),
    Row(("phi",), (*_OUT[:3], "self_attn.dense"), causal=True, turns="halves"),
    Row(("phi3",), ("self_attn.qkv_proj", "self_attn.o_proj"), causal=True, turns="halves"),
    Row(("olmo", "olmo2", "olmo3"), _O, causal=True, turns="halves"),
    Row(("gpt_oss",), _O, causal=True, turns="halves", sinks="self_attn.sinks"),
    Row(("glm", "glm4", "cohere"), _O, causal=True, turns="neighbours"),
    Row(("cohere2",), _O, causal=True, turns="neighbours", still="full_attention"),
)
_ROWS = {kind: row for row in ROWS for kind in row.types}


class TableReader(SeparateReader):
    family = ", ".join(sorted(_ROWS))
    model_types = frozenset(_ROWS)
    signature = "|".join(dict.fromkeys(rf"(.*\.)?{row.layer}{re.escape(row.names[0])}\.weight" for row in ROWS))
    mlp_names: ClassVar[dict[str, int]] = {
        "fc1.weight": 0,
        "mlp.fc1.weight": 0,
        "mlp.down_proj.weight": 1,
        "mlp.Wo.weight": 1,
        "intermediate.dense.weight": 0,
        "ffn.weight": 0,
    }

    def __init__(self, weights: Weights, heads: int | None = None) -> None:
        self.family = weights.config["model_type"]
        self.row = _ROWS[self.family]
        self.signature = rf"(?P<layer>(.*\.)?{self.row.layer}){re.escape(self.row.names[0])}\.weight"
        super().__init__(weights, heads)
        self.config = self.config.get("text_config") or self.config
        self.layers = [layer for layer in self.layers if "vision" not in layer] or self.layers
        self.layers.sort(key=lambda layer: "decoder." in layer)  # an encoder comes first
        if self.family == "albert":
            self.layers = self._repeated(self.layers)

    @classmethod
    def matches(cls, config: dict[str, Any], names: Iterable[str]) -> bool:
        return config.get("model_type") in cls.model_types and super().matches(config, names)

    def is_causal(self, number: int) -> bool:
        return self.row.causal or "decoder." in self.layers[number]

    # ---- names ---------------------------------------------------------------------------------------------------

    def layer_names(self, layer: str) -> tuple[str, str, str, str]:
        query, key, value, output = self.row.names
        return query, key, value, output

    def parts(self, layer: str) -> Projections:
        if len(self.row.names) == 4:
            return super().parts(layer)
        fused, output = (self.linear(layer + name) for name in self.row.names)
        shared = self.config.get("num_key_value_heads")
        return split_rows(fused, output, self.head_count(layer), layer, shared)

    def tensors(self, layer: str, parts: Projections) -> dict[str, Tensor]:
        if len(self.row.names) == 4:
            return super().tensors(layer, parts)
        fused, output = (layer + name for name in self.row.names)
        return tensors_named(fused, joined_rows(parts)) | tensors_named(output, parts.output)

    def width(self, layer: str) -> int:
        return self.weights.shapes[f"{layer}{self.row.names[0]}.weight"][1]

    def head_count(self, layer: str) -> int:
        own = self.config.get(f"{'decoder' if 'decoder.' in layer else 'encoder'}_attention_heads")  # Whisper
        return self.stated_heads or own or super().head_count(layer)

    def mlp(self, layer: str) -> int:
        found = super().mlp(layer)
        return found or int(self.config.get("d_ff") or 0) if self.family in ("t5", "mt5") else found

    def sinks(self, layer: str) -> Tensor | None:
        return self.weights.get(layer + self.row.sinks) if self.row.sinks else None

    def _repeated(self, layers: list[str]) -> list[str]:
        """ALBERT: groups of layers that are gone through several times, as many layers as the configuration says."""
        depth, groups = (int(self.config.get(name) or 1) for name in ("num_hidden_layers", "num_hidden_groups"))
        inner = max(len(layers) // max(groups, 1), 1)
        return [layers[number * groups // depth * inner + i] for number in range(depth) for i in range(inner)]

    # ---- what is particular --------------------------------------------------------------------------------------

    def frequencies(self, number: int, rank: int) -> Tensor | None:
        kind = layer_kind(self.config, number)
        if not self.row.turns or (kind and kind == self.row.still):
            return None
        rope = settings(self.config, kind)
        if self.row.turns == "grid":
            return self._grid(float(rope.get("rope_theta", 100.0)), rank)
        part = rope.get("partial_rotary_factor") or self.config.get("partial_rotary_factor") or 1.0
        return rope_frequencies(rope, int(rank * part))

    def _grid(self, base: float, rank: int) -> Tensor:
        """DINOv3: half of the pairs turn with the row of a patch and half with its column; radians per patch."""
        side = max(int(self.config.get("image_size") or 1) // int(self.config.get("patch_size") or 1), 1)
        each = base ** -(torch.arange(0, 1, 4 / rank, dtype=torch.float64))
        return (4 * math.pi / side * each).repeat(2)

    def order(self, rank: int, rotated: int) -> Tensor:
        return in_halves(rank, rotated) if self.row.turns == "neighbours" else super().order(rank, rotated)

    def scale(self, rank: int) -> float:
        turned = attention_factor(settings(self.config)) if self.row.turns else 1.0
        return (rank**-0.5 if self.row.scaled else 1.0) * turned**2

    def norms(self, layer: str, rank: int) -> tuple[Tensor, Tensor] | None:
        names = [f"{layer}self_attn.{which}_norm.weight" for which in "qk"]
        if f"{layer}self_attn.q_layernorm.weight" in self.weights or (
            names[0] in self.weights and self.family.startswith("cohere")
        ):
            raise SpecError(
                f"'{layer}' passes queries and keys through a layer norm of each head (use_qk_norm or qk_layernorm), "
                "which is not read"
            )
        if names[0] not in self.weights:
            return None
        query, key = (self.weights[name].unflatten(0, (-1, rank)) for name in names)  # over all heads at once
        return query, key


READER = TableReader
