"""What a model shall become: a shape read from text, and whether its family's own configuration can say it."""

import re
from dataclasses import dataclass, replace
from typing import Any

from headwise.checkpoints.heads import AttentionHeads
from headwise.shape import AttentionShape
from headwise.spec import SpecError, shortened

LATENTS = ("llama", "mistral", "qwen2", "qwen3")  # whose model, but for attention, a DeepSeek-V3 can say

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
                "(rank of heads), v16 (of values), c256-p32 (a latent and its rotary part), L6 (layers), or several of "
                "them with -"
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
    values = wanted.get("v_rank", rank)
    if values > old.v_rank or (values != rank and heads != old.heads):
        raise SpecError(f"--to '{text}': v is the rank of values, at most {old.v_rank}, and goes with r or g or alone")
    sizes |= {"heads": heads, "qk_rank": rank, "v_rank": values, "kv_heads": kv_heads}
    if old.rope_rank == old.qk_rank:
        return AttentionShape(**sizes)
    turning = old.rope_rank * rank // old.qk_rank  # the configuration says which share of a head turns
    if turning % 2 or turning * old.qk_rank != old.rope_rank * rank:
        raise SpecError(f"--to '{text}': {old.rope_rank} of {old.qk_rank} dimensions turn, of {rank} no even number")
    return AttentionShape(**sizes, rope_rank=turning)


def native_or_hosted(target: Target, config: Any, heads: AttentionHeads) -> Target:
    """The target in attention of headwise where the configuration cannot say it: the same one where it can."""
    shape = target.attention
    window = getattr(config, "sliding_window", None)
    plain = heads.query_bias is None and heads.output_bias is None
    if shape.kv_latent and config.model_type not in LATENTS:
        raise SpecError(
            f"a latent is known for {', '.join(LATENTS)}, not for {config.model_type}: give fewer key/value heads (g) "
            "or a smaller rank (r)"
        )
    deepseek = plain and not (window and window < config.max_position_embeddings)
    if deepseek if shape.kv_latent else shape.v_rank == shape.qk_rank:
        return target
    if heads.normed and shape.qk_rank != heads.shape.qk_rank:
        raise SpecError(f"{shape} has values of another rank than queries, which here pass a norm: give r or v alone")
    if len(target.layers) < config.num_hidden_layers:
        raise SpecError(f"{shape} needs attention of headwise in a model of all its layers: leave L out")
    return replace(target, each=target.shapes)


def rotary_part(rank: int) -> int:
    """Half of a head, the largest even part of it: what a shape's p is where it is not said."""
    return max(2, rank // 4 * 2)
