"""Rotary frequencies as configurations of transformers write them, new (`rope_parameters`) and old (`rope_theta`).

Known are the kinds `default`, `linear`, `llama3` and `yarn`. Others stretch frequencies by rules of their own: they are
read as `default`, which changes what is averaged over distances and nothing else.
"""

import math
from typing import Any

import torch
from torch import Tensor

from headwise.layers.functional import stretched
from headwise.options import RopeScaling
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
    base, scaling = float(rope.get("rope_theta", 10_000.0)), rope_scaling(rope)
    plain = base**-powers
    return plain if scaling is None else stretched(plain, base, scaling)


def rope_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    """How a configuration stretches frequencies, in headwise's words; none of a kind that is not known."""
    kind, factor = rope.get("rope_type"), rope.get("factor")
    if not factor or kind not in ("linear", "llama3", "yarn"):
        return None
    names = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}.get(kind, ())
    given = zip(("slow", "fast"), (rope.get(name) for name in names), strict=False)
    numbers = {name: float(value) for name, value in given if value}
    first = {} if kind == "linear" else {"context": int(rope.get("original_max_position_embeddings") or 0)}
    made = RopeScaling(kind=kind, factor=float(factor), **first, **numbers, whole=bool(rope.get("truncate", True)))
    return made.replace(attention=_growth(rope, made)) if kind == "yarn" else made


def _growth(rope: dict[str, Any], made: RopeScaling) -> float:
    """What a configuration multiplies turned rows by, where it says so; DeepSeek says it by two numbers."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    parts = [float(rope.get(name) or 0) for name in ("mscale", "mscale_all_dim")]
    if not all(parts) or made.factor <= 1:
        return 0.0
    above, below = (0.1 * part * math.log(made.factor) + 1 for part in parts)
    return above / below


def rope_parameters(scaling: RopeScaling | None) -> dict[str, Any]:
    """The way back: what a configuration says of it."""
    if scaling is None:
        return {"rope_type": "default"}
    said: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "linear":
        return said
    said |= {"original_max_position_embeddings": scaling.context}
    if scaling.kind == "llama3":
        return said | {"low_freq_factor": scaling.slow, "high_freq_factor": scaling.turns}
    said |= {"beta_slow": scaling.slow, "beta_fast": scaling.turns, "truncate": scaling.whole}
    return said | {"attention_factor": scaling.growth}


def layer_kind(config: dict[str, Any], number: int) -> str:
    """full_attention or sliding_attention, where a configuration says it for each layer; else nothing."""
    kinds: list[str] = config.get("layer_types") or []
    pattern: Any = config.get("sliding_window_pattern")  # how Gemma 3 said it before
    if not kinds and isinstance(pattern, int) and pattern > 0:
        return "full_attention" if (number + 1) % pattern == 0 else "sliding_attention"
    return kinds[number] if number < len(kinds) else ""


def attention_factor(rope: dict[str, Any]) -> float:
    """What YaRN multiplies turned queries and keys by, each."""
    scaling = rope_scaling(rope)
    return 1.0 if scaling is None else scaling.growth


def in_halves(rank: int, rotated: int) -> Tensor:
    """The family turns neighbours (2i, 2i + 1) where headwise turns rows half the rotated part apart."""
    pairs = torch.arange(rotated).view(-1, 2).mT.flatten()
    return torch.cat([pairs, torch.arange(rotated, rank)])
