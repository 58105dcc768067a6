"""Vision transformers: ViT, DeiT and DINOv2 as transformers names them, and timm's and DINOv2's own fused qkv.

A layer scale after attention (DINOv2, CaiT) is no part of the heads and is left out.
"""

from typing import Any, ClassVar

from torch import Tensor

from headwise.checkpoints.reader import (
    Projections,
    SeparateReader,
    joined_rows,
    known_of,
    split_rows,
    stated,
    tensors_named,
)
from headwise.known import Known
from headwise.options import preset
from headwise.shape import AttentionShape

_WRITTEN = tuple(
    f"attention.{name}" for name in ("attention.query", "attention.key", "attention.value", "output.dense")
)
_IN_MEMORY = tuple(f"attention.{name}_proj" for name in "qkvo")


class ViTReader(SeparateReader):
    family = "vit"
    model_types = frozenset({"vit", "deit", "dinov2", "vit_mae", "dinov2_with_registers"})
    signature = (
        r"(?P<layer>(.*\.)?(layer|layers|blocks)\.(\d+\.)+)(attention\.(attention\.query|q_proj)|attn\.qkv)\.weight"
    )
    mlp_names: ClassVar[dict[str, int]] = {
        "mlp.fc1.weight": 0,
        "intermediate.dense.weight": 0,
        "mlp.weights_out.weight": 1,
        "mlp.w3.weight": 1,
    }

    @classmethod
    def described(cls, config: dict[str, Any]) -> Known | None:
        if config["model_type"] != "vit" or not config.get("qkv_bias", True):
            return None
        classifies = "ForImageClassification" in (config.get("architectures") or [""])[0]
        options = preset(
            "vit",
            image=stated(config, "image_size"),
            patch=stated(config, "patch_size"),
            channels=stated(config, "num_channels"),
            norm_eps=float(config.get("layer_norm_eps", 1e-12)),
            head="classes" if classifies else "none",
            classes=len(config.get("id2label") or "01") if classifies else 0,
        )
        layer = AttentionShape(width=stated(config, "hidden_size"), heads=stated(config, "num_attention_heads"))
        return known_of(layer, stated(config, "num_hidden_layers"), stated(config, "intermediate_size"), options)

    def parts(self, layer: str) -> Projections:
        if not self._fused(layer):
            return super().parts(layer)
        fused, output = self.linear(f"{layer}attn.qkv"), self.linear(f"{layer}attn.proj")
        return split_rows(fused, output, self.head_count(layer), layer)

    def tensors(self, layer: str, parts: Projections) -> dict[str, Tensor]:
        if not self._fused(layer):
            return super().tensors(layer, parts)
        return tensors_named(f"{layer}attn.qkv", joined_rows(parts)) | tensors_named(f"{layer}attn.proj", parts.output)

    def layer_names(self, layer: str) -> tuple[str, str, str, str]:
        written = f"{layer}{_WRITTEN[0]}.weight" in self.weights
        query, key, value, output = _WRITTEN if written else _IN_MEMORY
        return query, key, value, output

    def width(self, layer: str) -> int:
        fused = f"{layer}attn.qkv.weight"
        return self.weights.shapes[fused][1] if fused in self.weights else super().width(layer)

    def _fused(self, layer: str) -> bool:
        return f"{layer}attn.qkv.weight" in self.weights


READER = ViTReader
