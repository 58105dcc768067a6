"""What runs of several variants say of the variants' means: one design for paired runs, one for runs that are not.

Both take losses (less is better) by variant and seed, and give differences with t-intervals, draws from the posterior
of the means under a flat prior, and what more runs would bring. No torch here.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from statistics import fmean, variance
from typing import TYPE_CHECKING

from headwise.ledger.statistics import t_quantile

if TYPE_CHECKING:
    import numpy as np

Losses = Mapping[str, Mapping[int, float]]  # by variant and seed
ROUNDING = 1e-12  # of the losses: differences below it are none


class Design(ABC):
    """Losses of the variants that are judged."""

    how: str  # it works, in words

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self.variants = list(losses)
        self.rounding = ROUNDING * max((abs(one) for its in losses.values() for one in its.values()), default=0.0)

    @property
    @abstractmethod
    def answers(self) -> bool:
        """Whether there are runs enough to tell chance from an effect."""

    @property
    @abstractmethod
    def effects(self) -> dict[str, float]:
        """The variants' means, up to something that is the same in all of them."""

    @abstractmethod
    def standard_error(self, one: str, other: str, runs: int = 0) -> tuple[float, float]:
        """Of the difference of two variants, with its degrees of freedom; as it would be with so many runs of each."""

    @abstractmethod
    def draws(self, random: "np.random.Generator", many: int) -> "np.ndarray":
        """Of the posterior of the effects: a row per draw, a column per variant."""

    def difference(self, one: str, other: str, level: float) -> tuple[float, float, float]:
        """Of two variants' means, with its interval; everything where there is nothing to estimate noise from."""
        gap = self.effects[one] - self.effects[other]
        if not self.answers:
            return gap, -math.inf, math.inf
        unit, freedom = self.standard_error(one, other)
        half = t_quantile(freedom, level) * unit
        return gap, gap - half, gap + half


class Paired(Design):
    """Randomised blocks: loss = variant + seed + noise, the noise alike in all variants.

    Seeds cancel. Where a variant lacks a seed, the effects are those of least squares (the intra-block analysis of
    incomplete blocks): every two variants that share a seed count, and where none is missing they are plain means.
    """

    how = "with seeds cancelled, noise taken to be alike in all variants"

    def __init__(self, losses: Losses) -> None:
        """Seeds that only one of several variants has say nothing of differences, and are left out."""
        many = [seed for its in losses.values() for seed in its]
        self.seeds = sorted(seed for seed in set(many) if many.count(seed) > 1 or len(losses) == 1)
        super().__init__({v: {s: its[s] for s in self.seeds if s in its} for v, its in losses.items()})

    @property
    def freedom(self) -> int:
        runs = sum(len(its) for its in self.losses.values())
        return runs - len(self.variants) - len(self.seeds) + 1

    @property
    def answers(self) -> bool:
        return len(self.variants) > 1 and self.freedom > 0

    @cached_property
    def effects(self) -> dict[str, float]:
        import numpy as np

        totals = np.array([sum(its[s] - self._of_seed[s] for s in its) for its in self.losses.values()])
        return dict(zip(self.variants, map(float, self._covariance @ totals), strict=True))

    @cached_property
    def _of_seed(self) -> dict[int, float]:
        return {s: fmean(its[s] for its in self.losses.values() if s in its) for s in self.seeds}

    @cached_property
    def _covariance(self) -> "np.ndarray":
        """Of the effects, where the noise has variance one; what is common to all of them is arbitrary."""
        import numpy as np

        ran = np.array([[float(s in its) for s in self.seeds] for its in self.losses.values()])
        information = np.diag(ran.sum(1)) - (ran / ran.sum(0)) @ ran.T
        return np.asarray(np.linalg.pinv(information) + 1 / ran.sum())

    @cached_property
    def variance(self) -> float:
        """Of one run's noise: what neither the variant nor the seed explains."""
        left = {v: {s: loss - self.effects[v] for s, loss in its.items()} for v, its in self.losses.items()}
        of_seed = {s: fmean(its[s] for its in left.values() if s in its) for s in self.seeds}
        squares = sum((loss - of_seed[s]) ** 2 for its in left.values() for s, loss in its.items())
        return squares / self.freedom if squares > self.rounding**2 else 0.0

    def standard_error(self, one: str, other: str, runs: int = 0) -> tuple[float, float]:
        if runs:
            return math.sqrt(2 * self.variance / runs), (len(self.variants) - 1) * (runs - 1)
        a, b = self.variants.index(one), self.variants.index(other)
        spread = self._covariance[a, a] + self._covariance[b, b] - 2 * self._covariance[a, b]
        return math.sqrt(max(0.0, float(spread)) * self.variance), self.freedom

    def draws(self, random: "np.random.Generator", many: int) -> "np.ndarray":
        import numpy as np

        noise = random.standard_normal((many, len(self.variants))) @ np.linalg.cholesky(self._covariance).T
        scale = np.sqrt(self.freedom / random.chisquare(self.freedom, (many, 1)))
        return np.array(list(self.effects.values())) + noise * scale * math.sqrt(self.variance)


class Unpaired(Design):
    """Runs that have nothing in common: each variant has its own mean and noise (Welch's t, Behrens and Fisher)."""

    how = "runs not paired, each variant with noise of its own (Welch)"

    @property
    def answers(self) -> bool:
        return len(self.variants) > 1 and all(len(its) > 1 for its in self.losses.values())

    @cached_property
    def effects(self) -> dict[str, float]:
        return {variant: fmean(its.values()) for variant, its in self.losses.items()}

    @cached_property
    def _variances(self) -> dict[str, float]:
        found = {variant: variance(its.values()) for variant, its in self.losses.items()}
        return {variant: one if one > self.rounding**2 else 0.0 for variant, one in found.items()}

    def standard_error(self, one: str, other: str, runs: int = 0) -> tuple[float, float]:
        many = [runs or len(self.losses[variant]) for variant in (one, other)]
        parts = [self._variances[variant] / n for variant, n in zip((one, other), many, strict=True)]
        if not sum(parts):
            return 0.0, min(many) - 1
        return math.sqrt(sum(parts)), sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, many, strict=True))

    def draws(self, random: "np.random.Generator", many: int) -> "np.ndarray":
        import numpy as np

        columns = [
            effect + math.sqrt(self._variances[variant] / n) * random.standard_t(n - 1, many)
            for (variant, effect), n in zip(self.effects.items(), map(len, self.losses.values()), strict=True)
        ]
        return np.stack(columns, axis=1)
