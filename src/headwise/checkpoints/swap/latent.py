"""DeepSeek's latent attention in headwise's layer: the same factors, rows in another order."""

from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.rotary import in_halves
from headwise.layers.attention import Attention


@torch.no_grad()
def fill_latent(layer: Attention, host: Any) -> None:
    """Give the layer the weights of a DeepSeek module of its shape."""
    shape = layer.shape
    rank, rotated = shape.qk_rank, shape.rope_rank
    pairs = in_halves(rotated, rotated) if getattr(host.config, "rope_interleave", True) else torch.arange(rotated)
    order = torch.cat([rank - rotated + pairs, torch.arange(rank - rotated)])

    def ordered(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (shape.heads, -1))[:, order].flatten(0, 1)

    latent, rope_key = host.kv_a_proj_with_mqa.weight.split([shape.kv_latent, rotated])
    if shape.q_latent:
        first = host.q_a_proj.weight
        layer.query_up.weight.copy_(ordered(host.q_b_proj.weight))
        layer.query_latent_norm.weight.copy_(host.q_a_layernorm.weight)
    else:
        first = ordered(host.q_proj.weight)
    layer.input.weight.copy_(torch.cat([first, latent, rope_key[pairs]]))
    layer.kv_latent_norm.weight.copy_(host.kv_a_layernorm.weight)
    layer.kv_up.weight.copy_(host.kv_b_proj.weight)
    layer.output.weight.copy_(host.o_proj.weight)
