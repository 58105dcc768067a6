"""One cell of the rank paper's Figure 1 with torch's own layers in a plain loop, beside the published point.

    python benchmarks/figure_1.py                                      # what the published configuration would cost
    python benchmarks/figure_1.py --rank 32 --run                      # d = 64, N = 16, MLP 2048, 100,000 steps
    python benchmarks/figure_1.py --laptop --rank 8 --run              # the laptop's size, 2,000 steps

Nothing of headwise's models, tasks, optimisers or schedules is used: `nn.MultiheadAttention` with width / rank heads,
`nn.Linear`, a norm to unit length times one learned scalar after each part, AdamW, a linear warm-up and a cosine. What
it ends at is to agree with headwise's own run of that cell (`headwise study run rank-cliff`), and with the figure.
"""

import argparse
import csv
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

PUBLISHED = Path(__file__).parents[1] / "src" / "headwise" / "ledger" / "published" / "rank_cliff.csv"
SIZES = {  # dim, points, MLP, batch, steps, warm-up as a part of them
    "published": (64, 16, 2048, 256, 100_000, 0.05),
    "laptop": (16, 16, 64, 128, 2_000, 0.3),
}
LEARNING_RATE, BETAS, TEST_BATCHES, TIMED = 0.01, (0.9, 0.95), 64, 20


class UnitNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * F.normalize(x, dim=-1)


class Layer(nn.Module):
    """Post-norm: attention, then an MLP, each added to its input and normalised."""

    def __init__(self, dim, heads, mlp):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp), nn.ReLU(), nn.Linear(mlp, dim))
        self.norms = nn.ModuleList([UnitNorm(), UnitNorm()])

    def forward(self, x):
        x = self.norms[0](x + self.attention(x, x, x, need_weights=False)[0])
        return self.norms[1](x + self.mlp(x))


def farthest(batch, points, dim, random):
    """Points on the sphere, and for each the one that is farthest from it."""
    x = F.normalize(torch.randn(batch, points, dim, generator=random), dim=-1)
    index = (x @ x.mT).argmin(-1)
    return x, x.gather(1, index[..., None].expand(-1, -1, dim))


def train(rank, size, seed, steps=0, say=print):
    """The test error of one model: the mean squared distance to the farthest point, of fresh sets."""
    dim, points, mlp, batch, whole, warm_up = SIZES[size]
    whole, random = steps or whole, torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Layer(dim, dim // rank, mlp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)
    first = max(1, round(warm_up * whole))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / first, 0.5 * (1 + math.cos(math.pi * max(0, step - first) / (whole - first)))),
    )
    begun = time.perf_counter()
    for step in range(whole):
        x, labels = farthest(batch, points, dim, random)
        loss = (model(x) - labels).square().sum(-1).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if say and step % max(1, whole // 10) == 0:
            say(f"step {step}: {loss.item():.4f}, {time.perf_counter() - begun:.0f} s")
    test = torch.Generator().manual_seed(10_000 + seed)
    with torch.no_grad():
        sets = (farthest(batch, points, dim, test) for _ in range(TEST_BATCHES))
        return sum((model(x) - labels).square().sum(-1).mean().item() for x, labels in sets) / TEST_BATCHES


def price(rank, size):
    """FLOPs of one run, products alone (forward, and twice that backward), and seconds from a few steps."""
    dim, points, mlp, batch, steps, _ = SIZES[size]
    flops = 6 * steps * batch * points * (4 * dim * dim + 2 * dim * mlp + 2 * points * dim)
    train(rank, size, 0, 2, None)
    begun = time.perf_counter()
    train(rank, size, 0, TIMED, None)
    return flops, (time.perf_counter() - begun) / TIMED * steps


def published(rank):
    with PUBLISHED.open() as file:
        rows = [row for row in csv.DictReader(file) if (int(row["depth"]), int(row["multiplier"])) == (1, 1)]
    return next((float(row["error"]) for row in rows if int(row["rank"]) == rank), None)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rank", type=int, default=32, help="of a head; it divides the width")
    asked.add_argument("--laptop", action="store_true", help="the laptop's size instead of the published one")
    asked.add_argument("--seeds", type=int, default=1)
    asked.add_argument("--steps", type=int, default=0, help="fewer than the size has, to try it out")
    asked.add_argument("--run", action="store_true", help="train; without it, only the price is printed")
    given = asked.parse_args()
    size = "laptop" if given.laptop else "published"
    torch.set_num_threads(1)
    flops, seconds = price(given.rank, size)
    print(f"one run: {flops / 1e12:,.1f} TFLOP, about {seconds / 3600:.2f} hours on one core")
    if given.run:
        errors = [train(given.rank, size, seed, given.steps) for seed in range(given.seeds)]
        beside = f"; published {published(given.rank)}" if size == "published" else ""
        print(f"rank {given.rank}: {', '.join(f'{error:.4f}' for error in errors)}{beside}")
