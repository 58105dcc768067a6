"""Which shapes to try for a goal, before any training: exact costs, and what the ledger's claims say of each move.

A move is a change of shape that people argue about. Claims that would make it a good idea speak for it where they hold
and against it where they fail; claims that would make it a bad one, the other way round; open ones say nothing yet. The
claims were measured on small models and on their studies' tasks: evidence, not a promise. Where a scaling law can
be fitted, it says what a move would change, and whether that is beyond the runs it was fitted to. No torch here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headwise.cost import cost_of, layer_parameters, parameter_counts
from headwise.known import find
from headwise.ledger.judge import Judgement, Verdict
from headwise.ledger.law import Law
from headwise.ledger.standing import ledger_of
from headwise.ledger.study import study_rows
from headwise.options import ModelOptions
from headwise.search import STEP, Candidate, equal_cost, starting_point
from headwise.shape import ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened
from headwise.studies import load
from headwise.studies.predict_the_trade import STUDY, law_of

GOALS = {"quality": "parameters", "speed": "train_flops_per_token", "memory": "kv_bytes_per_token"}  # what it costs
STUDIES = (
    "head-size",
    "ladder",
    "shared-cache",
    "thin-stories",
    "value-rank",
    "asymmetric",
    "in-context",
    "rank-cliff",
    "dimension",
    "sharing",
    "latent",
    "block-conditioning",
    "thinner-gpt",
    "thinner-vit",
    "thinner-bert",
    "thinner-lra",
    "mlp-or-heads",
)
SHARED, COMPRESSED = 4, 4  # query heads for a key/value head; times a latent is smaller than what it stands for
STANDINGS = ("supported", "disputed", "untested", "contradicted")

Says = Literal["for", "against", "open"]


@dataclass(frozen=True)
class Move:
    """A change of shape; `apply` gives None where there is no such shape. `good` and `bad`: claims, if they hold."""

    about: str
    goals: tuple[str, ...]
    apply: Callable[[Candidate, ModelOptions], ModelShape | None]
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()


def _fewer_larger_heads(base: Candidate, _: ModelOptions) -> ModelShape | None:
    layer = base.layer
    if layer.heads % 2 or layer.kv_heads % 2:
        return None
    halves = {"heads": layer.heads // 2, "kv_heads": layer.kv_heads // 2}
    doubled = {"qk_rank": 2 * layer.qk_rank, "v_rank": 2 * layer.v_rank, "rope_rank": 2 * layer.rope_rank}
    return replace(base, layer=layer.replace(**halves, **doubled)).shape


def _larger_query_rank(base: Candidate, options: ModelOptions) -> ModelShape | None:
    """At equal parameters: the MLP pays."""
    wanted = 2 * base.layer.qk_rank
    if wanted % STEP or wanted > base.layer.width:
        return None
    rows = equal_cost(base.shape, options, vary=("qk_rank",))
    shapes = (row.shape for row in rows if row.shape.layers[0].qk_rank == wanted and row.shape.depth == base.depth)
    return next(shapes, None)


def _more_heads_less_mlp(base: Candidate, options: ModelOptions) -> ModelShape | None:
    """At equal parameters, to the nearest unit of the MLP."""
    layer = base.layer
    more = layer.replace(heads=2 * layer.heads, kv_heads=2 * layer.kv_heads)
    price_of = {mlp: sum(layer_parameters(more, mlp, options).values()) for mlp in (1, 2)}
    wanted = sum(layer_parameters(layer, base.mlp, options).values())
    mlp = 1 + round((wanted - price_of[1]) / (price_of[2] - price_of[1]))
    return replace(base, layer=more, mlp=mlp).shape if mlp >= layer.width else None


def _more_heads_less_depth(base: Candidate, _: ModelOptions) -> ModelShape | None:
    layer, depth = base.layer, round(base.depth * 5 / 8)
    if (
        layer.qk_rank % 2
        or layer.v_rank % 2
        or layer.rope_rank % 2
        or layer.kv_latent
        or depth == base.depth
        or not depth
    ):
        return None
    ranks = {"qk_rank": layer.qk_rank // 2, "v_rank": layer.v_rank // 2, "rope_rank": layer.rope_rank // 2}
    doubled = {"heads": 2 * layer.heads, "kv_heads": 2 * layer.kv_heads}
    return replace(base, layer=layer.replace(**doubled, **ranks), depth=depth).shape


def _shared_heads(base: Candidate, _: ModelOptions) -> ModelShape | None:
    layer = base.layer
    if layer.kv_latent or layer.kv_heads % SHARED:
        return None
    return replace(base, layer=layer.replace(kv_heads=layer.kv_heads // SHARED)).shape


def _latent(base: Candidate, options: ModelOptions) -> ModelShape | None:
    layer = base.layer
    width = layer.cached_per_token // COMPRESSED
    if layer.kv_latent or width < STEP:
        return None
    return options.complete(
        replace(base, layer=layer.replace(kv_heads=layer.heads, kv_latent=width, rope_rank=0)).shape
    )


MOVES = (
    Move(
        "half as many heads, each of twice the rank",
        ("quality", "speed"),
        _fewer_larger_heads,
        good=("N1", "N5", "Q14", "Q7", "Q8", "Q9", "Q12"),
        bad=("L2", "L4"),
    ),
    Move(
        "twice the query/key rank, paid for by the MLP",
        ("quality",),
        _larger_query_rank,
        good=("N2", "Q7", "Q9"),
    ),
    Move(
        "twice as many heads of the same rank, paid for by the MLP",
        ("quality",),
        _more_heads_less_mlp,
        good=("L9",),
    ),
    Move(
        "twice as many heads of half the rank, in five eighths of the layers",
        ("speed", "memory"),
        _more_heads_less_depth,
        good=("L5", "L6", "L7", "L8", "L2", "L4"),
        bad=("N1", "Q8", "Q14"),
    ),
    Move(
        f"{SHARED} query heads for each key/value head",
        ("memory", "speed"),
        _shared_heads,
        bad=("N4",),
    ),
    Move(
        "keys and values kept as a latent",
        ("memory",),
        _latent,
        bad=("N3",),
    ),
)


@dataclass(frozen=True)
class Suggestions(Shown):
    """Shapes to try for a goal, best first, each with its exact costs and its evidence."""

    document: dict[str, Any]

    @property
    def headline(self) -> str:
        answer: str = self.document["answer"]
        return answer

    def as_dict(self) -> dict[str, Any]:
        """What `headwise suggest --json` prints."""
        return self.document

    def records(self) -> list[dict[str, Any]]:
        """One row per suggestion: the shape, how it stands, what it costs."""
        nested = ("evidence", "law")
        return [{n: v for n, v in one.items() if n not in nested} for one in self.document["suggestions"]]


def suggest(
    base: str,
    goal: str = "quality",
    *,
    context: int = 0,
    store: StoreLike = None,
    results: str | Path | None = None,
) -> Suggestions:
    """Shapes to try before any training: exact costs, and what the ledger's claims say of each.

    `base` is a shape or a known model, `goal` is quality, speed or memory. The claims are judged from the runs of the
    store, or of Parquet files at `results`.
    """
    known = find(base)
    with opened(store, results) as source:
        judged = ledger_of([load(name) for name in STUDIES], source)
        law = law_of(lambda preset: study_rows(STUDY, preset, source))
    return Suggestions(suggestions(known.shape, known.options, goal, judged, context, law))


def suggestions(
    base: ModelShape,
    options: ModelOptions,
    goal: str,
    judged: list[Judgement],
    context: int = 0,
    law: Law | None = None,
) -> dict[str, Any]:
    """Moves for a goal, those with evidence for them first, then by what they save."""
    if goal not in GOALS:
        raise SpecError(f"no goal '{goal}'; there are {', '.join(GOALS)}")
    ledger, start = {judgement.claim.id: judgement for judgement in judged}, starting_point(options.complete(base))
    own = _costs(base, options, context)
    moves = []
    for move in (move for move in MOVES if goal in move.goals):
        shape = move.apply(start, options)
        if shape is None:
            continue
        evidence = _evidence(move, ledger)
        costs = _costs(shape, options, context)
        relative = {f"{name}_difference": costs[name] / own[name] - 1 for name in own if own[name]}
        about = {"shape": str(shape), "move": move.about, "standing": _standing(evidence)}
        moves.append({**about, **costs, **relative, "evidence": evidence, "law": _predicted(law, base, shape)})
    moves.sort(key=lambda one: (STANDINGS.index(one["standing"]), one[GOALS[goal]]))
    return {"base": str(base), "goal": goal, **own, "answer": _answer(base, goal, moves), "suggestions": moves}


def _costs(shape: ModelShape, options: ModelOptions, context: int) -> dict[str, int]:
    cost = cost_of(shape, options, context=context)
    flops = {"train_flops_per_token": cost.flops["train_per_token"], "decode_flops": cost.flops["decode"]}
    return {**parameter_counts(shape, options), **flops, "kv_bytes_per_token": cost.kv_bytes_per_token}


def _predicted(law: Law | None, base: ModelShape, shape: ModelShape) -> dict[str, Any] | None:
    """What the law says of a move: the change of loss, after the most steps that it knows; nothing without an MLP."""
    if law is None or not all((*base.mlps, *shape.mlps)):
        return None
    steps = max(point.steps for point in law.points)
    change = law.change(base, shape, steps)
    by = {"loss_difference": change.value - 1, "low": change.low - 1, "high": change.high - 1}
    return {**by, "steps": steps, "extrapolated": bool(change.outside), "outside": list(change.outside)}


def _evidence(move: Move, ledger: dict[str, Judgement]) -> list[dict[str, Any]]:
    """Each claim with its verdict and what that says of the move."""
    good: dict[Verdict, Says] = {"holds": "for", "fails": "against", "open": "open", "cannot tell": "open"}
    bad: dict[Verdict, Says] = {"holds": "against", "fails": "for", "open": "open", "cannot tell": "open"}
    lines = []
    for ids, says in ((move.good, good), (move.bad, bad)):
        for judgement in (ledger[name] for name in ids if name in ledger):
            lines.append({"says": says[judgement.verdict], **judgement.as_dict()})
    return lines


def _standing(evidence: list[dict[str, Any]]) -> str:
    said = {line["says"] for line in evidence}
    if {"for", "against"} <= said:
        return "disputed"
    return "supported" if "for" in said else "contradicted" if "against" in said else "untested"


def _answer(base: ModelShape, goal: str, moves: list[dict[str, Any]]) -> str:
    if not moves:
        return f"No move that is known here applies to {base}; headwise shapes {base} lists shapes of equal cost."
    best = moves[0]
    test = f"on your own task: headwise compare --task TASK --base {base} --arms {best['shape']}"
    if best["standing"] == "supported":
        ids = ", ".join(line["id"] for line in best["evidence"] if line["says"] == "for")
        return f"For {goal} try {best['shape']} ({best['move']}): {ids} speak for it. Test it {test}"
    return f"The ledger does not resolve it: nothing that it decided speaks for a change alone. Test the first {test}"
