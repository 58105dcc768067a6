"""A comparison's answer for people and scripts: its rows, what was equal, what was not, what it takes to resolve it.

Everything here is read off the plan and the rows; nothing is measured. No torch here.
"""

import math
import shlex
from collections.abc import Iterable
from statistics import mean
from typing import Any

from headwise.comparison.command import COMMAND_TASK, WORD
from headwise.comparison.designs import Paired, Unpaired
from headwise.comparison.gates import MORE_STEPS, WIDER_RATES
from headwise.comparison.judge import DECIDED, Ranking
from headwise.comparison.pace import in_words, run_seconds
from headwise.comparison.plan import NEAR, ComparisonPlan, costs
from headwise.comparison.question import BATCH, RATES, Question
from headwise.comparison.tables import sizes_of
from headwise.comparison.trainers import Outcome
from headwise.ledger.statistics import LEVEL
from headwise.shape import ModelShape
from headwise.store.rows import Row

HELD_COST = {"params": "parameters_body", "flops": "flops", "kv": "kv_bytes_per_token"}
COST_NAMES = {
    "parameters_body": "parameters of the body",
    "flops": "training FLOPs/token",
    "kv_bytes_per_token": "KV cache bytes/token",
}
LONGER = 4  # times the steps, where runs have not learned enough


def variant_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """One row per variant: the base, the other finalists from the best, then those that were dropped."""
    plan, course = outcome.plan, outcome.course
    facts = {}
    for variant in plan.arms:
        sizes = ModelShape.parse(variant.shape).model_dump()
        rate = {"learning_rate": course.rates.get(variant.shape, math.nan), "steps": variant.steps}
        facts[variant.shape] = {
            **sizes,
            **costs(plan, variant.shape),
            "difference": difference(plan, variant.shape),
            **rate,
        }
    return _listed(outcome.ranking, outcome.rows, facts, course.dropped)


def csv_rows(ranking: Ranking, rows: list[Row], columns: list[str]) -> list[dict[str, Any]]:
    """Sizes of variants that are named by their shape, and the mean of these columns."""
    facts = {judged.arm: sizes_of(judged.arm) for judged in ranking.arms}
    for variant, known in facts.items():
        its_rows = [row.metrics for row in rows if row.cell["arm"] == variant]
        known |= {name: _mean(m[name] for m in its_rows if name in m) for name in columns}
    return _listed(ranking, rows, facts, {})


def _listed(
    ranking: Ranking, rows: list[Row], facts: dict[str, dict[str, Any]], dropped: dict[str, str]
) -> list[dict[str, Any]]:
    loss = ranking.metric.loss
    order = sorted(ranking.arms, key=lambda one: (one.arm != ranking.base, bool(one.note), loss(one.metric)))
    listed = []
    for variant in order:
        numbers = {name: value for name, value in vars(variant).items() if name not in ("arm", "note")}
        done = [row.metrics for row in rows if row.cell["arm"] == variant.arm and math.isfinite(row.metrics["error"])]
        speeds = {name: _mean(m[name] for m in done if name in m) for name in ("tokens_per_second", "seconds")}
        listed.append({"shape": variant.arm, **facts.get(variant.arm, {}), **numbers, **speeds, "note": variant.note})
    for shape, why in dropped.items():
        blank = {name: math.nan for name in listed[0] if name not in facts[shape]}
        listed.append(
            blank | {"shape": shape, **facts[shape], "seeds": 0, "probability_best": 0.0, "note": f"dropped: {why}"}
        )
    return listed


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return mean(numbers) if numbers else math.nan


def difference(plan: ComparisonPlan, shape: str) -> float:
    """How far a variant's held cost is from the base's; time is held by steps."""
    if plan.hold == "time":
        return 0.0
    cost = HELD_COST[plan.hold]
    return costs(plan, shape)[cost] / costs(plan, plan.base)[cost] - 1


def alike(plan: ComparisonPlan) -> bool:
    """Whether all variants have the held cost of the base, to within what is called equal."""
    return all(abs(difference(plan, variant.shape)) <= NEAR for variant in plan.arms)


# ---- what was held, and what was not -------------------------------------------------------------------------------


def held_equal(plan: ComparisonPlan) -> list[str]:
    if plan.hold == "time":
        lengths = ", ".join(f"{variant.shape} {variant.steps:,}" for variant in plan.arms)
        lines = [f"training time, by steps, from one measurement of a step of each variant here: {lengths}"]
    else:
        farthest = max((difference(plan, variant.shape) for variant in plan.arms), key=abs)
        cost = COST_NAMES[HELD_COST[plan.hold]]
        lines = [f"{cost} (largest difference {farthest:+.1%})"] if alike(plan) else []
        lines.append(f"{plan.arms[0].steps:,} steps")
    if plan.task["name"] == COMMAND_TASK:
        return [*lines, "the command, but for what it is told of the variant, the learning rate and the seed"]
    recipe = plan.recipe
    lines.append(
        f"data, batch of {recipe.batch}, {recipe.optimizer}, warm-up and {recipe.schedule} schedule, evaluation"
    )
    lines.append("seeds: each variant sees the same batches in the same order")
    return lines


def confounds(outcome: Outcome) -> list[str]:
    """What differs between the variants beside what was asked about, and what the answer rests on."""
    plan, course = outcome.plan, outcome.course
    lines = [*_unequal_costs(plan), *_other_sizes(plan), *_rates(outcome), *reservations(outcome.ranking)]
    if course.dropped:
        lines.append(f"dropped on short trials with one seed, so unlikely but not judged: {', '.join(course.dropped)}")
    if plan.task["name"] != COMMAND_TASK:
        lines.append("initial weights are drawn per shape: the same distribution, not the same values")
    return lines


def _unequal_costs(plan: ComparisonPlan) -> Iterable[str]:
    base = costs(plan, plan.base)
    for name, title in COST_NAMES.items():
        if name == HELD_COST.get(plan.hold):
            continue
        ratios = [costs(plan, variant.shape)[name] / base[name] - 1 for variant in plan.arms]
        if max(map(abs, ratios)) > NEAR:
            yield f"{title}: {min(ratios):+.0%} to {max(ratios):+.0%} of the base's"
    if plan.hold != "time":
        apart = {variant.shape: difference(plan, variant.shape) for variant in plan.arms}
        off = [f"{shape} {gap:+.0%}" for shape, gap in apart.items() if abs(gap) > NEAR]
        if off:
            yield f"{COST_NAMES[HELD_COST[plan.hold]]}, against the base's: {', '.join(off)}"
        yield "time: a step of one variant takes longer than of another"


def _other_sizes(plan: ComparisonPlan) -> Iterable[str]:
    """Depth and MLP, which change with the attention where that is what meets the budget."""
    shapes = [ModelShape.parse(variant.shape) for variant in plan.arms]
    for name in ("depth", "mlp"):
        sizes = {getattr(shape, name) for shape in shapes}
        if len(sizes) > 1:
            yield f"{name} is not the same in all variants"


def _rates(outcome: Outcome) -> Iterable[str]:
    plan = outcome.plan
    if not plan.rungs:
        yield "one learning rate for all variants: it may suit one better than another"
        return
    share = f"1/{plan.rungs[-1]} of the steps" if plan.rungs[-1] > 1 else "full length"
    yield f"learning rates were chosen with one seed, at {share}"
    wider = [variant for variant, rates in outcome.course.tried.items() if len(rates) > len(plan.rates)]
    if wider:
        yield f"tried beyond the grid, where the best learning rate was at its edge: {', '.join(wider)}"
    if any(row.metrics and "validation_error" not in row.metrics for row in outcome.rows if _finite(row)):
        yield "learning rates were chosen by the metric itself, as no validation metric was written"


def _finite(row: Row) -> bool:
    return math.isfinite(row.metrics["error"])


# ---- in words ------------------------------------------------------------------------------------------------------


def verdict(ranking: Ranking) -> str:
    """One sentence, or two."""
    if ranking.failed_gates:
        what = " and ".join(dict.fromkeys(gate.remedy for gate in ranking.failed_gates))
        return f"Cannot tell: {'; '.join(gate.detail for gate in ranking.failed_gates)}. First {what}."
    judged = [variant.arm for variant in ranking.judged]
    if len(judged) < 2:
        return f"No answer: {f'only {judged[0]}' if judged else 'nothing'} could be judged."
    if not ranking.contenders:
        kind = "paired runs" if ranking.paired else "runs"
        return f"No answer: too few {kind} have ended to tell chance from an effect."
    best = ranking.metric.best
    chance = f"{ranking.probability_best:.0%}" if ranking.probability_best < 0.995 else "over 99%"
    if ranking.decided:
        kept = "Keep the base: " if ranking.winner == ranking.base else ""
        return f"{kept}{ranking.winner} is best, with probability {chance} ({_runs(ranking)})."
    rivals = " and ".join(variant for variant in ranking.contenders if variant != ranking.winner)
    better = {variant.arm for variant in ranking.judged if _better(ranking, variant.delta_low, variant.delta_high)}
    beaten = (
        "Better than the base, but which is best is not decided" if better >= {*ranking.contenders} else "Not decided"
    )
    if ranking.winner is None:
        return f"{beaten}: no variant alone has the {best}; {' or '.join(ranking.contenders)} may."
    return f"{beaten}: {ranking.winner} has the {best}, best with probability {chance}; so may be {rivals}."


def _better(ranking: Ranking, low: float, high: float) -> bool:
    return low > 0 if ranking.metric.higher_is_better else high < 0


def _runs(ranking: Ranking) -> str:
    """How many of each variant, in words."""
    counts = {variant.seeds for variant in ranking.judged}
    many = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts, default=0))
    one = counts == {1}
    unit, pair = ("run", "paired seed") if one else ("runs", "paired seeds")
    return f"{many} {pair if ranking.paired else f'{unit} of each, not paired'}"


def reservations(ranking: Ranking) -> list[str]:
    """What of the runs to keep in mind: seeds that a variant lacks, and what could not be checked."""
    lines = []
    for variant in ranking.judged if ranking.paired else ():
        if 0 < variant.seeds < len(ranking.seeds):
            lines.append(f"{variant.arm} has {variant.seeds} of {len(ranking.seeds)} seeds: only pairs count")
    lines += [
        f"{variant}: seed {seed} does not count, as no other judged variant has it" for variant, seed in ranking.alone
    ]
    lines += [f"not checked ({gate.name}): {gate.detail}" for gate in ranking.gates if gate.passed is None]
    return [*lines, ranking.metric.direction] if ranking.metric.assumed else lines


def remedy(outcome: Outcome, question: Question, words: list[str]) -> str | None:
    """What to do where a gate fails, with a command that runs."""
    plan, needs = outcome.plan, dict.fromkeys(gate.remedy for gate in outcome.ranking.failed_gates)
    if not needs:
        return None
    fixed = plan.task["name"] == COMMAND_TASK and "steps" not in WORD.findall(plan.task["command"])
    longer = MORE_STEPS in needs and not fixed
    rates = _wider(plan.rates, outcome.course.tried) if WIDER_RATES in needs else plan.rates
    what = [f"{need} (your command decides how long)" if fixed and need == MORE_STEPS else need for need in needs]
    if plan.hold == "time":
        asked = question.replace(rates=rates, budget=question.budget * LONGER, steps=question.steps * LONGER)
        again = rerun_in_time(asked if longer else question.replace(rates=rates), words)
    else:
        steps = LONGER * plan.arms[0].steps if longer else plan.arms[0].steps
        again = rerun(plan.replace(rates=rates, arms=tuple(arm.replace(steps=steps) for arm in plan.arms)), words)
    return f"{' and '.join(what)}, with {again}"


def _wider(rates: tuple[float, ...], tried: dict[str, list[float]]) -> tuple[float, ...]:
    """All that were tried, as one grid."""
    return tuple(sorted({*rates, *(rate for its_rates in tried.values() for rate in its_rates)}))


def settle(outcome: Outcome, words: list[str], workers: int) -> str | None:
    """What it takes to resolve a question that this did not decide."""
    plan, ranking = outcome.plan, outcome.ranking
    if ranking.decided or len(ranking.contenders) < 2:
        return None
    if ranking.needed is None:
        return f"no reasonable number of seeds: as far as {ranking.metric.name} goes these are equal, so choose by cost"
    variants = [variant for variant in plan.arms if variant.shape in (*ranking.contenders, plan.base)]
    one = sum(run_seconds(plan, variant, plan.final(variant, plan.rates[0], 0)) for variant in variants)
    more = in_words((ranking.needed - len(ranking.seeds)) * one / workers)
    needed = f"{ranking.needed} paired seeds, if noise and gap stay what they are: {more} more"
    if plan.hold == "time":
        return needed
    return f"{needed}, with {rerun(plan, words, [variant.shape for variant in variants[1:]], ranking.needed)}"


def csv_settle(ranking: Ranking) -> str | None:
    if ranking.decided or len(ranking.contenders) < 2:
        return None
    if ranking.needed is None:
        return f"no reasonable number of seeds: as far as {ranking.metric.name} goes these variants are equal"
    kind = "paired seeds" if ranking.paired else "runs of each variant"
    return f"{ranking.needed} {kind}, if noise and gap stay what they are"


def rerun(plan: ComparisonPlan, words: list[str], variants: list[str] | None = None, seeds: int = 0) -> str:
    """The command that asks the same again with nothing left to choose; what is in the store is not done again."""
    asked = [*words, "--base", plan.base, "--hold", plan.hold]
    for shape in [variant.shape for variant in plan.arms[1:]] if variants is None else variants:
        asked += ["--arms", shape]
    asked += ["--steps", str(plan.arms[0].steps), "--seeds", str(seeds or plan.seeds)]
    return shlex.join([*asked, *_recipe(plan.rates, plan.recipe.batch if plan.tokens else BATCH)])


def rerun_in_time(question: Question, words: list[str]) -> str:
    """The same where time is held: steps follow from what was measured, so the question is asked as it was."""
    asked = [*words, "--base", question.base, "--hold", question.hold, "--vary", ",".join(question.vary)]
    asked += [word for shape in question.arms for word in ("--arms", shape)]
    lengths = {"--steps": question.steps, "--seeds": question.seeds, "--budget": f"{question.budget:g}s"}
    asked += [word for name, value in lengths.items() if value not in (0, "0s") for word in (name, str(value))]
    return shlex.join([*asked, *_recipe(question.rates, question.recipe.batch)])


def _recipe(rates: tuple[float, ...], batch: int) -> list[str]:
    """Learning rates and batch size, where they are not the usual ones."""
    words = ["--lr", ",".join(f"{rate:g}" for rate in rates)] if rates != RATES else []
    return words + (["--batch-size", str(batch)] if batch != BATCH else [])


def how(ranking: Ranking) -> str:
    """How intervals and probabilities came about."""
    design = (Paired if ranking.paired else Unpaired).how
    return (
        f"{ranking.metric.direction}. "
        f"Intervals are {LEVEL:.0%}; against the base {design}, corrected for the number of variants. "
        f"P(best) is each variant's share of a t posterior of the means ({_runs(ranking)}); from {DECIDED:.1%} on it "
        "is called decided."
    )
