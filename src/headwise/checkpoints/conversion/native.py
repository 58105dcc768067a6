"""A model of transformers in another shape that transformers itself can say: its configuration and its class.

Fewer key/value heads, fewer heads, smaller heads and fewer layers are the family's own; a latent is a DeepSeek-V3
without experts, which has an RMS norm on the latent, one rotary key for all heads and no biases.
"""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.conversion.merging import LatentHeads, choose_groups, even_pairs_of, merge, to_latent
from headwise.checkpoints.conversion.target import Target
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.reader import ProjectionReader
from headwise.checkpoints.seen import Seen
from headwise.checkpoints.swap.layer import fill_layer
from headwise.shape import AttentionShape
from headwise.spec import SpecError

# ---- configurations ------------------------------------------------------------------------------------------------


def new_model(model: Any, target: Target) -> Any:
    """The model of the target's sizes with everything but attention taken over."""
    made = _latent_model(model, target) if target.attention.kv_latent else _same_family(model, target)
    state, old = made.state_dict(), model.state_dict()
    for name, tensor in state.items():
        source = _old_name(name, target.layers)
        if source in old and old[source].shape == tensor.shape:
            tensor.copy_(old[source])
    return made.eval()


def _old_name(name: str, layers: tuple[int, ...]) -> str:
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part == "layers" and parts[i + 1].isdigit():
            parts[i + 1] = str(layers[int(parts[i + 1])])
    return ".".join(parts)


def _same_family(model: Any, target: Target) -> Any:
    config, shape = copy.deepcopy(model.config), target.attention
    config.num_attention_heads, config.num_key_value_heads = shape.heads, shape.kv_heads
    config.head_dim = shape.qk_rank
    _keep_layers(config, target.layers)
    _check_sayable(config, type(model).__name__)
    made = type(model)(config)
    for layer in made.base_model.layers:
        if layer.self_attn.head_dim != shape.qk_rank:
            raise SpecError(f"the configuration of {type(model).__name__} cannot say heads of rank {shape.qk_rank}")
    return made


def _check_sayable(config: Any, name: str) -> None:
    """Configurations check themselves, but only as they are written: with an error of a library of their own."""
    try:
        config.validate()
    except Exception as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise SpecError(f"the configuration of {name} cannot say that shape ({reason})") from None


def _keep_layers(config: Any, layers: tuple[int, ...]) -> None:
    config.num_hidden_layers = len(layers)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        config.layer_types = [kinds[i] for i in layers]


def _latent_model(model: Any, target: Target) -> Any:
    import transformers

    old, shape = model.config, target.attention
    same: tuple[str, ...] = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "hidden_act",
        "max_position_embeddings",
        "rms_norm_eps",
    )
    same += (
        "initializer_range",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "rope_parameters",
    )
    config = transformers.DeepseekV3Config(
        **{name: copy.deepcopy(getattr(old, name)) for name in same},
        num_hidden_layers=len(target.layers),
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        q_lora_rank=None,
        kv_lora_rank=shape.kv_latent,
        qk_nope_head_dim=shape.qk_rank - shape.rope_rank,
        qk_rope_head_dim=shape.rope_rank,
        v_head_dim=shape.v_rank,
        rope_interleave=False,
        first_k_dense_replace=len(target.layers),
        attention_bias=False,
    )
    config._attn_implementation = old._attn_implementation
    return transformers.DeepseekV3ForCausalLM(config)


# ---- weights -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def fill_attention(
    attention: Any,
    old: Any,
    reader: ProjectionReader,
    number: int,
    shape: AttentionShape,
    seen: Seen | None,
    scores: Tensor | None = None,
) -> None:
    """Give a layer's new attention the old heads in its sizes; `old` is the module they come from."""
    heads = reader.heads(number)
    if shape.kv_latent:
        if heads.rotated != heads.shape.qk_rank:
            raise SpecError("a latent is fitted to heads that turn as a whole, and in this model some do not")
        new_heads = to_latent(_without_norms(heads, seen), shape.kv_latent, shape.rope_rank, seen)
        if hasattr(attention, "headwise"):
            return _fill_latent_layer(attention.headwise, new_heads, heads.output_bias)
        return _fill_latent(attention, new_heads)
    if shape == heads.shape:
        attention.load_state_dict(old.state_dict())
        return None
    new, pairs = smaller(heads, shape, seen, scores)
    if hasattr(attention, "headwise"):
        return fill_layer(attention.headwise, new)
    factor = old.scaling / attention.scaling
    within = f"{reader.layers[number]}self_attn."
    own = dict(attention.named_parameters())
    for name, tensor in reader.written(number, new, 1.0 if heads.normed else factor).items():
        own[name.removeprefix(within)].copy_(tensor)
    if new.sinks is not None:
        attention.sinks.copy_(new.sinks)
    _fill_norms(attention, old, heads, new, pairs, factor, seen)
    return None


def smaller(
    heads: AttentionHeads, shape: AttentionShape, seen: Seen | None, scores: Tensor | None = None
) -> tuple[AttentionHeads, Tensor]:
    """The heads in the sizes of the shape, and which pairs of rows still turn; of the heads those of largest score."""
    kept = _strongest(_absorbed(heads), shape, scores)
    rank = heads.shape.qk_rank
    turning = heads.rotated * shape.qk_rank // rank
    if kept.normed and heads.rotated != rank:
        raise SpecError("heads behind a norm are joined by their frequencies, and in this model some do not turn")
    pairs = even_pairs_of(heads.rotated // 2, turning // 2)
    new, _ = merge(kept, choose_groups(kept, shape.kv_heads, seen), pairs, shape.qk_rank, shape.v_rank, seen)
    return new, pairs


def _absorbed(heads: AttentionHeads) -> AttentionHeads:
    """A norm over all heads at once has a weight for every row: the rows as large as it makes them."""
    if heads.query_scale is None or heads.key_scale is None or heads.query_scale.dim() == 1:
        return heads
    query, key = heads.query * heads.query_scale[..., None], heads.key * heads.key_scale[..., None]
    return replace(heads, query=query, key=key, query_scale=None, key_scale=None)


def _fill_norms(
    attention: Any,
    old: Any,
    heads: AttentionHeads,
    new: AttentionHeads,
    pairs: Tensor,
    factor: float,
    seen: Seen | None,
) -> None:
    """Norms of each head keep the weights of the rows that stay; one over all heads keeps the size of what it gives."""
    if heads.query_scale is None:
        return
    rows = torch.cat([pairs, pairs + heads.rotated // 2])
    second = torch.eye(heads.shape.width, dtype=torch.float64) if seen is None else seen.second

    def size(one: Tensor) -> float:
        flat = one.double().flatten(0, 1)
        return float(((flat @ second) * flat).sum() / len(flat)) ** 0.5

    for name, was, now in (("q_norm", heads.query, new.query), ("k_norm", heads.key, new.key)):
        times, weight = factor if name == "q_norm" else 1.0, getattr(attention, name).weight
        if heads.query_scale.dim() == 1:
            weight.copy_(getattr(old, name).weight[rows] * times)
        else:
            weight.fill_(times * size(now) / max(size(was), 1e-24))


def _strongest(heads: AttentionHeads, shape: AttentionShape, scores: Tensor | None) -> AttentionHeads:
    """Fewer heads, as many of every group or whole groups: the best by their scores (H), without them by weights."""
    if shape.heads == heads.shape.heads:
        return heads
    if scores is None:
        scores = (heads.output.double() @ heads.each_head(heads.value.double())).square().sum((1, 2))
    scores = scores.unflatten(0, (len(heads.key), -1))  # (G, H/G)
    if shape.kv_heads == len(heads.key):
        each = scores.topk(shape.group, dim=1).indices.sort(1).values
        groups = torch.arange(len(heads.key))
    else:
        groups = scores.sum(1).topk(shape.kv_heads).indices.sort().values
        each = torch.arange(scores.shape[1]).expand(len(groups), -1)
    chosen = (groups[:, None] * scores.shape[1] + each).flatten()
    new = {name: getattr(heads, name) for name in ("query", "output", "query_bias")}
    shared = {name: getattr(heads, name) for name in ("key", "value", "key_bias", "value_bias", "frequencies")}
    rows: dict[str, Any] = {name: None if one is None else one[chosen] for name, one in new.items()}
    rows |= {name: None if one is None else one[groups] for name, one in shared.items()}
    return replace(heads, **rows, sinks=None if heads.sinks is None else heads.sinks[chosen])


def _without_norms(heads: AttentionHeads, seen: Seen | None) -> AttentionHeads:
    """Queries and keys as large as their norms make them in the mean: a latent's heads have no such norms."""
    if heads.query_scale is None or heads.key_scale is None:
        return heads
    second = torch.eye(heads.shape.width, dtype=torch.float64) if seen is None else seen.second

    def scaled(rows: Tensor, scale: Tensor) -> Tensor:
        rows = rows.double()
        size = ((rows @ second) * rows).sum((1, 2)).div(rows.shape[1]).clamp(min=1e-24).sqrt()
        return rows * scale.double()[:, None] / size[:, None, None]

    return AttentionHeads(
        scaled(heads.query, heads.query_scale),
        scaled(heads.key, heads.key_scale),
        heads.value,
        heads.output,
        frequencies=heads.frequencies,
    )


def _fill_latent(attention: Any, new: LatentHeads) -> None:
    rotated = len(new.rope_key)
    attention.q_proj.weight.copy_(new.query.roll(-rotated, dims=1).flatten(0, 1))
    attention.kv_a_proj_with_mqa.weight.copy_(torch.cat([new.down / new.size, new.rope_key]))
    attention.kv_a_layernorm.weight.fill_(1.0)
    attention.kv_b_proj.weight.copy_(torch.cat([new.key_up, new.value_up], dim=1).flatten(0, 1) * new.size)
    attention.o_proj.weight.copy_(new.output.movedim(0, 1).flatten(1))


@torch.no_grad()
def _fill_latent_layer(layer: Any, new: LatentHeads, output_bias: Tensor | None) -> None:
    """The same for headwise's own layer: what turns comes first there, and there may be biases."""
    layer.input.weight.copy_(torch.cat([new.query.flatten(0, 1), new.down / new.size, new.rope_key]))
    if new.query_bias is not None and new.down_bias is not None and new.rope_bias is not None:
        layer.input.bias.copy_(torch.cat([new.query_bias.flatten(), new.down_bias / new.size, new.rope_bias]))
    layer.kv_latent_norm.weight.fill_(1.0)
    layer.kv_up.weight.copy_(torch.cat([new.key_up, new.value_up], dim=1).flatten(0, 1) * new.size)
    layer.output.weight.copy_(new.output.movedim(0, 1).flatten(1))
    if output_bias is not None:
        layer.output.bias.copy_(output_bias)
