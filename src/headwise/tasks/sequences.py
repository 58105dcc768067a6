"""What tasks share that read sequences of symbols: a usual model, how answers are scored, losses in parts."""

import torch.nn.functional as F
from torch import Tensor, nn

from headwise.models import Bert, Decoder
from headwise.options import ModelOptions, preset


def symbol_options(vocab: int, context: int, classes: int) -> ModelOptions:
    """A BERT with norms before each part, rotary positions, no segments and no pooler."""
    kind = {"norm_place": "pre", "final_norm": True, "positions": "rotary", "segments": 0, "pooler": False}
    return preset("bert", vocab=vocab, context=context, classes=classes, head="classes", **kind)


def class_scores(output: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Of each sample: whether the likeliest class is wrong, and the cross-entropy."""
    loss = F.cross_entropy(output, labels, reduction="none")
    return {"error": (output.argmax(-1) != labels).float(), "loss": loss}


def in_parts(model: nn.Module) -> Decoder | Bert | None:
    """The model, if it can give its loss without a whole batch of logits (`token_loss`)."""
    if isinstance(model, Decoder):
        return model if model.cross_entropy.path == "generated" else None
    if isinstance(model, Bert) and model.masked_head is not None:
        return model if model.masked_head.cross_entropy.path == "generated" else None
    return None
