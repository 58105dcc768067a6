"""Is there a threshold, or only a falling curve? A change point against a power law, by leaving out one dose at a time.

Errors at several doses x (a rank as a part of the dimension, below 1) are given per seed. The power law says
log e = a + p log(1 − x); the change point says log e is a line up to some dose and another line from there on, joined.
Each predicts every dose from the others; what is judged is log(squared misses of the change point / of the power law),
seed by seed: below 0 the change point predicts better. Any falling curve crosses a level, so that a level proves
nothing. The sources are part of the hash of a registration that uses them (`CURVES`).
"""

import math
from collections.abc import Callable, Mapping
from statistics import mean, stdev
from typing import Any

from headwise.ledger.statistics import Estimate

KNEES = 40  # doses that are tried as the change point, evenly between the second and the last but one


def change_point(blocks: Mapping[str, Mapping[int, float]], doses: Mapping[str, float]) -> Estimate | None:
    """Over seeds that have every dose: the mean of the logarithm, and its standard error; None where runs lack."""
    if any(name not in blocks for name in doses):
        return None
    seeds = sorted(set.intersection(*(set(blocks[name]) for name in doses)))
    if len(seeds) < 2:
        return None
    names = sorted(doses, key=lambda name: doses[name])
    x = [doses[name] for name in names]
    values = []
    for seed in seeds:
        y = [math.log(blocks[name][seed]) for name in names]
        values.append(math.log(left_out(x, y, two_lines) / left_out(x, y, power_law)))
    return Estimate(mean(values), stdev(values) / math.sqrt(len(values)), len(values) - 1)


def left_out(x: list[float], y: list[float], predicted: Callable[[Any, Any, float], float]) -> float:
    """Sum of squared misses, each dose predicted from the others; never quite 0."""
    misses = [
        y[i] - predicted([*x[:i], *x[i + 1 :]], [*y[:i], *y[i + 1 :]], x[i]) for i in range(len(x))
    ]  # fmt: skip
    return sum(miss * miss for miss in misses) + 1e-12


def power_law(x: list[float], y: list[float], at: float) -> float:
    import numpy as np

    slope, level = np.polyfit([math.log(1 - one) for one in x], y, 1)
    return float(level + slope * math.log(1 - at))


def two_lines(x: list[float], y: list[float], at: float) -> float:
    """Two joined lines: at each knee the best by least squares, and of these the best."""
    import numpy as np

    def columns(doses: Any, knee: float) -> Any:
        return np.stack([np.ones_like(doses), doses, np.maximum(doses - knee, 0.0)], -1)

    doses, logs = np.array(x), np.array(y)
    fits = []
    for knee in np.linspace(x[1], x[-2], KNEES):
        table = columns(doses, knee)
        weights = np.linalg.lstsq(table, logs, rcond=None)[0]
        fits.append((float(np.square(table @ weights - logs).sum()), knee, weights))
    _, knee, weights = min(fits, key=lambda fit: fit[0])
    return float((columns(np.array([at]), knee) @ weights)[0])


CURVES: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (change_point, left_out, power_law, two_lines)
}
