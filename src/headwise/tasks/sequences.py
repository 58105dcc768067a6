"""What tasks share that put a sequence of symbols into classes: the usual model, and how each answer is scored."""

import torch.nn.functional as F
from torch import Tensor

from headwise.options import ModelOptions, preset


def symbol_options(vocab: int, context: int, classes: int) -> ModelOptions:
    """A BERT with norms before each part, rotary positions, no segments and no pooler."""
    kind = {"norm_place": "pre", "final_norm": True, "positions": "rotary", "segments": 0, "pooler": False}
    return preset("bert", vocab=vocab, context=context, classes=classes, head="classes", **kind)


def class_scores(output: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Of each sample: whether the likeliest class is wrong, and the cross-entropy."""
    loss = F.cross_entropy(output, labels, reduction="none")
    return {"error": (output.argmax(-1) != labels).float(), "loss": loss}
