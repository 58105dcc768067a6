"""GPT-NeoX and Pythia: one matrix in which each head has its query, key and value rows together; partly rotary."""

from typing import ClassVar

import torch
from torch import Tensor

from headwise.checkpoints.reader import Projection, Projections, SeparateReader, split_rows, tensors_named
from headwise.checkpoints.rotary import rope_frequencies, settings


class GPTNeoXReader(SeparateReader):
    family = "gpt_neox"
    model_types = frozenset({"gpt_neox"})
    signature = r"(?P<layer>(.*\.)?layers\.\d+\.)attention\.query_key_value\.weight"
    mlp_names: ClassVar[dict[str, int]] = {"mlp.dense_h_to_4h.weight": 0}
    causal = True

    def parts(self, layer: str) -> Projections:
        fused, output = (self.linear(f"{layer}attention.{name}") for name in ("query_key_value", "dense"))
        count = self.head_count(layer)
        rows = torch.arange(fused.weight.shape[0])
        v_rank = self._each(layer, output.weight.shape[1], count)
        rank = self._each(layer, len(rows) - count * v_rank, 2 * count)
        by_head = rows.view(count, -1).split([rank, rank, v_rank], dim=1)
        together = torch.cat([part.flatten() for part in by_head])
        bias = None if fused.bias is None else fused.bias[together]
        return split_rows(Projection(fused.weight[together], bias), output, count, layer)

    def tensors(self, layer: str, parts: Projections) -> dict[str, Tensor]:
        count = self.head_count(layer)
        three = (parts.query, parts.key, parts.value)
        weight = torch.cat([part.weight.unflatten(0, (count, -1)) for part in three], dim=1).flatten(0, 1)
        biases = [part.bias.unflatten(0, (count, -1)) for part in three if part.bias is not None]
        fused = Projection(weight, torch.cat(biases, dim=1).flatten() if biases else None)
        return tensors_named(f"{layer}attention.query_key_value", fused) | tensors_named(
            f"{layer}attention.dense", parts.output
        )

    def frequencies(self, number: int, rank: int) -> Tensor | None:
        rope = settings(self.config)
        part = rope.get("partial_rotary_factor") or self.config.get("rotary_pct", 0.25)
        return rope_frequencies(rope, int(rank * part))

    def width(self, layer: str) -> int:
        return self.weights.shapes[f"{layer}attention.query_key_value.weight"][1]


READER = GPTNeoXReader
