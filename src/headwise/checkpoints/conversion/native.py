"""A model of transformers in another shape that transformers itself can say: its configuration and its class.

Fewer key/value heads, fewer heads, smaller heads and fewer layers are the family's own; a latent is a DeepSeek-V3
without experts, which has an RMS norm on the latent, one rotary key for all heads and no biases.
"""

import copy
import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.conversion.merging import choose_groups, even_pairs_of, merge, to_latent
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.reader import ProjectionReader
from headwise.checkpoints.seen import Seen
from headwise.checkpoints.swap.carry import Carried
from headwise.checkpoints.swap.hugging_face import places
from headwise.checkpoints.swap.layer import fill_layer
from headwise.checkpoints.swap.saved import remember
from headwise.shape import AttentionShape
from headwise.spec import SpecError, shortened

_LETTERS = {
    "h": "heads",
    "r": "qk_rank",
    "v": "v_rank",
    "g": "kv_heads",
    "c": "kv_latent",
    "p": "rope_rank",
    "l": "depth",
}


@dataclass(frozen=True)
class Target:
    """The attention that every layer shall have, and which layers stay; or what each of them shall have."""

    attention: AttentionShape
    layers: tuple[int, ...]
    each: tuple[AttentionShape, ...] = ()

    @property
    def shapes(self) -> tuple[AttentionShape, ...]:
        return self.each or (self.attention,) * len(self.layers)

    @property
    def cached(self) -> int:
        """Numbers of the cache for one token."""
        return sum(shape.cached_per_token for shape in self.shapes)


def read_target(text: str, old: AttentionShape, depth: int) -> tuple[AttentionShape, int]:
    """'g2', 'c256-p32', 'r16', 'h4', 'L6' or several of them: what is not said stays. And how many layers."""
    wanted: dict[str, int] = {}
    for part in text.split("-"):
        name = _LETTERS.get(part[:1].lower())
        if name is None or not re.fullmatch("[1-9][0-9]{0,8}", part[1:]):
            raise SpecError(
                f"--to '{shortened(text)}': '{shortened(part)}' is none of g2 (key/value heads), h4 (heads), r16 "
                "(rank of heads), c256-p32 (a latent and its rotary part), L6 (layers), or several of them with -"
            )
        wanted[name] = int(part[1:])
    layers = wanted.pop("depth", depth)
    if layers > depth:
        raise SpecError(f"--to '{text}' has {layers} layers, but the model has {depth}: fewer or as many")
    return _checked(text, wanted, old), layers


def _checked(text: str, wanted: dict[str, int], old: AttentionShape) -> AttentionShape:
    sizes = {"width": old.width, "heads": old.heads, "qk_rank": old.qk_rank, "v_rank": old.v_rank}
    if "rope_rank" in wanted and "kv_latent" not in wanted:
        raise SpecError(f"--to '{text}': p is the rotary part beside a latent; give c too")
    if "kv_latent" in wanted:
        if len(wanted.keys() - {"kv_latent", "rope_rank"}):
            raise SpecError(
                f"--to '{text}': a latent is fitted to the heads as they are; give c and p alone, or with L"
            )
        part = wanted.get("rope_rank") or rotary_part(old.qk_rank)
        if part % 2 or part >= old.qk_rank:
            raise SpecError(f"--to '{text}': p must be even and below the rank of a head, {old.qk_rank}")
        return AttentionShape(**sizes, kv_latent=wanted["kv_latent"], rope_rank=part)
    if wanted.get("v_rank", wanted.get("qk_rank")) != wanted.get("qk_rank"):
        raise SpecError(
            f"--to '{text}': no family's configuration can say values of another rank than queries: give r alone"
        )
    rank = wanted.get("qk_rank", old.qk_rank)
    heads = wanted.get("heads", old.heads)
    each = old.group
    kv_heads = wanted.get("kv_heads") or (old.kv_heads if heads % old.kv_heads == 0 else heads // each)
    if heads > old.heads or kv_heads > old.kv_heads or rank > old.qk_rank or rank % 2 or not kv_heads:
        raise SpecError(f"--to '{text}' is larger than {old} or has an odd rank: conversion makes models smaller")
    if heads != old.heads and kv_heads not in (old.kv_heads, heads // each):
        raise SpecError(f"--to '{text}': change heads and key/value heads one after the other")
    if heads == old.heads and old.kv_heads % kv_heads:
        raise SpecError(f"--to '{text}': {old.kv_heads} key/value heads cannot be joined in {kv_heads} equal groups")
    sizes |= {"heads": heads, "qk_rank": rank, "v_rank": rank, "kv_heads": kv_heads}
    if old.rope_rank == old.qk_rank:
        return AttentionShape(**sizes)
    turning = old.rope_rank * rank // old.qk_rank  # the configuration says which share of a head turns
    if turning % 2 or turning * old.qk_rank != old.rope_rank * rank:
        raise SpecError(f"--to '{text}': {old.rope_rank} of {old.qk_rank} dimensions turn, of {rank} no even number")
    return AttentionShape(**sizes, rope_rank=turning)


def rotary_part(rank: int) -> int:
    """Half of a head, the largest even part of it: what a shape's p is where it is not said."""
    return max(2, rank // 4 * 2)


# ---- configurations ------------------------------------------------------------------------------------------------


def new_model(model: Any, target: Target, heads: AttentionHeads) -> Any:
    """The model of the target's sizes with everything but attention taken over."""
    if target.each:
        return with_code(model, target)
    made = _latent_model(model, target, heads) if target.attention.kv_latent else _same_family(model, target)
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


def _latent_model(model: Any, target: Target, heads: AttentionHeads) -> Any:
    import transformers

    old, shape = model.config, target.attention
    if old.model_type not in ("llama", "mistral", "qwen2", "qwen3"):
        raise SpecError(f"a latent is written as a DeepSeek-V3, which cannot say what else a {old.model_type} does")
    if any(one is not None for one in (heads.query_bias, heads.output_bias)):
        raise SpecError("a latent is written as a DeepSeek-V3, whose queries have no biases, and this model's do")
    if getattr(old, "sliding_window", None) and old.sliding_window < old.max_position_embeddings:
        raise SpecError("a latent is written as a DeepSeek-V3, which has no sliding windows, and this model does")
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
    attention: Any, old: Any, reader: ProjectionReader, number: int, shape: AttentionShape, seen: Seen | None
) -> None:
    """Give a layer's new attention the old heads in its sizes; `old` is the module they come from."""
    heads = reader.heads(number)
    if shape.kv_latent:
        if heads.rotated != heads.shape.qk_rank:
            raise SpecError("a latent is fitted to heads that turn as a whole, and in this model some do not")
        return _fill_latent(attention, _without_norms(heads, seen), shape, seen)
    if shape == heads.shape:
        attention.load_state_dict(old.state_dict())
        return None
    new, pairs = smaller(heads, shape, seen)
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


def smaller(heads: AttentionHeads, shape: AttentionShape, seen: Seen | None) -> tuple[AttentionHeads, Tensor]:
    """The heads in the sizes of the shape, and which pairs of rows still turn."""
    kept = _strongest(_absorbed(heads), shape, seen)
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


def with_code(model: Any, target: Target) -> Any:
    """The same model with attention of headwise in every layer that shall have another shape."""
    made = copy.deepcopy(model)
    found = places(made)
    for place, shape in zip(found, target.each, strict=True):
        if shape != place.heads.shape:
            pairs = even_pairs_of(place.heads.rotated // 2, shape.rotated // 2).expand(shape.kv_heads, -1)
            new, _ = smaller(place.heads, shape, None)
            carried = Carried(new, pairs if place.heads.rotated else None, 1.0, new.value)
            place.put(place.build(shape, carried), carried)
    remember(made)
    return made.eval()


def _strongest(heads: AttentionHeads, shape: AttentionShape, seen: Seen | None) -> AttentionHeads:
    """Fewer heads: those whose values and outputs carry most, as many of every group, or whole groups."""
    if shape.heads == heads.shape.heads:
        return heads
    second = torch.eye(heads.shape.width, dtype=torch.float64) if seen is None else seen.second
    carried = heads.output.double() @ heads.each_head(heads.value.double())
    scores = ((carried @ second) * carried).sum((1, 2)).unflatten(0, (len(heads.key), -1))  # (G, H/G)
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


def _fill_latent(attention: Any, heads: AttentionHeads, shape: AttentionShape, seen: Seen | None) -> None:
    new = to_latent(heads, shape.kv_latent, shape.rope_rank, seen)
    attention.q_proj.weight.copy_(new.query.roll(-shape.rope_rank, dims=1).flatten(0, 1))
    attention.kv_a_proj_with_mqa.weight.copy_(torch.cat([new.down / new.size, new.rope_key]))
    attention.kv_a_layernorm.weight.fill_(1.0)
    attention.kv_b_proj.weight.copy_(torch.cat([new.key_up, new.value_up], dim=1).flatten(0, 1) * new.size)
    attention.o_proj.weight.copy_(new.output.movedim(0, 1).flatten(1))
