"""Is anything in a store below what is certified? The bounds' hypotheses are read off each run. No torch here."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from headwise.mixer import layer_mixers
from headwise.theory.bounds import Bound, certified
from headwise.theory.exact import Values
from headwise.training.run import Run, RunResult

STANDARD_ERRORS = 4.0
_TASK: dict[str, str | int] = {
    "name": "nearest-neighbor",
    "points": 2,
    "layout": "orthogonal",
    "queries": "separate",
}
COVERED = {f"task.{name}": [value] for name, value in _TASK.items()} | {"options.norm": ["none"]}  # in a store
_SCALAR = ("random-heads", "fitted-heads")  # constructions whose values are multiples of I


@dataclass(frozen=True)
class Checked:
    """A run that meets the hypotheses: how far its error lies above its bound, in standard errors of the error."""

    key: str
    error: float
    bound: float
    margin: float

    @property
    def violates(self) -> bool:
        return self.margin < -STANDARD_ERRORS


def check(pairs: Iterable[tuple[Run, RunResult]]) -> list[Checked]:
    """The runs that a bound covers, closest to it first."""
    checked = []
    for run, result in pairs:
        bound = bound_of(run) if result.status == "done" else None
        if bound is not None and bound.value > 0:
            error, spread = result.metrics.get("error", math.nan), result.metrics.get("standard_error", 0.0)
            if math.isfinite(error) and math.isfinite(spread):  # others' rows may hold anything
                checked.append(Checked(run.key, error, bound.value, (error - bound.value) / max(spread, 1e-12)))
    return sorted(checked, key=lambda one: one.margin)


def bound_of(run: Run) -> Bound | None:
    """The bound on a run's error; None where it does not do the bound's task with the bound's kind of model."""
    if not _asks_for_it(run) or not _is_bare(run):
        return None
    layer = run.model_shape.layers[0]
    if layer.qk_rank >= layer.width:
        return None
    values: Values = "scalar" if _scalar_values(run) else "free"
    constant = run.options.residual or run.options.bias != "none"  # anything that is added whatever the points are
    return _certified(layer.width, layer.qk_rank, layer.heads, layer.kv_heads, layer.kv_latent, values, constant)


def _asks_for_it(run: Run) -> bool:
    """Two orthonormal points, one query apart, the nearest wanted; whatever else the task can do is left alone."""
    usual = {"bias": 0.0, "target": "nearest", "tags": False, "notes": 0, "answer": "in-place"}
    asked = all(run.task.get(name) == value for name, value in _TASK.items())
    return asked and all(run.task.get(name, value) == value for name, value in usual.items())


def _is_bare(run: Run) -> bool:
    """One attention layer, no MLP, no norm; a residual and biases are what the bound calls a skip connection."""
    options, shape = run.options, run.model_shape
    known = all(mixer.certified for mixer in layer_mixers(options, shape))
    return known and shape.depth == 1 and not shape.mlps[0] and options.norm == "none" and options.family == "encoder"


def _scalar_values(run: Run) -> bool:
    name = run.begin.get("name")
    return not run.steps and name in _SCALAR and run.begin.get("values", "scalar") == "scalar"


@lru_cache(maxsize=1024)
def _certified(dim: int, rank: int, heads: int, kv_heads: int, kv_latent: int, values: Values, skip: bool) -> Bound:
    return certified(dim, rank, heads, values, skip, kv_heads=kv_heads, kv_latent=kv_latent or None)
