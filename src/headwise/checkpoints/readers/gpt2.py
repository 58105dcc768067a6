"""GPT-2: one matrix for queries, keys and values, kept as (inputs, outputs)."""

from typing import ClassVar

from torch import Tensor

from headwise.checkpoints.reader import Projection, Projections, SeparateReader, joined_rows, named, split_rows


class GPT2Reader(SeparateReader):
    family = "gpt2"
    model_types = frozenset({"gpt2"})
    signature = r"(?P<layer>(.*\.)?h\.\d+\.)attn\.c_attn\.weight"
    mlp_names: ClassVar[dict[str, int]] = {"mlp.c_fc.weight": 1}
    causal = True

    def parts(self, layer: str) -> Projections:
        fused, output = (self.linear(f"{layer}attn.{name}") for name in ("c_attn", "c_proj"))
        return split_rows(_turned(fused), _turned(output), self.head_count(layer), layer)

    def tensors(self, layer: str, parts: Projections) -> dict[str, Tensor]:
        fused = named(f"{layer}attn.c_attn", _turned(joined_rows(parts)))
        return fused | named(f"{layer}attn.c_proj", _turned(parts.output))

    def width(self, layer: str) -> int:
        return self.weights.shapes[f"{layer}attn.c_attn.weight"][0]


def _turned(part: Projection) -> Projection:
    return Projection(part.weight.mT, part.bias)


READER = GPT2Reader
