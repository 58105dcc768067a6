"""Shapes of equal cost: which other shapes cost the same as this one?

    for row in equal_cost("w1792-h14-L28", vary=["heads"]):
        print(row.shape, row.difference)

Heads run over the divisors of H·r, so that H·r and H·v stay what they were (for most models, the width). Further axes
are free: ranks in multiples of 8, kv_heads among the divisors of H, latents in multiples of 8 up to what they stand for
(and none), the rotated part of a head, depth, MLP. A candidate that misses the budget gets the MLP that meets it, else
the depth. Budgets: `params` (of the body), `flops` (training, per token), `kv` (cached
numbers per token). No torch here; equal time needs measurements: `measure.step_time`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from headwise.cost import forward_flops, layer_flops, parameters, sequence_length, stack_parameters
from headwise.known import Experts, Known, find
from headwise.mixer import find_mixer
from headwise.options import ModelOptions, mixer_words
from headwise.shape import DEEPEST, LARGEST, AttentionShape, ModelShape, ShapeError, divisors, nearest_divisors
from headwise.shown import Shown
from headwise.spec import SpecError

AXES = ("heads", "qk_rank", "v_rank", "kv_heads", "kv_latent", "q_latent", "rope_rank", "depth", "mlp")
STEP = 8  # ranks, latents and MLPs move in multiples of this: what hardware likes, and few enough to read
MOST_CANDIDATES = 100_000


@dataclass(frozen=True)
class Candidate:
    """A uniform stack: one layer, repeated; with stages, as it is in the first."""

    layer: AttentionShape
    mlp: int
    depth: int
    stages: tuple[int, ...] = ()

    @property
    def shape(self) -> ModelShape:
        return ModelShape(depth=self.depth, mlp=self.mlp, stages=self.stages, **self.layer.model_dump())


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
    mixer: str = "",
) -> EqualShapes:
    """Every shape that costs what the base costs, ordered by heads, ranks, sharing, latents, depth, MLP.

    `base` is a shape or the name of a known model, whose options count where none are given. `hold` is params, flops or
    kv (for equal time see `equal_time`), `tolerance` how far that cost may be off (0.01 or "1%"), `vary` any of AXES. A
    `mixer` takes the place of the model's.
    """
    known = find(base) if isinstance(base, str) else base if isinstance(base, Known) else Known("", base)
    options = options or known.options
    options = options.replace(mixer=mixer) if mixer else options
    base = options.complete(known.shape)
    tolerance, vary = read_fraction(tolerance), tuple(vary)
    if hold not in _PER_STACK:
        raise SpecError(f"cannot hold '{hold}'; there are {', '.join(_PER_STACK)} and time")
    if not 0 <= tolerance < 1:
        raise SpecError(f"a tolerance of {tolerance:g} makes no sense here; use 0 to 0.99, or a percentage as in 1%")
    start = starting_point(base, known.experts)
    base = start.shape if known.experts else base
    length = sequence_length(options, context)
    budget = _PER_STACK[hold](start, options, length)
    counts = parameters(base, options)
    own, rest = counts["body"], counts["total"] - counts["body"]  # embeddings and head: the width stays
    note = "attention only: its MLPs and experts are not counted" if known.experts else ""
    rows: dict[Candidate, EqualCostShape] = {}
    for candidate in candidates(start, vary, options):
        met = _meet(candidate, budget, tolerance, vary, lambda one: _PER_STACK[hold](one, options, length))
        if met is None or met in rows:
            continue
        cost = _PER_STACK[hold](met, options, length)
        body = own + body_parameters(met, options) - body_parameters(start, options)
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


def body_parameters(stack: Candidate, options: ModelOptions) -> int:
    """But for the last norm, unless there are stages or a style."""
    if stack.stages or options.style != "vit":
        return parameters(stack.shape, options)["body"]
    return stack_parameters(stack.layer, stack.mlp, stack.depth, options)


def _parameters(stack: Candidate, options: ModelOptions, _: int) -> int:
    return body_parameters(stack, options)


def _flops(stack: Candidate, options: ModelOptions, length: int) -> int:
    if stack.stages or options.style != "vit":
        return forward_flops(stack.shape, options, length)
    mixers = Counter(mixer_words(options.mixer, stack.depth))
    return sum(
        times * layer_flops(stack.layer, stack.mlp, options, length, length, mixer=find_mixer(word))
        for word, times in mixers.items()
    )


def _cached(stack: Candidate, options: ModelOptions, _: int) -> int:
    return sum(find_mixer(word).kept(stack.layer, 1) for word in mixer_words(options.mixer, stack.depth))


_PER_STACK: dict[str, Callable[[Candidate, ModelOptions, int], int]] = {
    "params": _parameters,
    "flops": _flops,
    "kv": _cached,
}


# ---- candidates ----------------------------------------------------------------------------------------------------


def starting_point(base: ModelShape, experts: Experts | None = None) -> Candidate:
    """The base as a stack of equal layers, which is what can be searched; of a mixture of experts its attention."""
    if experts and len(set(base.layers)) == 1:
        return Candidate(base.layers[0], 0, base.depth)
    if not base.stages and len(set(zip(base.layers, base.mlps, strict=True))) > 1:
        equal = ModelShape.of([base.layers[0]] * base.depth, [base.mlps[0]] * base.depth)
        raise ShapeError(f"the layers of {base} differ, and a search needs equal ones", lambda: [str(equal)])
    return Candidate(base.layers[0], base.mlps[0], base.depth, base.stages)


def candidates(
    start: Candidate, vary: tuple[str, ...], options: ModelOptions, most: int = MOST_CANDIDATES
) -> list[Candidate]:
    """The base first, then every combination of the axes, as these options build them."""
    if not vary or not set(vary) <= set(AXES):
        wrong = ", ".join(f"'{axis}'" for axis in vary if axis not in AXES) or "nothing"
        raise SpecError(f"cannot vary {wrong}; there are {', '.join(AXES)}")
    if start.stages and "depth" in vary:
        raise SpecError("depth is not varied where there are stages: give shapes with other numbers, as in L1,1,3,1")
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
            yield Candidate(attention, mlp, depth, start.stages)


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
    cost: Callable[[Candidate], int],
) -> Candidate | None:
    """The candidate, or with another MLP, or with another depth: the first that costs what it should."""
    mlp, depth = candidate.mlp, candidate.depth
    own = cost(candidate)
    if _near(own, budget, tolerance):
        return candidate
    if "mlp" not in vary and mlp and (slope := cost(replace(candidate, mlp=mlp + STEP)) - own):
        solved = replace(candidate, mlp=mlp + STEP * round((budget - own) / slope))
        if STEP <= solved.mlp <= LARGEST and _near(cost(solved), budget, tolerance):
            return solved
    if "depth" not in vary and own and not candidate.stages:
        solved = replace(candidate, depth=min(max(1, round(budget * depth / own)), DEEPEST))
        if _near(cost(solved), budget, tolerance):
            return solved
    return None


def _near(cost: int, budget: int, tolerance: float) -> bool:
    return abs(cost - budget) <= tolerance * budget


def _order(candidate: Candidate) -> tuple[int, ...]:
    layer = candidate.layer
    return (*(getattr(layer, axis) for axis in AXES[:-2]), candidate.depth, candidate.mlp)
