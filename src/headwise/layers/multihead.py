"""A drop-in for `torch.nn.MultiheadAttention` that takes the ranks PyTorch's own layer fixes.

    layer = MultiheadAttention(512, 8, qk_rank=128, v_rank=64, kv_heads=2, batch_first=True)

Every argument means what it means there, and so do the masks (true where a query may NOT look). State dicts have
torch's names: where the shape is torch's (heads × rank = width), either layer loads the other's, and the same random
seed gives the same weights. It stands in an `nn.TransformerEncoderLayer` as `layer.self_attn`.

Two things differ. A query that may look nowhere gets 0 here, where torch may give NaN. With `is_causal` and
`add_bias_kv` or `add_zero_attn`, torch hides the added tokens unless weights are asked for; here they are always seen.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.layers.attention import Angles, Attention
from headwise.layers.cache import KVCache
from headwise.shape import AttentionShape


class MultiheadAttention(nn.Module):
    """torch's layer with free ranks; see the module's first lines."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        qk_rank: int | None = None,
        v_rank: int | None = None,
        kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.add_zero_attn = add_zero_attn
        sizes = {"qk_rank": qk_rank, "v_rank": v_rank, "kv_heads": kv_heads}
        shape = AttentionShape(width=embed_dim, heads=num_heads, **{k: v for k, v in sizes.items() if v is not None})
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        with torch.random.fork_rng(devices=[]):  # torch's order of draws follows in reset_parameters
            self.attention = _WithConstantTokens(
                shape, add_bias_kv, add_zero_attn, bias, dropout, self.kdim, self.vdim, factory
            )
        self.reset_parameters()
        self.register_load_state_dict_pre_hook(_from_torch_names)
        self.register_state_dict_post_hook(_to_torch_names)

    # What nn.TransformerEncoderLayer and its like look at. Its inference kernel knows only heads × rank = width, and
    # takes this layer for one it cannot fuse when told that queries, keys and values have different widths.
    _qkv_same_embed_dim = False

    @property
    def head_dim(self) -> int:
        return self.attention.shape.qk_rank

    @property
    def dropout(self) -> float:
        return self.attention.dropout

    @property
    def in_proj_weight(self) -> Tensor | None:
        return self.attention.input.weight if self.attention.fused else None

    @property
    def in_proj_bias(self) -> Tensor | None:
        biases = [bias for _, bias in self.attention.input_parts() if bias is not None]
        return torch.cat(biases) if biases else None

    @property
    def out_proj(self) -> nn.Linear:
        return self.attention.output

    def reset_parameters(self) -> None:
        """As torch does it, draw for draw: the output as a plain linear layer, Xavier for the rest, biases 0."""
        attention = self.attention
        attention.output.reset_parameters()
        inputs = [attention.input] if attention.fused else cast(list[nn.Linear], list(attention.inputs))
        for linear in inputs:
            nn.init.xavier_uniform_(linear.weight)
        for bias in (attention.output.bias, *(linear.bias for linear in inputs)):
            if bias is not None:
                nn.init.zeros_(bias)
        for constant in (attention.bias_k, attention.bias_v):
            if constant is not None:
                nn.init.xavier_normal_(constant)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs, and the weights where asked for, in torch's layouts."""
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        batched = query.dim() == 3
        query, key, value = (self._batch_first(t, batched) for t in (query, key, value))
        masks = self._masks(query.shape[0], key_padding_mask, attn_mask, batched)
        output = self.attention(query, key, value, need_weights=need_weights, **masks)
        weights = None
        if need_weights:
            output, weights = output
            weights = weights.mean(1) if average_attn_weights else weights
        if not batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _batch_first(self, tokens: Tensor, batched: bool) -> Tensor:
        if not batched:
            return tokens[None]
        return tokens if self.batch_first else tokens.transpose(0, 1)

    def _masks(
        self, batch: int, key_padding_mask: Tensor | None, attn_mask: Tensor | None, batched: bool
    ) -> dict[str, Tensor | None]:
        """torch's masks as ours; the constant tokens at the end are always seen."""
        given: dict[str, Tensor | None] = {}
        if key_padding_mask is not None:
            padding = key_padding_mask if batched else key_padding_mask[None]
            padding = self._extended(_additive(padding))[:, None, None, :]
            given["pair_bias"] = padding
        if attn_mask is not None:
            mask = attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (batch, self.num_heads))
            given["mask"] = self._extended(_additive(mask))
        return given

    def _extended(self, mask: Tensor) -> Tensor:
        return nn.functional.pad(mask, (0, self.attention.constants))


class _WithConstantTokens(Attention):
    """Attention with keys and values that belong to no token: learned ones, zeros, or both."""

    def __init__(
        self,
        shape: AttentionShape,
        learned: bool,
        zeros: bool,
        bias: bool,
        dropout: float,
        kdim: int,
        vdim: int,
        factory: dict[str, Any],
    ) -> None:
        super().__init__(
            shape, input_bias=bias, output_bias=bias, dropout=dropout, key_width=kdim, value_width=vdim, **factory
        )
        self.zeros, self.constants = zeros, learned + zeros
        self.bias_k = self.bias_v = None
        if learned:
            self.bias_k = nn.Parameter(torch.empty(1, 1, shape.kv_heads * shape.qk_rank, **factory))
            self.bias_v = nn.Parameter(torch.empty(1, 1, shape.kv_heads * shape.v_rank, **factory))

    def _keys_values(self, key: Tensor, value: Tensor, angles: Angles, cache: KVCache | None) -> tuple[Tensor, ...]:
        if self.bias_k is not None and self.bias_v is not None:
            key = torch.cat([key, self.bias_k.expand(key.shape[0], -1, -1)], dim=1)
            value = torch.cat([value, self.bias_v.expand(value.shape[0], -1, -1)], dim=1)
        if self.zeros:
            key, value = (nn.functional.pad(t, (0, 0, 0, 1)) for t in (key, value))
        return super()._keys_values(key, value, angles, cache)


def _additive(mask: Tensor) -> Tensor:
    """A mask as numbers added to logits: true becomes minus infinity."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=torch.get_default_dtype()).masked_fill(mask, -math.inf)


# ---- torch's names in state dicts ----------------------------------------------------------------------------------

_NAMES = {
    "in_proj_weight": "attention.input.weight",
    "in_proj_bias": "attention.input.bias",
    "q_proj_weight": "attention.inputs.0.weight",
    "k_proj_weight": "attention.inputs.1.weight",
    "v_proj_weight": "attention.inputs.2.weight",
    "bias_k": "attention.bias_k",
    "bias_v": "attention.bias_v",
    "out_proj.weight": "attention.output.weight",
    "out_proj.bias": "attention.output.bias",
}


def _from_torch_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    assert isinstance(module, MultiheadAttention)
    for theirs, ours in _NAMES.items():
        if prefix + theirs in state:
            state[prefix + ours] = state.pop(prefix + theirs)
    fused_bias = state.get(prefix + "attention.input.bias")
    if fused_bias is not None and not module.attention.fused:
        for i, part in enumerate(state.pop(prefix + "attention.input.bias").split(module.attention.sections)):
            state[f"{prefix}attention.inputs.{i}.bias"] = part


def _to_torch_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    parts = [state.pop(f"{prefix}attention.inputs.{i}.bias", None) for i in range(3)]
    if parts[0] is not None:
        state[prefix + "in_proj_bias"] = torch.cat(parts)
    for theirs, ours in _NAMES.items():
        if prefix + ours in state:
            state[prefix + theirs] = state.pop(prefix + ours)
