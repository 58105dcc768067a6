"""Shapes of equal cost: which other shapes cost the same as this one?

    for row in equal_cost("w1792-h14-L28", vary=["heads"]):
        print(row.shape, row.difference)

Heads run over the divisors of H·r, so that H·r and H·v stay what they were (for most models, the width). Further axes
are free: ranks in multiples of 8, kv_heads among the divisors of H, latents in multiples of 8 up to what they stand for
(and none), the rotated part of a head, depth, MLP. A candidate that misses the budget gets the MLP that meets it, else
the depth. Budgets: `params` (of the body), `flops` (training, per token), `kv` (cached
numbers per token). No torch here; equal time needs measurements: `measure.step_time`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from headwise.cost import layer_flops, layer_parameters, parameters, sequence_length
from headwise.known import Known, find
from headwise.options import ModelOptions
from headwise.shape import DEEPEST, LARGEST, AttentionShape, ModelShape, ShapeError, divisors, nearest_divisors
from headwise.shown import Shown
from headwise.spec import SpecError

AXES = ("heads", "qk_rank", "v_rank", "kv_heads", "kv_latent", "q_latent", "rope_rank", "depth", "mlp")
STEP = 8  # ranks, latents and MLPs move in multiples of this: what hardware likes, and few enough to read
MOST_CANDIDATES = 100_000


@dataclass(frozen=True)
class Candidate:
    """A uniform stack: one layer, repeated."""

    layer: AttentionShape
    mlp: int
    depth: int

    @property
    def shape(self) -> ModelShape:
        return ModelShape(depth=self.depth, mlp=self.mlp, **self.layer.model_dump())


@dataclass(frozen=True)
class EqualCostShape:
    """A shape that meets the budget, with its parameters; `difference` is how far its body's are from the base's,
    `cost_difference` how far the fixed cost is."""

    shape: ModelShape
    parameters: int
    parameters_body: int
    difference: float
    cost_difference: float

    def as_dict(self) -> dict[str, Any]:
        fields = self.shape.model_dump()
        costs = {
            "parameters": self.parameters,
            "parameters_body": self.parameters_body,
            "difference": self.difference,
            "cost_difference": self.cost_difference,
        }
        return {"shape": str(self.shape), **fields, **costs}


class EqualShapes(list[EqualCostShape], Shown):
    """Shapes that cost what a base costs: a list of rows, and a table."""

    def __init__(self, rows: Iterable[EqualCostShape], base: str, hold: str, note: str = "") -> None:
        super().__init__(rows)
        self.base, self.hold, self.note = base, hold, note

    @property
    def headline(self) -> str:
        unit = " (of the body)" if self.hold == "params" else " (difference: in parameters of the body)"
        note = f"; {self.note}" if self.note else ""
        return f"{len(self)} shapes hold {self.hold}{unit}; base {self.base}{note}"

    def as_dict(self) -> list[Any]:
        """What `headwise shapes --json` prints."""
        return self.records()

    def records(self) -> list[dict[str, Any]]:
        return [row.as_dict() for row in self]


def equal_cost(
    base: ModelShape | str | Known,
    options: ModelOptions | None = None,
    *,
    hold: str = "params",
    tolerance: float | str = 0.01,
    vary: Sequence[str] = ("heads",),
    context: int = 0,
) -> EqualShapes:
    """Every shape that costs what the base costs, ordered by heads, ranks, sharing, latents, depth, MLP.

    `base` is a shape or the name of a known model, whose options count where none are given. `hold` is params, flops or
    kv (for equal time see `equal_time`), `tolerance` how far that cost may be off (0.01 or "1%"), `vary` any of AXES.
    """
    known = find(base) if isinstance(base, str) else base if isinstance(base, Known) else Known("", base)
    options = options or known.options
    base = options.complete(known.shape)
    tolerance, vary = read_fraction(tolerance), tuple(vary)
    if hold not in _PER_LAYER:
        raise SpecError(f"cannot hold '{hold}'; there are {', '.join(_PER_LAYER)} and time")
    if not 0 <= tolerance < 1:
        raise SpecError(f"a tolerance of {tolerance:g} makes no sense here; use 0 to 0.99, or a percentage as in 1%")
    start = starting_point(base)
    length = sequence_length(options, context)
    per_layer = _PER_LAYER[hold]
    budget = per_layer(start.layer, start.mlp, options, length) * start.depth
    counts = parameters(base, options)
    own, rest = counts["body"], counts["total"] - counts["body"]  # embeddings and head: the width stays
    note = "attention only: its experts are not counted" if known.experts else ""
    rows: dict[Candidate, EqualCostShape] = {}
    for candidate in candidates(start, vary, options):
        met = _meet(candidate, budget, tolerance, vary, lambda layer, mlp: per_layer(layer, mlp, options, length))
        if met is None or met in rows:
            continue
        cost = per_layer(met.layer, met.mlp, options, length) * met.depth
        edge = own - sum(layer_parameters(start.layer, start.mlp, options).values()) * start.depth
        body = sum(layer_parameters(met.layer, met.mlp, options).values()) * met.depth + edge
        rows[met] = EqualCostShape(met.shape, body + rest, body, body / own - 1, cost / budget - 1)
    return EqualShapes((rows[candidate] for candidate in sorted(rows, key=_order)), str(base), hold, note)


def read_fraction(text: float | str) -> float:
    """'1%' and 0.01 are the same."""
    if not isinstance(text, str):
        return text
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise SpecError(f"cannot read the tolerance '{text}'; write 1% or 0.01") from None


def _parameters(layer: AttentionShape, mlp: int, options: ModelOptions, _: int) -> int:
    return sum(layer_parameters(layer, mlp, options).values())


def _flops(layer: AttentionShape, mlp: int, options: ModelOptions, length: int) -> int:
    return layer_flops(layer, mlp, options, length, length)


def _cached(layer: AttentionShape, mlp: int, options: ModelOptions, _: int) -> int:
    return layer.cached_per_token


_PER_LAYER: dict[str, Callable[[AttentionShape, int, ModelOptions, int], int]] = {
    "params": _parameters,
    "flops": _flops,
    "kv": _cached,
}


# ---- candidates ----------------------------------------------------------------------------------------------------


def starting_point(base: ModelShape) -> Candidate:
    """The base as a stack of equal layers, which is what can be searched."""
    if len(set(zip(base.layers, base.mlps, strict=True))) > 1:
        equal = ModelShape.of([base.layers[0]] * base.depth, [base.mlps[0]] * base.depth)
        raise ShapeError(f"the layers of {base} differ, and a search needs equal ones", lambda: [str(equal)])
    return Candidate(base.layers[0], base.mlps[0], base.depth)


def candidates(
    start: Candidate, vary: tuple[str, ...], options: ModelOptions, most: int = MOST_CANDIDATES
) -> list[Candidate]:
    """The base first, then every combination of the axes, as these options build them."""
    if not vary or not set(vary) <= set(AXES):
        wrong = ", ".join(f"'{axis}'" for axis in vary if axis not in AXES) or "nothing"
        raise SpecError(f"cannot vary {wrong}; there are {', '.join(AXES)}")
    combined = list(islice(_combinations(start, vary, options.positions == "rotary"), most + 1))
    if len(combined) > most:
        raise SpecError(f"more than {most:,} candidates are too many here; vary fewer axes")
    return combined


def _combinations(start: Candidate, vary: tuple[str, ...], rotary: bool) -> Iterator[Candidate]:
    yield start
    layer = start.layer
    depths = range(1, 2 * start.depth + 1) if "depth" in vary else [start.depth]
    half = max(STEP, layer.width // 2)
    mlps = range(half, 8 * layer.width + 1, half) if "mlp" in vary else [start.mlp]
    for attention in _attentions(layer, vary, rotary):
        for depth, mlp in product(depths, mlps):
            yield Candidate(attention, mlp, depth)


def _attentions(base: AttentionShape, vary: tuple[str, ...], rotary: bool) -> Iterator[AttentionShape]:
    ranks = range(STEP, max(base.width, base.qk_rank, base.v_rank) + 1, STEP)
    qk_total, v_total = base.heads * base.qk_rank, base.heads * base.v_rank
    kv_latents = (
        _latents(base, base.kv_heads * (base.qk_rank + base.v_rank)) if "kv_latent" in vary else [base.kv_latent]
    )
    q_latents = _latents(base, qk_total) if "q_latent" in vary else [base.q_latent]
    for heads in divisors(qk_total) if "heads" in vary else [base.heads]:
        qk_ranks = ranks if "qk_rank" in vary else [_share(qk_total, heads)]
        v_ranks = ranks if "v_rank" in vary else [_share(v_total, heads)]
        groups = divisors(heads) if "kv_heads" in vary else [_same_sharing(base, heads)]
        for sizes in product([heads], qk_ranks, v_ranks, groups, kv_latents, q_latents):
            if all(sizes[:3]):
                layer = base.model_copy(update=dict(zip(AXES, sizes, strict=False)))
                yield from _every_rotation(layer) if "rope_rank" in vary else [_rotated_like(base, layer, rotary)]


def _share(total: int, heads: int) -> int:
    """What one head gets when the total is kept; 0 where it does not divide."""
    return 0 if total % heads else total // heads


def _same_sharing(base: AttentionShape, heads: int) -> int:
    """As many query heads for each key/value head as the base has, or the nearest that divides."""
    return nearest_divisors(heads, max(1, round(heads / base.group)), 1)[0]


def _latents(base: AttentionShape, whole: int) -> list[int]:
    """None, and every size up to what it stands for; wider than the tokens it would compress nothing."""
    return [0, *range(STEP, min(base.width, whole) + 1, STEP)]


def _every_rotation(layer: AttentionShape) -> Iterator[AttentionShape]:
    """Parts of a head that turn: in pairs where it is small. A latent leaves some of it as it is."""
    step = STEP if layer.qk_rank > 2 * STEP else 2
    for rope_rank in range(step, layer.qk_rank + (not layer.kv_latent), step):
        yield layer.model_copy(update={"rope_rank": rope_rank})


def _rotated_like(base: AttentionShape, layer: AttentionShape, rotary: bool) -> AttentionShape:
    """With the usual part that turns where the base has that, or the other kind of keys; else as much as fits."""
    usual = _usually_rotated(layer, rotary)
    if base == _usually_rotated(base, rotary) or bool(base.kv_latent) != bool(layer.kv_latent):
        return usual
    return layer.model_copy(update={"rope_rank": min(base.rope_rank, layer.qk_rank - bool(layer.kv_latent))})


def _usually_rotated(layer: AttentionShape, rotary: bool) -> AttentionShape:
    usual = layer.model_copy(update={"rope_rank": 0 if layer.kv_latent else layer.qk_rank})
    return usual.rotary if rotary else usual


# ---- meeting the budget --------------------------------------------------------------------------------------------


def _meet(
    candidate: Candidate,
    budget: int,
    tolerance: float,
    vary: tuple[str, ...],
    cost: Callable[[AttentionShape, int], int],
) -> Candidate | None:
    """The candidate, or with another MLP, or with another depth: the first that costs what it should."""
    layer, mlp, depth = candidate.layer, candidate.mlp, candidate.depth
    own = cost(layer, mlp)
    if _near(own * depth, budget, tolerance):
        return candidate
    if "mlp" not in vary and mlp and (slope := cost(layer, mlp + STEP) - own):
        solved = mlp + STEP * round((budget / depth - own) / slope)
        if STEP <= solved <= LARGEST and _near(cost(layer, solved) * depth, budget, tolerance):
            return replace(candidate, mlp=solved)
    if "depth" not in vary:
        solved = min(max(1, round(budget / own)), DEEPEST)
        if _near(own * solved, budget, tolerance):
            return replace(candidate, depth=solved)
    return None


def _near(cost: int, budget: int, tolerance: float) -> bool:
    return abs(cost - budget) <= tolerance * budget


def _order(candidate: Candidate) -> tuple[int, ...]:
    layer = candidate.layer
    return (*(getattr(layer, axis) for axis in AXES[:-2]), candidate.depth, candidate.mlp)
