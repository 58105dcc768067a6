"""The ledger: what the papers claim, and what the store's runs say about it.

A claim is decided by comparisons: each is a ratio of errors (or of the trivial error to one), paired by seed, with a
t-interval on its logarithm; or a number that is proved, not sampled (`exact`), which is its own interval. The level is
divided among a claim's comparisons, so that one verdict is wrong in at most 1 of 20 cases. Verdicts are recomputed from
the rows every time. No torch here.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Literal

Verdict = Literal["holds", "fails", "open"]
LEVEL = 0.95
LEAST_SEEDS = 3
SOURCES = {"Q": "rank", "N": "nanochat", "L": "heads and depth"}  # by the first letter of a claim


@dataclass(frozen=True)
class Row:
    """One finished run as a claim sees it: its cell and seed, its metrics, and (step, name, value) on the way there."""

    cell: dict[str, Any]
    seed: int
    metrics: dict[str, float]
    key: str
    history: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Whether a ratio, one value a seed, lies above `above`; an exact one has a single value and no seeds."""

    what: str
    ratios: tuple[float, ...]
    above: float
    keys: tuple[str, ...] = ()
    published: float | None = None
    exact: bool = False


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper with what decides it; `computed` where that takes no runs."""

    id: str
    claim: str
    source: str
    study: str
    decide: Callable[[list[Row]], list[Comparison]]
    computed: bool = False


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


def proved(what: str, value: float, above: float, published: float | None = None) -> Comparison:
    """A number that follows from a theorem, and no sample."""
    return Comparison(what, (value,), above, published=published, exact=True)


def compare(
    what: str,
    above: Iterable[Row],
    below: Iterable[Row],
    threshold: float,
    published: float | None = None,
    metric: str = "error",
) -> Comparison:
    """Errors (or another metric) of one cell over those of another, seed by seed."""
    tops, bottoms = ({row.seed: row for row in rows} for rows in (above, below))
    seeds = sorted(tops.keys() & bottoms.keys())
    ratios = tuple(tops[s].metrics[metric] / bottoms[s].metrics[metric] for s in seeds)
    keys = tuple(row.key for s in seeds for row in (tops[s], bottoms[s]))
    return Comparison(what, ratios, threshold, keys, published)


def beats_trivial(what: str, rows: Iterable[Row], factor: float) -> Comparison:
    """The trivial error over a cell's error, seed by seed."""
    return each(what, rows, lambda row: row.metrics["trivial_error"] / row.metrics["error"], factor)


def each(
    what: str, rows: Iterable[Row], ratio: Callable[[Row], float], above: float, published: float | None = None
) -> Comparison:
    """A ratio that each row of a cell has by itself, seed by seed."""
    used = sorted(rows, key=lambda row: row.seed)
    return Comparison(what, tuple(ratio(row) for row in used), above, tuple(row.key for row in used), published)


def times(value: float, metric: str = "error") -> Callable[[Row], float]:
    """A metric as a multiple of a value."""
    return lambda row: row.metrics[metric] / value


def below(value: float, metric: str = "error") -> Callable[[Row], float]:
    """A value as a multiple of a metric."""
    return lambda row: value / row.metrics[metric]


def agree(
    what: str, values: Iterable[float], value: float, within: float, keys: tuple[str, ...] = ()
) -> list[Comparison]:
    """Two comparisons: values over another, and the other over them, each above `within`."""
    ratios = tuple(one / value for one in values)
    over = Comparison(f"{what}: their ratio", ratios, within, keys)
    return [over, Comparison(f"{what}: the inverse ratio", tuple(1 / ratio for ratio in ratios), within, keys)]


def cell(rows: Iterable[Row], **place: Any) -> list[Row]:
    """The rows of one place of a grid."""
    return [row for row in rows if all(row.cell.get(name) == value for name, value in place.items())]


def interval(ratios: tuple[float, ...], level: float) -> tuple[float, float, float]:
    """Geometric mean of the ratios with a t-interval; without spread to estimate, the interval is everything."""
    logs = [math.log(ratio) for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
    if len(logs) < 2 or len(logs) < len(ratios):
        return (math.exp(mean(logs)) if logs else math.nan), 0.0, math.inf
    from scipy.special import stdtrit  # the t quantile, without the weight of scipy.stats

    half = float(stdtrit(len(logs) - 1, 0.5 + level / 2)) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean(logs)), math.exp(mean(logs) - half), math.exp(mean(logs) + half)


def _interval(comparison: Comparison, level: float) -> tuple[float, float, float]:
    if comparison.exact:
        (value,) = comparison.ratios
        return value, value, value
    return interval(comparison.ratios, level)


def judge(claim: Claim, preset: str, rows: list[Row], settle: str, whole: bool = True) -> Judgement:
    """The verdict of one preset's rows: all comparisons must hold, one that fails is enough; open if rows lack."""
    comparisons = claim.decide(rows) if claim.computed or (rows and whole) else []
    if not comparisons:
        nothing = Comparison("not all of its cells have runs" if rows else "no runs yet", (), math.nan, ())
        return Judgement(claim, "open", preset, nothing, math.nan, 0.0, math.inf, 0, (), settle)
    level = 1 - (1 - LEVEL) / len(comparisons)
    judged = [(comparison, *_interval(comparison, level)) for comparison in comparisons]
    sampled = [len(comparison.ratios) for comparison in comparisons if not comparison.exact]
    seeds = min(sampled, default=0)
    runs = tuple(dict.fromkeys(key for comparison in comparisons for key in comparison.keys))
    weakest = min(judged, key=lambda found: found[2] / found[0].above)  # the lowest, against what it should exceed
    failing = [found for found in judged if found[3] < found[0].above]
    verdict: Verdict = "open"
    if (seeds >= LEAST_SEEDS or not sampled) and (claim.computed or preset != "smoke"):
        holds = all(low > comparison.above for comparison, _, low, _ in judged)
        verdict = "fails" if failing else "holds" if holds else "open"
    decided = failing[0] if verdict == "fails" else weakest
    return Judgement(claim, verdict, preset, *decided, seeds, runs, settle if verdict == "open" else "")


def place(judgement: Judgement) -> tuple[int, int]:
    """Of a claim in the ledger: as the sources are listed, then by number, Q2 before Q13."""
    return list(SOURCES).index(judgement.claim.id[0]), int(judgement.claim.id[1:])


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
