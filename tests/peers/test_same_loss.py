"""The same model gives the same loss: each side with its own first weights, trained on the same batches.

Ten pairs of runs of each family; the 95 % interval of the difference of their final losses must lie within ±1 %. The
batches have noise in them, so that no loss is near 0. Final losses of two pairs differ by 0.4 to 0.6 %, so that the
interval of five pairs is as wide as what is asked; that of ten is not.

    python tests/peers/test_same_loss.py      # the table, some minutes for each family
"""

import math
import statistics
import sys
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from helpers.families import FAMILIES, noisy_batches, own_start, peers

SEEDS, STEPS = 10, 2000


@dataclass(frozen=True)
class Parity:
    """Losses before and after training, one of each side for each pair."""

    first: tuple[list[float], list[float]]
    final: tuple[list[float], list[float]]

    def interval(self) -> tuple[float, float, float]:
        """Ours less theirs as a part of theirs: its mean and the ends of its 95 % interval."""
        theirs, ours = self.final
        differences = [(one - other) / statistics.mean(theirs) for one, other in zip(ours, theirs, strict=True)]
        mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
        reach = float(stats.t.ppf(0.975, len(differences) - 1)) * error
        return mean, mean - reach, mean + reach


def held_out(model, logits, name: str) -> float:
    with torch.no_grad():
        losses = [F.cross_entropy(logits(model, x).flatten(0, -2), y.flatten()) for x, y in noisy_batches(name, 32, -1)]
    return torch.stack(losses).mean().item()


def train(model, logits, name: str, steps: int, seed: int) -> tuple[float, float]:
    """A plain loop with torch's own AdamW, in float32: held-out losses before and after."""
    first = held_out(model, logits, name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    up = max(1, steps // 10)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / up, (steps - step) / (steps - up))
    )
    for inputs, labels in noisy_batches(name, steps, seed):
        optimizer.zero_grad()
        F.cross_entropy(logits(model, inputs).flatten(0, -2), labels.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    return first, held_out(model, logits, name)


def parity(name: str, steps: int, seeds: int = SEEDS) -> Parity:
    torch.set_num_threads(1)
    family, runs = FAMILIES[name], []
    for seed in range(seeds):
        torch.manual_seed(1000 + seed)
        theirs = train(own_start(name), family.logits, name, steps, seed)
        torch.manual_seed(2000 + seed)
        ours = train(family.ours(), lambda model, inputs: model(inputs), name, steps, seed)
        runs.append((theirs, ours))
    first, final = (tuple([run[side][when] for run in runs] for side in (0, 1)) for when in (0, 1))
    return Parity(first, final)


def need_sources(name: str) -> None:
    if name == "nanochat" and peers() is None:
        pytest.skip("nanochat's own first weights need its sources: HEADWISE_PEERS does not point to them")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_short_training_ends_alike(name):
    need_sources(name)
    found = parity(name, 40, seeds=3)
    assert statistics.mean(found.final[1]) < statistics.mean(found.first[1])
    mean, low, high = found.interval()
    assert low < 0.03
    assert high > -0.03
    assert abs(mean) < 0.06


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", FAMILIES)
def test_ten_pairs_end_within_one_percent(name):
    need_sources(name)
    found = parity(name, STEPS)
    assert statistics.mean(found.final[1]) < 0.9 * statistics.mean(found.first[1])
    _, low, high = found.interval()
    assert -0.01 < low < high < 0.01


if __name__ == "__main__":
    for name in sys.argv[1:] or FAMILIES:
        found = parity(name, STEPS)
        before, after = ([statistics.mean(side) for side in sides] for sides in (found.first, found.final))
        mean, low, high = found.interval()
        columns = [name, *(f"{loss:.4f}" for loss in (*before, *after)), f"{mean:+.2%} [{low:+.2%}, {high:+.2%}]"]
        print("| " + " | ".join(columns) + " |", flush=True)
