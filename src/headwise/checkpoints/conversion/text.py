"""Text for a conversion: what layers are watched on, what healing trains on, and what nothing was fitted to.

Blocks of equal length without padding, each beginning as the tokenizer begins a text. The last blocks of the file are
held out; losses are paired block by block, so that an interval is that of the change and not of the text.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.ledger.statistics import LEVEL, t_quantile
from headwise.spec import SpecError

LENGTH, CALIBRATION, HELD = 256, 64, 128  # tokens of a block; blocks at most
MOST = 16_000_000  # characters of the file that are read
PART = 200_000  # characters that the tokenizer is given at once
BATCH = 16


@dataclass(frozen=True)
class Blocks:
    """(n, length) each."""

    calibration: Tensor
    held: Tensor
    training: Tensor  # all that is not held out


@dataclass(frozen=True)
class Change:
    """A loss against another on the same blocks: nats/token, and the relative change with its 95 % interval."""

    loss: float
    change: float
    low: float
    high: float


def read_blocks(tokenizer: Any, file: str | Path, longest: int) -> Blocks:
    length = min(LENGTH, longest)
    try:
        text = Path(file).read_text(errors="replace")[:MOST]
    except OSError as error:
        raise SpecError(f"cannot read --data '{file}': {error.strerror}") from None
    parts = [text[i : i + PART] for i in range(0, len(text), PART)]
    tokens = [t for part in tokenizer(parts, add_special_tokens=False, verbose=False)["input_ids"] for t in part]
    usual = tokenizer("a")["input_ids"]
    first = [usual[0]] if usual and usual[0] == tokenizer.bos_token_id else []
    each = length - len(first)
    count = len(tokens) // each
    if count < 4:
        raise SpecError(f"--data '{file}' has {len(tokens)} tokens for this model; it needs {4 * each} or more")
    blocks = torch.tensor(tokens[: count * each]).view(count, each)
    blocks = torch.cat([torch.tensor(first, dtype=torch.long).expand(count, -1), blocks], dim=1)
    held = max(min(HELD, count // 4), 1)
    rest = blocks[:-held]
    return Blocks(rest[:: max(len(rest) // CALIBRATION, 1)][:CALIBRATION], blocks[-held:], rest)


@torch.no_grad()
def block_losses(model: Any, blocks: Tensor) -> Tensor:
    """(n): nats/token of the next token, mean over each block."""
    model.eval()
    losses = []
    for some in blocks.split(BATCH):
        logits = model(some, use_cache=False).logits[:, :-1].float()
        each = F.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten(), reduction="none")
        losses.append(each.view(len(some), -1).double().mean(1))
    return torch.cat(losses)


def change_of(after: Tensor, before: Tensor) -> Change:
    """Paired by blocks."""
    base, gaps = float(before.mean()), (after - before) / before.mean()
    mean, count = float(gaps.mean()), len(gaps)
    spread = t_quantile(count - 1, LEVEL) * float(gaps.std()) / math.sqrt(count) if count > 1 else math.inf
    return Change(base * (1 + mean), mean, mean - spread, mean + spread)
