"""A model whose new shape its family's configuration cannot say: attention of headwise inside, a folder with code.

Layers with key/value heads of their own number, values of another rank than queries, and latents of models with biases,
sliding windows or whatever else a DeepSeek-V3 has not. Such a latent may turn at any of the model's own frequencies.
"""

import copy
import math
from typing import Any

from headwise.checkpoints.conversion.merging import even_pairs_of, latent_pairs
from headwise.checkpoints.conversion.native import smaller
from headwise.checkpoints.conversion.target import Target
from headwise.checkpoints.swap.carry import Carried
from headwise.checkpoints.swap.hugging_face import places
from headwise.checkpoints.swap.layer import AttentionPlace
from headwise.checkpoints.swap.saved import remember
from headwise.shape import AttentionShape
from headwise.spec import SpecError


def with_code(model: Any, target: Target) -> Any:
    """The same model with attention of headwise in every layer that shall have another shape."""
    made = copy.deepcopy(model)
    try:
        found = places(made)
    except SpecError as error:
        raise SpecError(
            f"its configuration cannot say {target.each[0]}, which needs attention of headwise: {error}"
        ) from None
    for place, shape in zip(found, target.each, strict=True):
        if shape.kv_latent:
            _put_latent(place, shape)
        elif shape != place.heads.shape:
            pairs = even_pairs_of(place.heads.rotated // 2, shape.rotated // 2).expand(shape.kv_heads, -1)
            new, _ = smaller(place.heads, shape, None)
            factor = math.sqrt(shape.qk_rank / place.heads.shape.qk_rank)  # logits keep their size
            carried = Carried(new, pairs if place.heads.rotated else None, factor, new.value)
            place.put(place.build(shape, carried), carried)
    remember(made)
    return made.eval()


def _put_latent(place: AttentionPlace, shape: AttentionShape) -> None:
    if place.heads.normed or place.heads.rotated != place.heads.shape.qk_rank:
        raise SpecError(
            f"'{place.name}' has norms on queries and keys or dimensions that do not turn: no latent is fitted to such "
            "heads; give fewer key/value heads (g) or a smaller rank (r)"
        )
    layer = place.build(shape, None)
    assert layer.pairs is not None
    layer.pairs = latent_pairs(place.heads.rotated, shape.rope_rank).repeat(shape.kv_heads, 1).to(layer.pairs)
    place.put(layer, None)
