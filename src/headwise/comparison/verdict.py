"""A comparison's answer for people and scripts: its rows, what was held equal, what could not be, what would decide.

Everything here is read off the plan and the rows; nothing is measured. No torch here.
"""

import math
import shlex
from collections.abc import Iterable
from statistics import mean
from typing import Any

from headwise.comparison.answer import Comparison
from headwise.comparison.external import NAME, sizes_of
from headwise.comparison.judge import DECIDED, Answer
from headwise.comparison.pace import run_seconds, told
from headwise.comparison.plan import BATCH, NEAR, RATES, Plan, costs
from headwise.ledger.statistics import LEVEL
from headwise.search import AXES
from headwise.shape import ModelShape
from headwise.store.rows import Row

HELD_COST = {"params": "parameters", "flops": "flops", "kv": "kv_bytes_per_token"}
COST_NAMES = {"parameters": "parameters", "flops": "training FLOPs", "kv_bytes_per_token": "cache bytes"}


def arm_rows(found: Comparison) -> list[dict[str, Any]]:
    """A row an arm: the base, the other finalists from the best, then those that were dropped."""
    plan, course = found.plan, found.course
    facts = {}
    for arm in plan.arms:
        sizes = {name: value for name, value in ModelShape.parse(arm.shape).model_dump().items() if name in AXES}
        rate = {"learning_rate": course.rates.get(arm.shape, math.nan), "steps": arm.steps}
        facts[arm.shape] = {**sizes, **costs(plan, arm.shape), "difference": difference(plan, arm.shape), **rate}
    return _listed(found.answer, found.rows, facts, course.dropped)


def csv_rows(answer: Answer, rows: list[Row]) -> list[dict[str, Any]]:
    """Sizes of arms that are named by their shape, and the mean of every other column."""
    facts = {judged.arm: sizes_of(judged.arm) for judged in answer.arms}
    for arm, known in facts.items():
        found = [row.metrics for row in rows if row.cell["arm"] == arm]
        known |= {
            name: _mean(m[name] for m in found if name in m) for name in found[0] if name not in ("seed", "error")
        }
    return _listed(answer, rows, facts, {})


def _listed(
    answer: Answer, rows: list[Row], facts: dict[str, dict[str, Any]], dropped: dict[str, str]
) -> list[dict[str, Any]]:
    order = sorted(answer.arms, key=lambda arm: (arm.arm != answer.base, bool(arm.note), arm.metric))
    listed = []
    for arm in order:
        numbers = {name: value for name, value in vars(arm).items() if name not in ("arm", "note")}
        done = [row.metrics for row in rows if row.cell["arm"] == arm.arm and math.isfinite(row.metrics["error"])]
        speeds = {name: _mean(m[name] for m in done if name in m) for name in ("tokens_per_second", "seconds")}
        listed.append({"shape": arm.arm, **facts.get(arm.arm, {}), **numbers, **speeds, "note": arm.note})
    for shape, why in dropped.items():
        blank = {name: math.nan for name in listed[0] if name not in facts[shape]}
        listed.append(
            blank | {"shape": shape, **facts[shape], "seeds": 0, "probability_best": 0.0, "note": f"dropped: {why}"}
        )
    return listed


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return mean(found) if found else math.nan


def difference(plan: Plan, shape: str) -> float:
    """How far an arm's held cost is from the base's; time is held by steps."""
    if plan.hold == "time":
        return 0.0
    held = HELD_COST[plan.hold]
    return costs(plan, shape)[held] / costs(plan, plan.base)[held] - 1


# ---- what was held, and what was not -------------------------------------------------------------------------------


def held_equal(plan: Plan) -> list[str]:
    if plan.hold == "time":
        lengths = ", ".join(f"{arm.shape} {arm.steps:,}" for arm in plan.arms)
        said = [f"training time, by steps, from one measurement of a step of each arm here: {lengths}"]
    else:
        farthest = max((difference(plan, arm.shape) for arm in plan.arms), key=abs)
        cost = COST_NAMES[HELD_COST[plan.hold]]
        said = [f"{cost} of the body (largest difference {farthest:+.1%})", f"{plan.arms[0].steps:,} steps"]
    if plan.task["name"] == NAME:
        return [*said, "the command, but for what it is told of the arm, the rate and the seed"]
    recipe = plan.recipe
    said.append(
        f"data, batch of {recipe.batch}, {recipe.optimizer}, warm-up and {recipe.schedule} schedule, evaluation"
    )
    said.append("seeds: each arm sees the same batches in the same order")
    return said


def confounds(found: Comparison) -> list[str]:
    """What differs between the arms beside what was asked about, and what the answer rests on."""
    plan, course = found.plan, found.course
    said = [*_unequal_costs(plan), *_other_sizes(plan), *_rates(found)]
    if course.dropped:
        said.append(f"dropped on short trials with one seed, so unlikely but not judged: {', '.join(course.dropped)}")
    if plan.task["name"] != NAME:
        said.append("first weights are drawn for each shape: equal in law, not in value")
    return said


def _unequal_costs(plan: Plan) -> Iterable[str]:
    base = costs(plan, plan.base)
    for name, said in COST_NAMES.items():
        if name == HELD_COST.get(plan.hold):
            continue
        ratios = [costs(plan, arm.shape)[name] / base[name] - 1 for arm in plan.arms]
        if max(map(abs, ratios)) > NEAR:
            yield f"{said}: {min(ratios):+.0%} to {max(ratios):+.0%} of the base's"
    if plan.hold != "time":
        off = [arm.shape for arm in plan.arms if abs(difference(plan, arm.shape)) > NEAR]
        if off:
            yield f"{COST_NAMES[HELD_COST[plan.hold]]} are not equal: {', '.join(off)}"
        yield "time: a step of one arm takes longer than of another (tokens/s)"


def _other_sizes(plan: Plan) -> Iterable[str]:
    """Depth and MLP, which change with the attention where that is what meets the budget."""
    shapes = [ModelShape.parse(arm.shape) for arm in plan.arms]
    for name in ("depth", "mlp"):
        sizes = {getattr(shape, name) for shape in shapes}
        if len(sizes) > 1:
            yield f"{name} is not the same in all arms"


def _rates(found: Comparison) -> Iterable[str]:
    plan, rates = found.plan, found.course.rates
    if not plan.rungs:
        yield "one learning rate for all arms: it may suit one better than another"
        return
    share = f"1/{plan.rungs[-1]} of the steps" if plan.rungs[-1] > 1 else "full length"
    yield f"learning rates were chosen with one seed, at {share}"
    edge = [f"{arm} ({rate:g})" for arm, rate in rates.items() if rate in (plan.rates[0], plan.rates[-1])]
    if edge:
        yield f"at the edge of the grid, so that another rate may be better: {', '.join(edge)}; widen it with --rates"
    if any(row.metrics and "validation_error" not in row.metrics for row in found.rows if _finite(row)):
        yield "learning rates were chosen by the metric itself, as no validation metric was written"


def _finite(row: Row) -> bool:
    return math.isfinite(row.metrics["error"])


# ---- in words ------------------------------------------------------------------------------------------------------


def verdict(answer: Answer) -> str:
    """One sentence."""
    if answer.winner is None:
        return "No answer: too few paired runs have ended to tell chance from an effect."
    if len([arm for arm in answer.arms if not arm.note]) < 2:
        return f"No answer: only {answer.winner} could be judged."
    chance = f"{answer.probability_best:.0%}" if answer.probability_best < 0.995 else "over 99%"
    if answer.decided:
        kept = "Keep the base: " if answer.winner == answer.base else ""
        return f"{kept}{answer.winner} is best, with probability {chance} ({len(answer.seeds)} paired seeds)."
    rivals = " and ".join(arm for arm in answer.contenders if arm != answer.winner)
    better = {arm.arm for arm in answer.arms if arm.delta_high < 0}
    beaten = (
        "Better than the base, but which is best is not decided" if better >= {*answer.contenders} else "Not decided"
    )
    return f"{beaten}: {answer.winner} has the least loss, best with probability {chance}; so may be {rivals}."


def settle(found: Comparison, words: list[str], workers: int) -> str | None:
    """What would decide where this did not."""
    plan, answer = found.plan, found.answer
    if answer.decided or answer.winner is None or len(answer.contenders) < 2:
        return None
    if answer.needed is None:
        return "no reasonable number of seeds would decide: as far as loss goes these arms are equal, so choose by cost"
    arms = [arm for arm in plan.arms if arm.shape in (*answer.contenders, plan.base)]
    one = sum(run_seconds(plan, arm, plan.final(arm, plan.rates[0], 0)) for arm in arms)
    more = told((answer.needed - len(answer.seeds)) * one / workers)
    would = f"{answer.needed} paired seeds would, if noise and gap stay what they are: {more} more"
    if plan.hold == "time":
        return would
    return f"{would}, with {rerun(plan, words, [arm.shape for arm in arms[1:]], answer.needed)}"


def csv_settle(answer: Answer) -> str | None:
    if answer.decided or answer.winner is None or len(answer.contenders) < 2:
        return None
    if answer.needed is None:
        return "no reasonable number of seeds would decide: as far as this metric goes these arms are equal"
    return f"{answer.needed} paired seeds would decide, if noise and gap stay what they are"


def rerun(plan: Plan, words: list[str], arms: list[str] | None = None, seeds: int = 0) -> str:
    """The command that asks the same again with nothing left to choose; what is in the store is not done again."""
    asked = [*words, "--base", plan.base, "--hold", plan.hold]
    for shape in [arm.shape for arm in plan.arms[1:]] if arms is None else arms:
        asked += ["--arms", shape]
    asked += ["--steps", str(plan.arms[0].steps), "--seeds", str(seeds or plan.seeds)]
    if plan.rates != RATES:
        asked += ["--rates", ",".join(f"{rate:g}" for rate in plan.rates)]
    if plan.recipe.batch != BATCH:
        asked += ["--batch", str(plan.recipe.batch)]
    return shlex.join(asked)


def how(answer: Answer) -> str:
    """How intervals and probabilities came about."""
    return (
        f"Intervals are {LEVEL:.0%}; against the base with seeds cancelled, noise taken to be alike in all arms, "
        f"corrected for their number. P(best) is each arm's share of a t posterior of the means "
        f"({len(answer.seeds)} paired seeds); from {DECIDED:.1%} on it is called decided."
    )


def document(answer: Answer, arms: list[dict[str, Any]], **told: Any) -> dict[str, Any]:
    """The whole answer, as `headwise compare --json` gives it."""
    decided = {"winner": answer.winner, "probability_best": answer.probability_best, "decided": answer.decided}
    about = {"base": answer.base, "seeds": list(answer.seeds), "seeds_needed": answer.needed, "arms": arms}
    nothing: dict[str, Any] = {"settle": None, "held": [], "confounds": [], "rerun": None, "chart": None}
    return {**decided, "verdict": verdict(answer), **about, "how": how(answer), **nothing, **told}
