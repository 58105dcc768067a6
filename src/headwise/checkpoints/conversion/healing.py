"""Healing: a converted model trained for a while to say what the original says, on the same text.

The loss is the divergence between the two models' predictions at every token, so the original is the teacher, and how
far the hidden states after each layer are from those of the layer it comes from. All weights are trained; the learning
rate falls to 0 over the time that was given. What there is is saved as it goes on, and at the end, until the model is
written: the same command continues where it stopped.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.comparison.question import read_budget
from headwise.sweep.tracking import Log
from headwise.training import resume
from headwise.training.run import RunResult

RATE, WARM_UP, BATCH = 1e-3, 20, 16
SAVE_SECONDS = 60.0


@dataclass(frozen=True)
class Amount:
    """How much to heal: by the clock, or so many steps, which is the same on every machine."""

    seconds: float | None = None
    steps: int | None = None

    @classmethod
    def read(cls, asked: "float | str | Amount") -> "Amount":
        """Seconds, '30m' or '300 steps'."""
        if isinstance(asked, Amount):
            return asked
        if isinstance(asked, str) and (found := re.fullmatch(r"(\d+) ?steps?", asked.strip())):
            return cls(steps=int(found[1]))
        seconds = read_budget(asked) if isinstance(asked, str) else float(asked)
        return cls(seconds=seconds)

    def share(self, steps: int, seconds: float) -> float:
        """How much of it is done."""
        done, whole = (steps, self.steps) if self.steps is not None else (seconds, self.seconds)
        return min(done / whole, 1.0) if whole else 1.0


@dataclass(frozen=True)
class Healed:
    """How long it took."""

    steps: int
    seconds: float
    tokens: int


def heal(
    teacher: Any,
    model: Any,
    blocks: Tensor,
    amount: Amount,
    state: Path,
    progress: Callable[[float, float], None] | None = None,
    layers: Sequence[int] | None = None,
    log: Log | None = None,
) -> Healed:
    """Train `model` in place for so long, what the file `state` has included.

    `layers` are those of the teacher that the model's come from; all of them where it has as many. `log` is shown the
    loss and the learning rate of every step.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    done, spent = _resume(model, optimizer, state)
    model.train()
    saved = started = time.monotonic()
    begun, result = spent, None
    try:
        while (share := amount.share(done, spent)) < 1:
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (done + 1) / WARM_UP) * (1 - share)
            loss = _step(teacher, model, optimizer, blocks[_rows(done, len(blocks))], layers)
            done, spent = done + 1, begun + time.monotonic() - started
            if log is not None:
                rate = optimizer.param_groups[0]["lr"]
                log.add([(done, "healing loss", loss), (done, "learning rate", rate)])
            if time.monotonic() - saved > SAVE_SECONDS:
                _save(model, optimizer, done, spent, state)
                saved = time.monotonic()
            if progress is not None:
                progress(100 * amount.share(done, spent), 100)
        result = RunResult("", "done", {"steps": float(done), "seconds": spent})
    finally:  # done, or interrupted
        _save(model, optimizer, done, spent, state)
        if log is not None:
            log.close(result)
    model.eval()
    return Healed(done, spent, done * min(BATCH, len(blocks)) * blocks.shape[1])


def _step(
    teacher: Any, model: Any, optimizer: torch.optim.Optimizer, tokens: Tensor, layers: Sequence[int] | None = None
) -> float:
    with torch.no_grad():
        expected = teacher(tokens, use_cache=False, output_hidden_states=True)
    output = model(tokens, use_cache=False, output_hidden_states=True)
    logits = [one.logits.float().log_softmax(-1).flatten(0, 1) for one in (output, expected)]
    loss = F.kl_div(logits[0], logits[1], log_target=True, reduction="batchmean")
    kept = range(len(expected.hidden_states) - 1) if layers is None else layers
    gaps = [_gap(a, expected.hidden_states[i + 1]) for a, i in zip(output.hidden_states[1:], kept, strict=True)]
    loss = loss + torch.stack(gaps).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _gap(actual: Tensor, expected: Tensor) -> Tensor:
    """|actual - expected|² / |expected|²."""
    return (actual - expected).float().square().mean() / expected.float().square().mean().clamp(min=1e-24)


def _rows(step: int, count: int) -> Tensor:
    """The blocks of a step, the same whenever it is taken."""
    return torch.randint(count, (min(BATCH, count),), generator=torch.Generator().manual_seed(step))


def _save(model: Any, optimizer: torch.optim.Optimizer, steps: int, seconds: float, file: Path) -> None:
    tensors = {f"model.{name}": one for name, one in model.named_parameters()}
    for number, kept in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": one for name, one in kept.items()}
    resume.write(file, tensors, {"steps": steps, "seconds": seconds})


def _resume(model: Any, optimizer: torch.optim.Optimizer, file: Path) -> tuple[int, float]:
    resume.remove_abandoned(file)
    contents = resume.read(file)
    if contents is None:
        return 0, 0.0
    tensors, facts = contents
    state: dict[int, dict[str, Tensor]] = {}
    for name in tensors:
        if name.startswith("optimizer."):
            _, number, part = name.split(".")
            state.setdefault(int(number), {})[part] = tensors[name]
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
    return facts["steps"], facts["seconds"]
