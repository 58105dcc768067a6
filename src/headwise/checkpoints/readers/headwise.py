"""headwise's own: weights that a run kept, and what `headwise truncate` writes of them.

With a latent (MLA) heads are measured as they are, but not cut.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from headwise.checkpoints.files import Weights
from headwise.checkpoints.heads import AttentionHeads, Cut
from headwise.checkpoints.reader import Projection, Projections, SeparateReader, joined_rows, tensors_named
from headwise.checkpoints.rotary import rope_frequencies, rope_parameters
from headwise.known import Known
from headwise.layers.attention import Attention
from headwise.mixer import layer_mixers, with_tool
from headwise.mixers import make_attention
from headwise.options import ModelOptions
from headwise.shape import AttentionShape, ModelShape
from headwise.spec import SpecError


class HeadwiseReader(SeparateReader):
    family = "headwise"
    model_types = frozenset({"headwise"})
    signature = r"(?P<layer>(.*\.)?blocks\.\d+\.)attention\.input\.weight"
    mlp_names: ClassVar[dict[str, int]] = {"mlp.output.weight": 1}

    def __init__(self, weights: Weights, heads: int | None = None) -> None:
        super().__init__(weights, heads)
        stated = self.config if "shape" in self.config else self.config.get("run", {})  # a run that kept its weights
        shape = self.config.get("headwise", stated).get("shape")
        if shape is None:
            raise SpecError(f"'{weights.path}' has headwise's names, but does not say its shape")
        self.options = ModelOptions(**stated.get("options", {}))
        self.shape = self.options.complete(ModelShape.parse(shape))
        if len(self.layers) != self.shape.depth:
            raise SpecError(f"'{weights.path}' has {len(self.layers)} layers, but says that it is {self.shape}")

        self._require("inspect")

    def _require(self, tool: str) -> None:
        wrong = next((mixer for mixer in layer_mixers(self.options, self.shape) if tool not in mixer.tools), None)
        if wrong is not None:
            known = f"it can {tool} those of {with_tool(tool)}"
            raise SpecError(f"'{self.weights.path}': headwise cannot {tool} heads of the mixer '{wrong}'; {known}")

    @classmethod
    def described(cls, config: dict[str, Any]) -> Known | None:
        if "shape" not in config:
            return None
        return Known("", ModelShape.parse(config["shape"]), ModelOptions(**config.get("options", {})))

    def heads(self, number: int) -> AttentionHeads:
        return self._with_latent(number) if self.shape.layers[number].kv_latent else super().heads(number)

    def cut(self, number: int, cut: Cut) -> dict[str, Tensor]:
        self._require("truncate")
        if self.shape.layers[number].kv_latent:
            raise SpecError(f"'{self.weights.path}': heads that read a latent (MLA) are not cut here")
        return super().cut(number, cut)

    def native(self, shape: ModelShape) -> dict[str, Any] | None:
        turning = self.options.positions == "rotary"
        if turning and any(a.rotated != b.rotated for a, b in zip(shape.layers, self.shape.layers, strict=True)):
            return None
        return {"model_type": "headwise", "shape": str(shape), "options": self.options.model_dump()}

    def parts(self, layer: str) -> Projections:
        shape, fused = self._shape(layer), self.linear(f"{layer}attention.input")
        rows = shape.input_rows
        if sum(rows) != len(fused.weight):
            raise SpecError(f"'{layer}' has {len(fused.weight)} input rows, but {shape} has {sum(rows)}")
        biases = [None] * 3 if fused.bias is None else list(fused.bias.split(rows))
        made = [Projection(weight, bias) for weight, bias in zip(fused.weight.split(rows), biases, strict=True)]
        return Projections(made[0], made[1], made[2], self.linear(f"{layer}attention.output"))

    def tensors(self, layer: str, parts: Projections) -> dict[str, Tensor]:
        fused = tensors_named(f"{layer}attention.input", joined_rows(parts))
        return fused | tensors_named(f"{layer}attention.output", parts.output)

    def frequencies(self, number: int, rank: int) -> Tensor | None:
        rotated = self.shape.layers[number].rotated
        if self.options.positions != "rotary" or not rotated:
            return None
        return rope_frequencies(
            {"rope_theta": self.options.rope_base, **rope_parameters(self.options.scaling)}, rotated
        )

    def scale(self, rank: int) -> float:
        scaling = self.options.scaling
        return super().scale(rank) * (1.0 if scaling is None else scaling.growth**2)

    def norms(self, layer: str, rank: int) -> tuple[Tensor, Tensor] | None:
        if self.options.qk_norm == "none":
            return None
        names = [f"{layer}attention.{which}_norm.weight" for which in ("query", "key")]
        query, key = (self.weights[name] if name in self.weights else torch.ones(rank) for name in names)
        return query, key

    def head_count(self, layer: str) -> int:
        return self._shape(layer).heads

    def _shape(self, layer: str) -> AttentionShape:
        return self.shape.layers[self.layers.index(layer)]

    def _with_latent(self, number: int) -> AttentionHeads:
        shape, layer = self.shape.layers[number], f"{self.layers[number]}attention."
        attention: Attention = make_attention(shape, self.options, device="meta")
        state = {name.removeprefix(layer): self.weights[name] for name in self.weights if name.startswith(layer)}
        attention.load_state_dict(state, assign=True)
        with torch.no_grad():
            _fold_norms(attention)
            query, key, value, output = attention.head_weights()
            if attention.query_norm is not None and attention.query_norm.weight is not None:
                query = query * attention.query_norm.weight[:, None]
            if attention.key_norm is not None and attention.key_norm.weight is not None:
                key[:, : shape.rope_rank] *= attention.key_norm.weight[:, None]
        turning = self.frequencies(number, shape.qk_rank)
        return AttentionHeads(
            query,
            key,
            value,
            output,
            frequencies=None if turning is None else turning.expand(len(key), -1),
            latents=(shape.kv_latent, shape.q_latent),
            shared_rotation=True,
        )


def _fold_norms(attention: Attention) -> None:
    """Multiply the weights of a latent's norm into what expands it."""
    attention.kv_up.weight.mul_(attention.kv_latent_norm.weight)
    if attention.shape.q_latent:
        attention.query_up.weight.mul_(attention.query_latent_norm.weight)


READER = HeadwiseReader
