"""The ledger: what the papers claim, and what the store's runs say about it.

A claim is decided by comparisons: each is a ratio of errors (or of the trivial error to one), paired by seed, with a
t-interval on its logarithm. The level is divided among a claim's comparisons, so that one verdict is wrong in at most
1 of 20 cases. Verdicts are recomputed from the rows every time. No torch here.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Literal

Verdict = Literal["holds", "fails", "open"]
LEVEL = 0.95
LEAST_SEEDS = 3


@dataclass(frozen=True)
class Row:
    """One finished run as a claim sees it: the cell it belongs to, its seed and its metrics."""

    cell: dict[str, Any]
    seed: int
    metrics: dict[str, float]
    key: str


@dataclass(frozen=True)
class Comparison:
    """Whether a ratio, one value a seed, lies above `above`."""

    what: str
    ratios: tuple[float, ...]
    above: float
    keys: tuple[str, ...]
    published: float | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper with what decides it."""

    id: str
    claim: str
    source: str
    study: str
    decide: Callable[[list[Row]], list[Comparison]]


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict: the comparison that decided it with its interval, and the runs behind all of them."""

    claim: Claim
    verdict: Verdict
    preset: str
    comparison: Comparison
    estimate: float
    low: float
    high: float
    seeds: int
    runs: tuple[str, ...]
    settle: str

    def as_dict(self) -> dict[str, Any]:
        claim = self.claim
        about = {"id": claim.id, "claim": claim.claim, "source": claim.source, "study": claim.study}
        decided = {"verdict": self.verdict, "preset": self.preset, "what": self.comparison.what}
        numbers = {name: _finite(getattr(self, name)) for name in ("estimate", "low", "high")}
        wanted = {"above": self.comparison.above, "published": self.comparison.published}
        return {
            **about,
            **decided,
            **numbers,
            **wanted,
            "seeds": self.seeds,
            "runs": list(self.runs),
            "settle": self.settle,
        }


def compare(
    what: str, above: Iterable[Row], below: Iterable[Row], threshold: float, published: float | None = None
) -> Comparison:
    """Errors of one cell over errors of another, seed by seed."""
    tops, bottoms = ({row.seed: row for row in rows} for rows in (above, below))
    seeds = sorted(tops.keys() & bottoms.keys())
    ratios = tuple(tops[s].metrics["error"] / bottoms[s].metrics["error"] for s in seeds)
    keys = tuple(row.key for s in seeds for row in (tops[s], bottoms[s]))
    return Comparison(what, ratios, threshold, keys, published)


def beats_trivial(what: str, rows: Iterable[Row], factor: float) -> Comparison:
    """The trivial error over a cell's error, seed by seed."""
    used = sorted(rows, key=lambda row: row.seed)
    ratios = tuple(row.metrics["trivial_error"] / row.metrics["error"] for row in used)
    return Comparison(what, ratios, factor, tuple(row.key for row in used))


def interval(ratios: tuple[float, ...], level: float) -> tuple[float, float, float]:
    """Geometric mean of the ratios with a t-interval; without spread to estimate, the interval is everything."""
    logs = [math.log(ratio) for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
    if len(logs) < 2 or len(logs) < len(ratios):
        return (math.exp(mean(logs)) if logs else math.nan), 0.0, math.inf
    from scipy.special import stdtrit  # the t quantile, without the weight of scipy.stats

    half = float(stdtrit(len(logs) - 1, 0.5 + level / 2)) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean(logs)), math.exp(mean(logs) - half), math.exp(mean(logs) + half)


def judge(claim: Claim, preset: str, rows: list[Row], settle: str) -> Judgement:
    """The verdict of the rows of one preset: all comparisons must hold; one that fails is enough to fail."""
    comparisons = claim.decide(rows) if rows else []
    if not comparisons:
        nothing = Comparison("no runs yet", (), math.nan, ())
        return Judgement(claim, "open", preset, nothing, math.nan, 0.0, math.inf, 0, (), settle)
    level = 1 - (1 - LEVEL) / len(comparisons)
    judged = [(comparison, *interval(comparison.ratios, level)) for comparison in comparisons]
    seeds = min(len(comparison.ratios) for comparison in comparisons)
    runs = tuple(dict.fromkeys(key for comparison in comparisons for key in comparison.keys))
    weakest = min(judged, key=lambda found: found[2] / found[0].above)  # the lowest, against what it should exceed
    failing = [found for found in judged if found[3] < found[0].above]
    verdict: Verdict = "open"
    if seeds >= LEAST_SEEDS and preset != "smoke":
        holds = all(low > comparison.above for comparison, _, low, _ in judged)
        verdict = "fails" if failing else "holds" if holds else "open"
    decided = failing[0] if verdict == "fails" else weakest
    return Judgement(claim, verdict, preset, *decided, seeds, runs, settle if verdict == "open" else "")


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
