"""Rotary frequencies as configurations of transformers write them, new (`rope_parameters`) and old (`rope_theta`).

Known are the kinds `default`, `linear`, `llama3` and `yarn`. Others stretch frequencies by rules of their own: they are
read as `default`, which changes what is averaged over distances and nothing else.
"""

import math
from typing import Any

import torch
from torch import Tensor

from headwise.spec import SpecError


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
    if rotated < 1:
        raise SpecError(f"by the configuration {rotated} dimensions of a head turn, which no model has")
    powers = torch.arange(0, rotated, 2, dtype=torch.float64) / rotated
    plain = float(rope.get("rope_theta", 10_000.0)) ** -powers
    if rope.get("rope_type") == "linear":
        return plain / float(rope["factor"])
    if rope.get("rope_type") == "llama3":
        return _llama3(plain, rope)
    return _yarn(plain, rope) if rope.get("rope_type") == "yarn" and rope.get("factor") else plain


def layer_kind(config: dict[str, Any], number: int) -> str:
    """full_attention or sliding_attention, where a configuration says it for each layer; else nothing."""
    kinds: list[str] = config.get("layer_types") or []
    pattern: Any = config.get("sliding_window_pattern")  # how Gemma 3 said it before
    if not kinds and isinstance(pattern, int) and pattern > 0:
        return "full_attention" if (number + 1) % pattern == 0 else "sliding_attention"
    return kinds[number] if number < len(kinds) else ""


def attention_factor(rope: dict[str, Any]) -> float:
    """What YaRN multiplies turned queries and keys by, each."""
    if rope.get("rope_type") != "yarn" or not rope.get("factor"):
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    factor, parts = float(rope["factor"]), [rope.get(name) for name in ("mscale", "mscale_all_dim")]

    def grown(times: float) -> float:
        return 0.1 * times * math.log(factor) + 1 if factor > 1 else 1.0

    return grown(float(parts[0])) / grown(float(parts[1])) if parts[0] and parts[1] else grown(1.0)


def _yarn(plain: Tensor, rope: dict[str, Any]) -> Tensor:
    """Pairs that turn seldom within the first context are stretched, others stay, with a ramp between them."""
    context, base, count = float(rope["original_max_position_embeddings"]), float(rope["rope_theta"]), len(plain)

    def pair(turns: float) -> float:
        return count * math.log(context / (turns * 2 * math.pi)) / math.log(base)

    low, high = pair(float(rope.get("beta_fast") or 32)), pair(float(rope.get("beta_slow") or 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, 2 * count - 1.0)
    ramp = (torch.arange(count, dtype=torch.float64) - low) / ((high - low) or 0.001)
    stretched = ramp.clamp(0, 1)
    return plain * (1 - stretched + stretched / float(rope["factor"]))


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
