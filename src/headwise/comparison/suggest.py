"""What to change in a shape for a goal, before any training: exact costs, published evidence, and our own claims.

Each move's expected quality is a forecast (better, even, worse) of the method that `evidence.leave_out` tests, from the
labs nearest in scale; a change of the loss is given where five labs measured one. What is advised follows from both:

- recommended: better is likelier than worse; or, where something is to be saved, even is likelier than not, or five
  labs measured the loss and their interval reaches zero;
- a coin flip: neither, but worse is less likely than not;
- too few labs: fewer than five measured a change of that size, whatever they found: there is no forecast then, and the
  rows are listed instead;
- likely worse: the rest.

Recommended moves come first, each kind ordered by what it saves times the probability that it does not hurt (for
quality: by better minus worse); moves that our own runs on such a task found worse are named, not suggested. The
condition number κ is no evidence of quality and does not count. No torch here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.comparison.evidence.leave_out import forecast, of_dose
from headwise.comparison.evidence.own import own_rows
from headwise.comparison.evidence.rows import OPPOSITE, OWN, Dose, Effect, EvidenceRow, dose_of, knob_size, published
from headwise.comparison.evidence.table import judged_claims
from headwise.comparison.evidence.weigh import LEAST_LABS, distance, select, shares, weigh
from headwise.comparison.moves import MOVES, Move, label, proxy
from headwise.cost import Cost, cost_of
from headwise.known import Known, find
from headwise.ledger.judge import Judgement
from headwise.options import PRESETS
from headwise.search import Candidate, starting_point
from headwise.shape import ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike

GOALS = {"memory": "kv_bytes", "speed": "decode_bytes", "quality": "parameters"}  # what is to fall, or stay
TASKS = ("text", "lookup", "vision")
MOST = 3
NEAREST = 3
ADVICE = ("recommended", "coin flip", "too few labs", "likely worse")  # in this order


@dataclass(frozen=True)
class Suggestions(Shown):
    """Shapes to try for a goal, best first, each with its exact costs and its evidence."""

    document: dict[str, Any]

    @property
    def headline(self) -> str:
        answer: str = self.document["answer"]
        return answer

    def as_dict(self) -> list[Any]:
        """What `headwise suggest --json` prints: a list, best first."""
        return self.document["suggestions"]

    def records(self) -> list[dict[str, Any]]:
        """One row per suggestion: the shape, what changes, what it costs, what is expected."""
        nested = ("claims", "evidence", "nearest")
        return [{n: v for n, v in one.items() if n not in nested} for one in self.document["suggestions"]]


@dataclass(frozen=True)
class SuggestionsOfEach(Shown):
    """Suggestions for several models; the table has what is first for each."""

    each: tuple[Suggestions, ...]

    @property
    def headline(self) -> str:
        return "\n".join(f"{one.document['name']}: {one.headline}" for one in self.each)

    def as_dict(self) -> list[Any]:
        """What `headwise suggest A B --json` prints: a list of models, each with its suggestions."""
        names = ("name", "base", "goal", "task", "answer", "suggestions")
        return [{name: one.document[name] for name in names} for one in self.each]

    def records(self) -> list[dict[str, Any]]:
        return [{"name": one.document["name"], **first} for one in self.each for first in one.records()[:1]]


def suggest_for(
    base: str | Known,
    goal: str = "quality",
    *,
    context: int = 0,
    batch: int = 1,
    dtype: str = "bfloat16",
    task: str = "text",
    store: StoreLike = None,
    results: str | Path | None = None,
) -> Suggestions:
    """What to change in a shape or a known model; our claims are judged from the shipped results, or from a store."""
    known = find(base) if isinstance(base, str) else base
    if goal not in GOALS:
        raise SpecError(f"no goal '{goal}'; there are {', '.join(GOALS)}")
    if task not in TASKS:
        raise SpecError(f"no kind of task '{task}'; there are {', '.join(TASKS)}")
    settings = {"context": context, "batch": batch, "dtype": dtype}
    return Suggestions(suggestions(known, goal, task, judged_claims(store, results), settings))


def suggestions(
    known: Known, goal: str, task: str, judged: Sequence[Judgement], settings: dict[str, Any]
) -> dict[str, Any]:
    """The moves for a goal that apply, best first."""
    shape = known.options.complete(known.shape)
    start = starting_point(shape, known.experts)
    own, rows = _costs(known, settings), [*published(), *own_rows(judged)]
    found = []
    for move in (move for move in MOVES if goal in move.goals):
        arm = _applied(move, start, known, shape)
        if arm is None:
            continue
        costs = _costs(
            Known(known.name, arm, known.options, windows=_windows(known, arm), experts=known.experts), settings
        )
        about = {"shape": str(arm), "change": label(shape, arm), "move": move.name}
        relative = {f"{name}_difference": costs[name] / own[name] - 1 for name in own if own[name]}
        found.append(
            {**about, **costs, **relative, **_expected(move, shape, arm, own["parameters"], rows, task, judged)}
        )
    found = [one for one in found if goal == "quality" or one[f"{GOALS[goal]}_difference"] < -0.005]
    for one in found:
        one |= {"advice": advice(one, goal), "score": _score(one, goal)}
    found.sort(key=lambda one: (ADVICE.index(one["advice"]), -one["score"]))
    kept, worse = ([one for one in found if one["found_worse"] is flag] for flag in (False, True))
    kept = kept[:MOST]
    chosen = [next(move for move in MOVES if move.name == one["move"]) for one in kept]
    name = known.name or str(shape)
    priced = cost_of(known, **settings)
    summary: dict[str, Any] = {"base": str(shape), "name": name, "goal": goal, "task": task, "context": priced.context}
    summary |= {"batch": priced.batch, "dtype": priced.dtype, **own}
    return {
        **summary,
        "answer": _answer(name, goal, kept),
        "test": _test(known, start, chosen, task),
        "suggestions": kept,
        "found_worse": worse,
    }


def _applied(move: Move, start: Candidate, known: Known, shape: ModelShape) -> ModelShape | None:
    """The shape after a move; none where it does not apply, or takes layers whose experts nobody has moved."""
    arm = move.apply(start, known.options)
    if arm is None or (known.experts and arm.depth != shape.depth):
        return None
    return known.options.complete(arm.replace(mlp=shape.mlp) if known.experts else arm)


def _windows(known: Known, arm: ModelShape) -> tuple[int, ...]:
    return known.windows if len(known.windows) == arm.depth else ()


def _costs(known: Known, settings: dict[str, Any]) -> dict[str, int]:
    cost: Cost = cost_of(known, **settings)
    values = {"parameters": cost.parameters["total"], "parameters_body": cost.parameters["body"]}
    values |= {"train_flops_per_token": cost.flops["train_per_token"], "kv_bytes": cost.kv_bytes}
    return {**values, "kv_bytes_per_token": cost.kv_bytes_per_token, "decode_bytes": cost.decode_bytes}


# ---- what is expected ----------------------------------------------------------------------------------------------


def _expected(
    move: Move, base: ModelShape, arm: ModelShape, size: int, rows: Sequence[EvidenceRow], task: str,
    judged: Sequence[Judgement],
) -> dict[str, Any]:  # fmt: skip
    """The forecast of quality, the change of the loss where there is one, the nearest rows, and our claims."""
    family, knob = move.families[0]
    mine = [row for name, side in move.families for row in _as_family(select(rows, name), family, side == knob)]
    before, after = knob_size(family, base), knob_size(family, arm)
    dose = _dose(family, base, before / after)
    seen = [row for row in mine if row.effect and (row.lab != OWN or row.task == task)]
    chances = forecast(seen, dose, size)
    if knob == "less":
        chances = {OPPOSITE[effect]: chance for effect, chance in chances.items()}
    published_rows = [row for row in seen if row.lab != OWN]
    cell = weigh([row for row in published_rows if (row.refilled, row.dose) == (move.refill, dose)], knob)
    other = weigh([row for row in published_rows if (row.refilled, row.dose) == (not move.refill, dose)], knob)
    alike = of_dose(published_rows, dose)
    labs = len({row.lab for row in alike})
    ours = [row for row in seen if row.lab == OWN]
    worse = any(row.effect == "worse" for row in ours if row.knob == knob)
    wanted = [judgement for judgement in judged if judgement.claim.id in move.claims]
    return {
        "expected": chances if labs >= LEAST_LABS else None,
        "labs": labs,
        "found": dict(weigh(alike, knob).directions),
        "dose": dose,
        "refilled": move.refill,
        "evidence": {"cell": cell.as_dict(), "other": other.as_dict()},
        "nearest": [row.as_dict() for row in _nearest(alike, size, knob)],
        "claims": [_claim(judgement) for judgement in wanted if judgement.scale and _concerns(judgement, task)],
        "found_worse": worse,
    }


def _as_family(rows: Sequence[EvidenceRow], family: str, same: bool) -> list[EvidenceRow]:
    """Rows of another family that speak of the same change: fewer heads in a width are larger heads."""
    turned = {"more": "less", "less": "more"}
    read = [
        row if row.family == family else row.replace(
            axis=family, family=family, knob=row.knob if same or row.knob is None else turned[row.knob],
            stated_dose=row.dose,
        )
        for row in rows
    ]  # fmt: skip
    return [row for row in read if row.shapes_agree]


def _dose(family: str, base: ModelShape, factor: float) -> Dose:
    """How large a change is. KV heads are counted from a head each: that is where published comparisons begin."""
    if family == "kv_heads":
        factor *= base.layers[0].group
    return dose_of(factor)


def _nearest(rows: Sequence[EvidenceRow], size: int, knob: str) -> list[EvidenceRow]:
    """One row per lab, nearest in scale first, the same direction of change before the other."""
    ordered = sorted(rows, key=lambda row: (distance(row, size), row.knob != knob, not row.of_loss))
    first: dict[str, EvidenceRow] = {}
    for row in ordered:
        first.setdefault(row.lab, row)
    return list(first.values())[:NEAREST]


def _concerns(judgement: Judgement, task: str) -> bool:
    """Whether a claim was measured on such a task."""
    kinds = {"text": ("text",), "lookup": ("recall", "nearest-neighbor"), "vision": ("images",)}
    return judgement.scale is not None and any(name in kinds[task] for name in judgement.scale.tasks)


def _claim(judgement: Judgement) -> dict[str, Any]:
    document = judgement.as_dict()
    names = ("id", "claim", "verdict", "tasks", "steps", "parameters", "seeds", "comparisons", "deciding")
    return {name: document[name] for name in names}


def advice(one: dict[str, Any], goal: str) -> str:
    """One of `ADVICE`, from the forecast and the measured change of the loss."""
    chances: dict[Effect, float] | None = one["expected"]
    if chances is None:
        return "too few labs"
    no_worse = chances["tie"] > 0.5 or _no_loss_shown(one)
    if chances["better"] > chances["worse"] or (goal != "quality" and no_worse):
        return "recommended"
    return "coin flip" if chances["worse"] < 0.5 else "likely worse"


def _no_loss_shown(one: dict[str, Any]) -> bool:
    """Whether labs enough measured the loss of such a change, and their interval reaches zero.

    Where the move spends its saving, what was found without spending it bounds it from above; not the other way round.
    """
    cells = one["evidence"]
    change = cells["cell"]["loss_change"] or (cells["other"]["loss_change"] if one["refilled"] else None)
    return change is not None and change["low"] <= 0


def _score(one: dict[str, Any], goal: str) -> float:
    chances: dict[Effect, float] = one["expected"] or shares(one["found"])
    if goal == "quality":
        return chances["better"] - chances["worse"]
    return -float(one[f"{GOALS[goal]}_difference"]) * (1 - chances["worse"])


# ---- the answer ----------------------------------------------------------------------------------------------------


def _answer(name: str, goal: str, found: list[dict[str, Any]]) -> str:
    if not found:
        return f"Nothing is recommended for {goal}; headwise shapes {name} lists shapes of equal cost."
    first = found[0]
    if first["advice"] == "recommended":
        return f"For {goal}: {first['change']}"
    return f"Nothing is recommended for {goal}. First to test ({first['advice']}): {first['change']}"


def _test(known: Known, start: Candidate, moves: list[Move], task: str) -> str:
    """The first move, tried on the user's data: in a smaller model of the same heads where the move applies to one."""
    if not moves:
        return ""
    small, options = proxy(start), known.options
    arm = moves[0].apply(small, options)
    base, arm = (small.shape, arm) if arm else (start.shape, moves[0].apply(start, options))
    family = f" --family {options.init}" if options.init in PRESETS else ""
    data = {"text": "text:FILE", "lookup": "recall", "vision": "images:FOLDER"}[task]
    family = family if task == "text" else ""
    return f"headwise compare --task {data}{family} --base {base} --arms {arm}"
