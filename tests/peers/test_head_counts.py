"""The order of head counts is nanoGPT's: the same experiment with its own code and with `headwise compare`.

A GPT-2-style character model of 3 layers and width 96, by its number of heads. nanoGPT's side is a plain loop around
its `model.py` and its own `configure_optimizers`, on the same batches and the same held-out windows.

    HEADWISE_PEERS=<folder of nanoGPT> PYTHONPATH=tests python tests/peers/test_head_counts.py FILE [HEADS ...]
"""

import inspect
import statistics
import sys
from itertools import combinations

import pytest
import torch

import headwise as hw
from headwise.ledger.statistics import mean_interval
from headwise.store.rows import Row
from headwise.tasks import parse
from headwise.training.evaluation import TEST_SAMPLES, evaluate
from headwise.training.loop import schedule
from headwise.training.run import Recipe, Run
from helpers.families import nano_gpt, peers

WIDTH, DEPTH, CONTEXT, BATCH, SEEDS = 96, 3, 64, 16, 5
HEADS = (1, 2, 4, 8, 16, 32)
RATE, STEPS = 0.008, 1000
ASKED = {"warm_up": 0.1, "clip": 1.0, "weight_decay": 0.1, "betas": (0.9, 0.99), "final_learning_rate": 0.1}

Losses = dict[int, list[float]]  # bits per byte of the test part, by the number of heads, one for each seed


def shape(heads: int) -> str:
    return f"w{WIDTH}-h{heads}-L{DEPTH}"


def nano_gpt_loss(source: str, heads: int, seed: int, steps: int, rate: float = RATE) -> float:
    """nanoGPT, trained by itself on the batches that a run of ours with this seed sees."""
    torch.set_num_threads(1)
    task = parse(f"text:{source}", tokenizer="characters", context=CONTEXT)
    recipe = Recipe(learning_rate=rate, batch=BATCH, **ASKED)
    torch.manual_seed(seed)
    model = nano_gpt(depth=DEPTH, heads=heads, width=WIDTH, context=CONTEXT, vocab=task.default_options().vocab)
    optimizer = model.configure_optimizers(recipe.weight_decay, rate, recipe.betas, "cpu")
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule(step, steps, recipe)
        _, loss = model(*task.draw(seed, "train", step, BATCH))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
    run = Run(task=task.spec(), shape=shape(heads), options=task.default_options(), recipe=recipe, steps=steps)
    return evaluate(task, AllLogits(model), run, "test", TEST_SAMPLES)["error"]


class AllLogits(torch.nn.Module):
    """nanoGPT gives the logits of all tokens only where it is given labels."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs, inputs)[0]


def ours(source: str, heads: tuple[int, ...], seeds: int, steps: int, rate: float = RATE, **settings) -> Losses:
    """By `compare`, with one learning rate for all, as nanoGPT's."""
    base, *others = map(shape, heads)
    about = {"family": "gpt2", "tokenizer": "characters", "context": CONTEXT, "batch_size": BATCH, "options": {}}
    about |= {"steps": steps, "seeds": seeds, "learning_rates": [rate], "precision": "float32", **ASKED, **settings}
    answer = hw.compare(f"text:{source}", base, others, **about)
    return {count: in_order(answer.rows, shape(count)) for count in heads}


def in_order(rows: list[Row], variant: str) -> list[float]:
    mine = [row for row in rows if row.cell["arm"] == variant]
    return [row.metrics["error"] for row in sorted(mine, key=lambda row: row.seed)]


def separated(losses: Losses) -> dict[tuple[int, int], int]:
    """The pairs of head counts whose paired differences have a 95 % interval without 0, and which sign they have."""
    found = {}
    for one, other in combinations(losses, 2):
        _, low, high = mean_interval([b - a for a, b in zip(losses[one], losses[other], strict=True)], 0.95)
        if low > 0 or high < 0:
            found[one, other] = 1 if low > 0 else -1
    return found


def signs(losses: Losses, pairs) -> dict[tuple[int, int], int]:
    means = {heads: statistics.mean(its) for heads, its in losses.items()}
    return {(one, other): 1 if means[other] > means[one] else -1 for one, other in pairs}


def test_pairs_are_separated_by_their_differences():
    losses = {1: [2.0, 2.1, 2.2], 2: [1.9, 2.0, 2.11], 4: [1.9, 2.05, 2.0]}
    assert separated(losses) == {(1, 2): -1}
    assert signs(losses, [(1, 2), (2, 4)]) == {(1, 2): -1, (2, 4): -1}


@pytest.mark.skipif(peers() is None, reason="HEADWISE_PEERS does not point to nanoGPT's source")
def test_both_sides_train_and_are_measured_alike(tmp_path):
    """At the experiment's own rate 30 steps are chaotic: a weight's last bit moves the loss at the end by a tenth."""
    file = inspect.getsourcefile(inspect)  # a text that every machine has
    theirs = nano_gpt_loss(file, 2, 0, 30, rate=0.002)
    mine = ours(file, (2, 4), 1, 30, rate=0.002, store=tmp_path / "runs.db", workers=1)
    assert abs(mine[2][0] / theirs - 1) < 0.1
    assert theirs < 4.5


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(peers() is None, reason="HEADWISE_PEERS does not point to nanoGPT's source")
def test_what_nano_gpt_separates_has_the_same_sign_here(tmp_path):
    file = inspect.getsourcefile(inspect)
    theirs = {heads: [nano_gpt_loss(file, heads, seed, STEPS) for seed in range(SEEDS)] for heads in HEADS}
    mine = ours(file, HEADS, SEEDS, STEPS, store=tmp_path / "runs.db")
    known = separated(theirs)
    assert known
    assert signs(mine, known) == known
    assert all(abs(statistics.mean(mine[n]) / statistics.mean(theirs[n]) - 1) < 0.01 for n in HEADS)


def cell(losses: list[float]) -> str:
    spread = f" ({statistics.stdev(losses):.3f})" if len(losses) > 1 else ""
    return f"{statistics.mean(losses):.4f}{spread}"


if __name__ == "__main__":
    source, *given = sys.argv[1:]
    counts = tuple(map(int, given)) or HEADS
    theirs: Losses = {}
    for count in counts:
        theirs[count] = [nano_gpt_loss(source, count, seed, STEPS) for seed in range(SEEDS)]
        print(f"nanoGPT, {count} heads: {cell(theirs[count])}", flush=True)
    mine = ours(source, counts, SEEDS, STEPS)
    rows = {"heads": map(str, counts), "nanoGPT": map(cell, theirs.values()), "headwise": map(cell, mine.values())}
    ratios = [statistics.mean(mine[n]) / statistics.mean(theirs[n]) - 1 for n in counts]
    for name, cells in {**rows, "difference": (f"{ratio:+.1%}" for ratio in ratios)}.items():
        print("| " + " | ".join([name, *cells]) + " |")
    known = separated(theirs)
    alike = [pair for pair, sign in signs(mine, known).items() if sign == known[pair]]
    print(f"nanoGPT separates {len(known)} pairs; {len(alike)} have the same sign here")
