"""The rank cliff in a minute: encoders of equal size, from one head of full rank to many of rank 1.

The study `rank-cliff` with its `demo` preset: what the demo shows is what a study does.
"""

from dataclasses import dataclass
from statistics import mean
from typing import Any

from headwise.store.rows import Row


@dataclass(frozen=True)
class Demo:
    """What the demo found; `verdict` says it in a sentence."""

    rows: list[dict[str, Any]]
    trivial_error: float
    steps: int

    @property
    def verdict(self) -> str:
        full, half = self.rows[0], self.rows[1]
        told = (
            f"with the same {full['parameters']:,} parameters, {_heads(full)} has error {full['error']:.2f} "
            f"and {_heads(half)} have {half['error']:.2f} (trivial: {self.trivial_error:.2f})"
        )
        if full["high"] < 0.5 * half["low"]:
            return f"Rank decides what a head can see: {told}."
        return f"No cliff after {self.steps} steps: {told}. The usual 2,000 steps show it."


def summarise(rows: list[Row], steps: int) -> Demo:
    """One line a shape, from full rank down."""
    found = []
    for rank in sorted({row.cell["rank"] for row in rows}, reverse=True):
        cell = [row for row in rows if row.cell["rank"] == rank]
        errors = [row.metrics["error"] for row in cell]
        sizes = {"heads": int(cell[0].metrics["heads"]), "parameters": int(cell[0].metrics["parameters"])}
        spread = {"error": mean(errors), "low": min(errors), "high": max(errors), "seeds": len(errors)}
        found.append({**sizes, "qk_rank": rank, **spread})
    return Demo(found, mean(row.metrics["trivial_error"] for row in rows), steps)


def _heads(row: dict[str, Any]) -> str:
    return f"{row['heads']} head{'s' if row['heads'] > 1 else ''} of rank {row['qk_rank']}"
