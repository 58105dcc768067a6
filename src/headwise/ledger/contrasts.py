"""The statistics of registered tests: rows on a test's scale, its contrast, and p-values in both directions.

Their source is part of a registration's hash (`STATISTICS`): a change here is a new registration of every study.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from headwise.ledger import statistics
from headwise.ledger.statistics import Blocks, Estimate, contrast, share_bounds

SOLVED_BELOW = 0.05  # an error that counts as solved
Strata = Mapping[str, Blocks]  # by stratum, variant and seed: errors
NoSkill = Mapping[str, float]  # by stratum: the error of a constant predictor


@dataclass(frozen=True)
class ShareDifference:
    """Of two shares of seeds: as `Estimate`, with exact bounds on each share that have half of what may go wrong."""

    solved: tuple[int, int]
    counts: tuple[int, int]

    @property
    def value(self) -> float:
        return self.solved[0] / self.counts[0] - self.solved[1] / self.counts[1]

    @property
    def freedom(self) -> float:
        return float(min(self.counts) - 1)

    def bounds(self, level: float) -> tuple[float, float]:
        (low, high), (least, most) = (
            share_bounds(n, of, (1 - level) / 4) for n, of in zip(self.solved, self.counts, strict=True)
        )
        return low - most, high - least

    def chance_above(self, threshold: float) -> float:
        """The smallest one-sided level at which the bound lies above, by bisection."""
        return self._chance(lambda level: self.bounds(level)[0] > threshold)

    def chance_below(self, threshold: float) -> float:
        return self._chance(lambda level: self.bounds(level)[1] < threshold)

    @staticmethod
    def _chance(clears: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0  # of a one-sided chance
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if clears(1 - 2 * middle) else (middle, high)
        return high


AnyEstimate = Estimate | ShareDifference


def log_scale(strata: Strata) -> dict[str, dict[str, dict[int, float]]]:
    """Logarithms of errors: a contrast is a ratio."""
    return {
        stratum: {name: {seed: math.log(error) for seed, error in its.items()} for name, its in blocks.items()}
        for stratum, blocks in strata.items()
    }


def gain_scale(strata: Strata, no_skill: NoSkill, base: str) -> dict[str, dict[str, dict[int, float]]]:
    """Errors in units of what the base gained over a constant predictor: a difference is a share of the gain lost."""
    scaled = {}
    for stratum, blocks in strata.items():
        if base in blocks:
            unit = no_skill[stratum] - mean(blocks[base].values())
            scaled[stratum] = {name: {s: error / unit for s, error in its.items()} for name, its in blocks.items()}
    return scaled


def solved_difference(strata: Strata, weights: Mapping[str, Mapping[str, float]]) -> ShareDifference | None:
    """Of the shares of seeds that solved the task: the variant of weight 1 against that of weight -1."""
    ((stratum, pair),) = weights.items()
    names = sorted(pair, key=lambda name: -pair[name])
    blocks = strata.get(stratum, {})
    if any(not blocks.get(name) for name in names):
        return None
    solved = [sum(error < SOLVED_BELOW for error in blocks[name].values()) for name in names]
    return ShareDifference((solved[0], solved[1]), (len(blocks[names[0]]), len(blocks[names[1]])))


def estimate(scale: str, strata: Strata, no_skill: NoSkill, weights: Any, base: str) -> AnyEstimate | None:
    """A test's contrast on its scale; None where it lacks runs."""
    if scale == "solved":
        return solved_difference(strata, weights)
    found = contrast(log_scale(strata) if scale == "log" else gain_scale(strata, no_skill, base), weights)
    return found if math.isfinite(found.value) else None


STATISTICS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        estimate,
        log_scale,
        gain_scale,
        solved_difference,
        contrast,
        statistics._stratum,
        statistics.t_quantile,
        statistics.t_tail,
        share_bounds,
    )
}
