"""Rotary frequencies as configurations of transformers write them, new (`rope_parameters`) and old (`rope_theta`).

Known are the kinds `default`, `linear` and `llama3`. Others stretch frequencies by rules of their own: they are read as
`default`, which changes what is averaged over distances and nothing else.
"""

import math
from typing import Any

import torch
from torch import Tensor


def settings(config: dict[str, Any], kind: str = "") -> dict[str, Any]:
    """One dictionary: base, kind of scaling and its numbers; `kind` is a layer's, where layers differ."""
    settings_by_kind = config.get("rope_parameters") or {}
    if settings_by_kind:
        return settings_by_kind.get(kind) or settings_by_kind.get("full_attention") or settings_by_kind
    base = config.get("rope_local_base_freq") if kind == "sliding_attention" else None
    theta = base or config.get("rope_theta") or config.get("rotary_emb_base") or 10_000.0
    scaling = {} if base else config.get("rope_scaling") or {}
    return {"rope_theta": theta, **scaling, "rope_type": scaling.get("rope_type") or scaling.get("type") or "default"}


def rope_frequencies(rope: dict[str, Any], rotated: int) -> Tensor:
    """(P/2) radians per token for a rotated part of P dimensions."""
    powers = torch.arange(0, rotated, 2, dtype=torch.float64) / rotated
    plain = float(rope.get("rope_theta", 10_000.0)) ** -powers
    if rope.get("rope_type") == "linear":
        return plain / float(rope["factor"])
    if rope.get("rope_type") == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: Tensor, rope: dict[str, Any]) -> Tensor:
    """Waves longer than the first context are stretched, shorter ones stay, between them a blend."""
    context, factor = float(rope["original_max_position_embeddings"]), float(rope["factor"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    waves = context * plain / (2 * math.pi)  # how many fit the first context
    stays = ((waves - low) / (high - low)).clamp(0, 1)
    return plain * (stays + (1 - stays) / factor)


def in_halves(rank: int, rotated: int) -> Tensor:
    """The family turns neighbours (2i, 2i + 1) where headwise turns rows half the rotated part apart."""
    pairs = torch.arange(rotated).view(-1, 2).mT.flatten()
    return torch.cat([pairs, torch.arange(rotated, rank)])
