"""Random shapes with random options: ordinary ones, extreme ones, and text that is no shape."""

import random
from typing import get_args

from headwise.options import PRESETS, ModelOptions, preset
from headwise.shape import ModelShape
from headwise.spec import SpecError


def random_shape(rng):
    """A valid shape, up to sizes whose costs pass 2**53 by far; layers may differ."""
    while True:
        try:
            return ModelShape.parse(_text(rng))
        except SpecError:
            continue


def _text(rng):
    scale = rng.choice([6, 10, 14, 20])
    size = lambda least=1: rng.randint(least, 2 ** rng.randint(1, scale))  # noqa: E731
    heads = 2 ** rng.randint(0, 7)
    parts = [f"w{heads * size() if rng.random() < 0.7 else size()}", f"h{heads}"]
    if rng.random() < 0.4:
        parts.append(f"r{size()}")
    if rng.random() < 0.3:
        parts.append(f"v{size()}")
    if rng.random() < 0.4:
        parts.append(f"g{2 ** rng.randint(0, heads.bit_length() - 1)}")
    if rng.random() < 0.3:
        parts.append(f"c{size()}")
    if rng.random() < 0.2:
        parts.append(f"q{size()}")
    if rng.random() < 0.2:
        parts.append(f"p{size(0)}")
    if rng.random() < 0.2:
        parts.append(f"h{heads}x{rng.randint(1, 9)},{2 * heads}x{rng.randint(1, 9)}")
        parts.pop(1)
    elif rng.random() < 0.8:
        parts.append(f"L{rng.randint(1, 120)}")
    if rng.random() < 0.4:
        parts.append(f"m{size(0)}")
    return "-".join(parts)


def random_options(rng):
    """A family with any of its fields changed."""
    while True:
        name = rng.choice(list(PRESETS))
        patch = rng.choice([4, 8, 16])
        changes = {
            "vocab": rng.randint(1, 300_000),
            "context": rng.randint(1, 200_000),
            "classes": rng.randint(1, 2000),
        }
        changes |= {"image": patch * rng.randint(1, 40), "patch": patch, "channels": rng.randint(1, 4)}
        for field in ("norm", "norm_place", "mlp_kind", "activation", "bias", "positions", "qk_norm", "head"):
            if rng.random() < 0.2:
                changes[field] = rng.choice(get_args(ModelOptions.model_fields[field].annotation))
        for field in ("logit_scale", "embedding_norm", "final_norm", "tied", "pooler"):
            if rng.random() < 0.2:
                changes[field] = rng.random() < 0.5
        if rng.random() < 0.2:
            changes |= {"softcap": rng.choice([0.0, 15.0]), "segments": rng.randint(0, 3)}
        try:
            return ModelOptions() if rng.random() < 0.1 else preset(name, **changes)
        except SpecError:
            continue


def models(count, seed):
    """Shapes, options and what else a price depends on."""
    rng = random.Random(seed)
    for _ in range(count):
        context = rng.choice([0, 1, rng.randint(1, 4096), rng.randint(1, 2**21)])
        yield random_shape(rng), random_options(rng), context, rng.choice([1, 1, rng.randint(1, 512)])
