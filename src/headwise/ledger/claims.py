"""Claims, and the comparisons that decide them, as data; `report.ledger` renders the sentences.

A comparison is a ratio of a metric of a variant to that of its baseline, paired by seed, with a t-interval on its
logarithm; or a number that is proved, not sampled (`exact`), which is its own interval. The confidence level is divided
among a claim's comparisons, so that one verdict is wrong in at most 1 of 20 cases. Verdicts are recomputed from the
rows every time. No torch here.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from headwise.store.rows import Row

Direction = Literal["higher", "lower"]
Unit = Literal["ratio", "value"]

ERROR, BITS, MASKED_BITS = "test error", "bits per byte", "masked-LM bits per byte"
PARAMETERS, FLOPS, SECONDS, CACHE = "parameters", "training FLOPs", "training seconds", "KV cache bytes/token"
KAPPA, STEPS = "condition number κ", "steps to target"
NO_SKILL = "a constant predictor"


@dataclass(frozen=True)
class Comparison:
    """A metric of a variant against its baseline's, one ratio per seed, and what a claim requires of it.

    `ratios` are oriented so that the claim requires them above `threshold`: variant over baseline where the variant is
    to be `higher`, baseline over variant where it is to be `lower`; `published` and `beside` (named ratios that decide
    nothing) likewise. With the unit "value" they are the metric itself, of `variant` alone. An exact comparison has one
    number and no seeds.
    """

    metric: str
    variant: str
    baseline: str
    ratios: tuple[float, ...]
    threshold: float
    direction: Direction = "higher"
    unit: Unit = "ratio"
    where: str = ""
    keys: tuple[str, ...] = ()
    published: float | None = None
    beside: tuple[tuple[str, float], ...] = ()
    note: str = ""
    exact: bool = False

    @property
    def margin(self) -> float | None:
        """What is required, as a difference of the variant from the baseline in parts of the latter."""
        return self.relative(self.threshold) - 1 if self.unit == "ratio" else None

    @property
    def subject(self) -> str:
        """What is compared, without the metric."""
        pair = f"{self.variant} vs {self.baseline}" if self.baseline else self.variant
        return f"{pair}; {self.where}" if self.where else pair

    def relative(self, ratio: float) -> float:
        """A ratio as it is judged, as variant over baseline."""
        if self.direction == "higher":
            return ratio
        return 1 / ratio if ratio else math.inf


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper with what decides it; `computed` where that takes no runs."""

    id: str
    claim: str
    source: str
    study: str
    decide: Callable[[list[Row]], list[Comparison]]
    computed: bool = False
    caveat: str = ""
    untestable: str = ""  # why these runs could not have answered: the verdict is then `cannot tell`
    restated: str = ""  # what it said before, or why it says something else now
    needs: str = ""  # what would decide it, where no study here can: it is open


def undecided(name: str, claim: str, source: str, study: str, needs: str) -> Claim:
    """A claim that is listed, although no run here could decide it: what would stands in its place."""
    return Claim(name, claim, source, study, lambda rows: [], needs=needs)


class Variant(NamedTuple):
    """One side of a comparison: its name, and its rows."""

    name: str
    rows: Sequence[Row]


def against(
    metric: str,
    variant: str,
    baseline: str,
    ratios: Iterable[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    **details: Any,
) -> Comparison:
    """Ratios of a variant to its baseline, required to be at least, or at most, so much."""
    if at_most is not None and at_least is None:
        inverse = tuple(1 / ratio if ratio else math.inf for ratio in ratios)
        return Comparison(metric, variant, baseline, inverse, 1 / at_most, "lower", **details)
    if at_least is None or at_most is not None:
        raise ValueError("a comparison requires either at least or at most so much")
    return Comparison(metric, variant, baseline, tuple(ratios), at_least, "higher", **details)


def paired(
    variant: Variant, baseline: Variant, *, metric: str = ERROR, field: str = "error", **required: Any
) -> Comparison:
    """A metric (in rows: `field`) of one cell over that of another, seed by seed; `required` as in `against`."""
    mine, theirs = ({row.seed: row for row in side.rows} for side in (variant, baseline))
    seeds = sorted(mine.keys() & theirs.keys())
    ratios = [mine[seed].metrics[field] / theirs[seed].metrics[field] for seed in seeds]
    keys = tuple(row.key for seed in seeds for row in (mine[seed], theirs[seed]))
    return against(metric, variant.name, baseline.name, ratios, keys=keys, **required)


def paired_effects(
    metric: str,
    variant: tuple[str, Sequence[Row], Sequence[Row]],
    baseline: tuple[str, Sequence[Row], Sequence[Row]],
    **required: Any,
) -> Comparison:
    """One ratio of errors over another, seed by seed: whether an effect is larger here than there."""
    tables = [{row.seed: row for row in rows} for rows in (*variant[1:], *baseline[1:])]
    seeds = sorted(set.intersection(*(set(table) for table in tables)))
    errors = [[table[seed].metrics["error"] for table in tables] for seed in seeds]
    keys = tuple(table[seed].key for seed in seeds for table in tables)
    return against(metric, variant[0], baseline[0], [a / b / (c / d) for a, b, c, d in errors], keys=keys, **required)


def per_seed(
    variant: Variant, baseline: str, ratio: Callable[[Row], float], *, metric: str = ERROR, **required: Any
) -> Comparison:
    """A ratio to a baseline that each row of a cell has by itself, seed by seed."""
    rows = sorted(variant.rows, key=lambda row: row.seed)
    keys = tuple(row.key for row in rows)
    return against(metric, variant.name, baseline, [ratio(row) for row in rows], keys=keys, **required)


def beats_no_skill(variant: Variant, *, at_most: float, metric: str = ERROR, **details: Any) -> Comparison:
    """The error of a cell over that of a constant predictor, seed by seed."""
    return per_seed(variant, NO_SKILL, times("trivial_error"), metric=metric, at_most=at_most, **details)


def times(other: str, field: str = "error") -> Callable[[Row], float]:
    """One metric of a row as a multiple of another."""
    return lambda row: row.metrics[field] / row.metrics[other]


def exactly(metric: str, variant: str, baseline: str, ratio: float, **required: Any) -> Comparison:
    """A ratio that is known, and no sample."""
    return against(metric, variant, baseline, [ratio], exact=True, **required)


def proved(metric: str, of: str, value: float, *, at_least: float, **details: Any) -> Comparison:
    """A number that follows from a theorem."""
    return exactly(metric, of, "", value, at_least=at_least, unit="value", **details)


def agree(
    metric: str, variant: str, baseline: str, ratios: Iterable[float], within: float, **details: Any
) -> list[Comparison]:
    """Two comparisons: no less than `within` of the baseline, and no more than its inverse."""
    same = tuple(ratios)
    sides: tuple[dict[str, float], ...] = ({"at_least": within}, {"at_most": 1 / within})
    return [against(metric, variant, baseline, same, **side, **details) for side in sides]


def parameters_saved(variant: Variant, baseline: Variant, part: float) -> Comparison:
    """A variant has at least so much fewer parameters than its baseline: exact, since sizes are."""
    mine, theirs = (side.rows[0].metrics["parameters"] for side in (variant, baseline))
    return exactly(PARAMETERS, variant.name, baseline.name, mine / theirs, at_most=1 - part)
