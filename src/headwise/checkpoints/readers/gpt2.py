"""GPT-2: one matrix for queries, keys and values, kept as (inputs, outputs)."""

from typing import Any, ClassVar

from torch import Tensor

from headwise.checkpoints.reader import (
    Projection,
    Projections,
    SeparateReader,
    activation_of,
    joined_rows,
    known_of,
    split_rows,
    stated,
    tensors_named,
)
from headwise.known import Known
from headwise.options import preset
from headwise.shape import AttentionShape


class GPT2Reader(SeparateReader):
    family = "gpt2"
    model_types = frozenset({"gpt2"})
    signature = r"(?P<layer>(.*\.)?h\.\d+\.)attn\.c_attn\.weight"
    mlp_names: ClassVar[dict[str, int]] = {"mlp.c_fc.weight": 1}
    causal = True

    @classmethod
    def described(cls, config: dict[str, Any]) -> Known | None:
        width = stated(config, "n_embd")
        activation = config.get("activation_function", "gelu_new")
        options = preset(
            "gpt2",
            vocab=stated(config, "vocab_size"),
            context=stated(config, "n_positions"),
            norm_eps=float(config.get("layer_norm_epsilon", 1e-5)),
            activation=activation_of(activation),
            tied=bool(config.get("tie_word_embeddings", True)),
        )
        layer = AttentionShape(width=width, heads=stated(config, "n_head"))
        return known_of(layer, stated(config, "n_layer"), config.get("n_inner") or 4 * width, options)

    def parts(self, layer: str) -> Projections:
        fused, output = (self.linear(f"{layer}attn.{name}") for name in ("c_attn", "c_proj"))
        return split_rows(_turned(fused), _turned(output), self.head_count(layer), layer)

    def tensors(self, layer: str, parts: Projections) -> dict[str, Tensor]:
        fused = tensors_named(f"{layer}attn.c_attn", _turned(joined_rows(parts)))
        return fused | tensors_named(f"{layer}attn.c_proj", _turned(parts.output))

    def width(self, layer: str) -> int:
        return self.weights.shapes[f"{layer}attn.c_attn.weight"][0]


def _turned(part: Projection) -> Projection:
    return Projection(part.weight.mT, part.bias)


READER = GPT2Reader
