"""The ledger: what the papers claim, and what the store's runs say about it.

A claim is decided by comparisons: each is a ratio of errors (or of the trivial error to one), paired by seed, with a
t-interval on its logarithm; or a number that is proved, not sampled (`exact`), which is its own interval. The level is
divided among a claim's comparisons, so that one verdict is wrong in at most 1 of 20 cases. Verdicts are recomputed from
the rows every time. No torch here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headwise.store.rows import Row


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
