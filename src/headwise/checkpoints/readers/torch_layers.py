"""torch's own layers, wherever they stand in a model: nn.MultiheadAttention, nn.TransformerEncoder, nn.Transformer.

headwise's drop-in for nn.MultiheadAttention has the same names with free ranks, so what is cut loads into it.
"""

import torch
from torch import Tensor

from headwise.checkpoints.reader import Projection, Projections, SeparateReader, joined_rows, split_rows, tensors_named


class TorchReader(SeparateReader):
    family = "torch"
    signature = r"(?P<layer>(.*\.)?)(in_proj_weight|q_proj_weight)"

    def parts(self, layer: str) -> Projections:
        output = self.linear(f"{layer}out_proj")
        bias = self.weights.get(f"{layer}in_proj_bias")
        if self._fused(layer):
            fused = Projection(self.weights[f"{layer}in_proj_weight"], bias)
            return split_rows(fused, output, self.head_count(layer), layer)
        weights = [self.weights[f"{layer}{name}_proj_weight"] for name in "qkv"]
        biases = [None] * 3 if bias is None else bias.split([len(weight) for weight in weights])
        made = [Projection(weight, part) for weight, part in zip(weights, biases, strict=True)]
        return Projections(made[0], made[1], made[2], output)

    def tensors(self, layer: str, parts: Projections) -> dict[str, Tensor]:
        three = (parts.query, parts.key, parts.value)
        if self._fused(layer):
            tensors = {f"{layer}in_proj_weight": joined_rows(parts).weight}
        else:
            tensors = {f"{layer}{name}_proj_weight": part.weight for name, part in zip("qkv", three, strict=True)}
        biases = [part.bias for part in three if part.bias is not None]
        tensors |= {f"{layer}in_proj_bias": torch.cat(biases)} if biases else {}
        return tensors | tensors_named(f"{layer}out_proj", parts.output)

    def width(self, layer: str) -> int:
        return self.weights.shapes[f"{layer}out_proj.weight"][0]

    def mlp(self, layer: str) -> int:
        """Beside the layer's self-attention; attention to a memory has no MLP of its own."""
        name = f"{layer.removesuffix('self_attn.')}linear1.weight"
        return self.weights.shapes[name][0] if name in self.weights else 0

    def _fused(self, layer: str) -> bool:
        return f"{layer}in_proj_weight" in self.weights


READER = TorchReader
