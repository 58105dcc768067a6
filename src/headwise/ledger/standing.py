"""How every claim stands: registered verdicts over those before registration, corrected within families.

    judge_study(study, store)          # a study's claims, registered or not
    registered_stages(...)             # a registered study's runs: trials until rates are inside, then look by look
    ledger_of(studies, store)          # every claim once: the newest registered verdict, the old one below it

No torch here.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, stdev

from headwise.ledger.judge import Gate, Judgement, Remedy, Scale, Verdict, judge_all, source_of
from headwise.ledger.registered import gates_of, judge_rows
from headwise.ledger.registration import PILOT, Rate, RegisteredClaim, Registration
from headwise.ledger.statistics import LEVEL, holm, t_tail
from headwise.ledger.study import Study, as_claim, study_rows
from headwise.spec import SpecError
from headwise.store.rows import Cell, Row, asked_for, rows
from headwise.store.store import Store
from headwise.sweep.plan import work
from headwise.sweep.resolve import fitted
from headwise.training.run import Execution, Run, RunResult

DECIDED = ("holds", "fails")  # what ends a study at a look: a gate that fails there may pass with all seeds

# ---- rows of a registered study ------------------------------------------------------------------------------------


def _results(
    store: Store, registration: Registration, cells: Sequence[Cell], column: str | None
) -> dict[str, RunResult]:
    """Results by the key of a cell: on the registered data, and of the registered column where one is asked for."""
    keys, digests = {at.run.cell_key for at in cells}, {data.task: data.digest for data in registration.sources}
    found: dict[str, RunResult] = {}
    for run, result in store.runs(asked=asked_for(cells)) if keys else ():
        wanted = digests.get(run.task["name"])
        if run.cell_key not in keys or (wanted is not None and run.task.get("content") != wanted):
            continue
        if column is None or result.registration == column:
            found[run.cell_key] = result
    return dict(zip(found, store.with_points(found.values()), strict=True))


def trial_rows(store: Store, registration: Registration) -> list[Row]:
    """Trials of learning rates, as far as the grid has grown; whichever registration they were first done for."""
    known: list[Row] = []
    while True:
        cells = registration.trials(known)
        grown = rows(cells, _results(store, registration, cells, None))
        if len(grown) == len(known):
            return grown
        known = grown


def registered_rows(store: Store, registration: Registration, kind: str = "", count: int = 0) -> list[Row]:
    """The judged runs (or a pilot's) that the store has; one that diverged has an infinite error."""
    cells = registration.judged(trial_rows(store, registration), kind, count or (100 if kind else 0))
    results = _results(store, registration, cells, None if kind else registration.column())
    trained = {data.task: data.train for data in registration.sources}
    found = []
    for at in cells:
        result = results.get(at.run.cell_key)
        if result is None or (kind and not result.registration.startswith(PILOT)):
            continue
        seen = {"tokens": float(result.tokens), "steps": float(at.run.steps)}
        seen |= {"passes": result.tokens / trained[at.run.task["name"]]} if at.run.task["name"] in trained else {}
        if result.status == "done":
            (row,) = rows([at], {at.run.cell_key: result})
            found.append(replace(row, metrics={**row.metrics, **seen}))
        elif result.status == "diverged":
            found.append(Row(at.place, at.run.seed, {"error": float("inf"), "trivial_error": 1.0, **seen}, result.key))
    return found


# ---- its runs ------------------------------------------------------------------------------------------------------


def registered_stages(
    study: Study,
    preset: str,
    store: Store,
    execution: Execution,
    sources: dict[str, str],
    pilot: int = 0,
    only: str = "",
) -> Iterator[list[Run]]:
    """Trials until every learning rate is inside of its grid; then a pilot, or the judged runs look by look.

    `only` these variants of a pilot: those with these words in their name, stratum or condition.
    """
    if only and not pilot:
        raise SpecError("a registered study is judged as a whole; only a pilot can be of some of its variants")
    registration = _registration(study, preset)
    check_sources(study, preset, sources)

    def planned(cells: list[Cell]) -> list[Run]:
        runs = [at.run for at in cells if only in ", ".join(map(str, at.place.values()))]
        return checked(registration, fitted(runs, execution, store, sources))

    asked = 0
    while len(trials := registration.trials(trial_rows(store, registration))) > asked:
        asked = len(trials)
        yield planned(trials)
    known = trial_rows(store, registration)
    if pilot:
        yield planned(registration.judged(known, PILOT, pilot))
        return
    for look in registration.stages:
        yield planned(registration.judged(known, count=look.seeds))
        if all(judgement.verdict in DECIDED for judgement in judge_registered(study, preset, store)):
            return


def check_sources(study: Study, preset: str, sources: dict[str, str]) -> None:
    """Whether the user said where a registered study's data is."""
    for data in _registration(study, preset).sources:
        if data.task not in sources:
            command = f"headwise study run {study.called} --preset {preset} --data {data.task}=PLACE"
            raise SpecError(f"the {preset} preset of {study.name} needs {data.about}; say where it is: {command}")


def checked(registration: Registration, runs: list[Run]) -> list[Run]:
    """Runs on the registered data and no other."""
    digests = {data.task: data for data in registration.sources}
    for run in runs:
        data = digests.get(run.task["name"])
        if data and run.task.get("content") != data.digest:
            found = f"{run.task.get('source')} has the digest {run.task.get('content')}"
            raise SpecError(f"{found}, but {registration.study} is registered with {data.digest}: {data.about}")
    return runs


def _registration(study: Study, preset: str) -> Registration:
    found = study.registration(preset)
    if found is None:
        registered = [name for name in study.presets if study.registration(name)]
        known = f"; registered: {', '.join(registered)}" if registered else "; a registered study is needed"
        raise SpecError(f"the preset '{preset}' of {study.name} is not registered{known}")
    return found


# ---- its verdicts --------------------------------------------------------------------------------------------------


def judge_registered(study: Study, preset: str, store: Store) -> list[Judgement]:
    """Every registered claim: at the first look that decides it, else at the last that is complete; else open."""
    registration = _registration(study, preset)
    known = trial_rows(store, registration)
    found, rates = registered_rows(store, registration), registration.rates_of(known)
    remedy = cache(partial(_remedy, study, preset, registration, found))  # of all claims, and only if one is open
    return [_judged(study, preset, registration, claim, found, rates, store, remedy) for claim in registration.claims]


def _judged(
    study: Study,
    preset: str,
    registration: Registration,
    claim: RegisteredClaim,
    found: list[Row],
    rates: dict[str, Rate],
    store: Store,
    remedy: Callable[[], Remedy],
) -> Judgement:
    last: Judgement | None = None
    for look in registration.stages:
        seeds = registration.judged_seeds(look.seeds)
        mine = [row for row in found if row.seed in seeds]
        if not _complete(registration, claim, mine, look.seeds):
            break
        last = judge_rows(registration, claim, mine, rates, look.level)
        if last.verdict in DECIDED:
            break
    if last is None or preset == "smoke":
        done = f"{len(found)} of {len(registration.cells())} judged runs" if found else "no judged runs yet"
        last = Judgement(as_claim(claim, study.name), "open", preset, missing=done, registration=registration.hash)
    elif last.comparisons:
        last = replace(last, scale=_scale(registration, found, last, store))
    needed = remedy() if last.verdict == "open" else None
    return replace(last, preset=preset, remedy=needed, restated=claim.restated, superseded=claim.supersedes)


def _complete(registration: Registration, claim: RegisteredClaim, found: list[Row], seeds: int) -> bool:
    """Whether every variant that decides a claim has all its runs of a look."""
    counts = Counter(tuple(row.cell.values()) for row in found)
    tests = (*claim.tests, *claim.also)
    names = {(at, variant) for test in tests for at, weights in test.by_stratum.items() for variant in weights}
    names |= {("", variant) for variant in claim.gates.sensitive or ()}
    names |= {(one.stratum, one.variant) for one in claim.gates.learned}
    mine = [arm for arm in registration.arms if arm.condition in claim.conditions]
    needed = [arm for arm in mine if (arm.stratum, arm.variant) in names]
    return all(counts[tuple(arm.place.values())] >= min(arm.seeds, seeds) for arm in needed)


def _remedy(study: Study, preset: str, registration: Registration, found: list[Row]) -> Remedy:
    """The judged runs that are missing, and trials of the first grid where nothing has run."""
    done = {(tuple(row.cell.values()), row.seed) for row in found}
    todo = [at.run for at in registration.cells() if (tuple(at.place.values()), at.run.seed) not in done]
    trials = [at.run for at in registration.trials([])] if todo and not found else []
    data = tuple(one.task for one in registration.sources)
    return Remedy(study.called, preset, len(todo + trials), sum(work(run) for run in todo + trials), data)


def _scale(registration: Registration, found: list[Row], judgement: Judgement, store: Store) -> Scale:
    keys = set(judgement.runs)
    used = [row for row in found if row.key in keys] or found
    arms = {tuple(arm.place.values()): arm for arm in registration.arms}
    tasks = dict.fromkeys(str(arms[tuple(row.cell.values())].task["name"]) for row in used)
    sizes, steps, tokens = (
        sorted(int(row.metrics.get(name, 0)) for row in used) for name in ("parameters", "steps", "tokens")
    )
    stored = [pair[0] for row in used[:1] if (pair := store.get(row.key))]
    data = tuple(Path(run.task["source"]).name for run in stored if run.task.get("source"))
    passes = max((row.metrics.get("passes", 0.0) for row in used), default=0.0)
    steps_, sizes_, tokens_ = ((some[0], some[-1]) for some in (steps, sizes, tokens))
    return Scale(tuple(tasks), steps_, sizes_, data, tokens_, passes)


def pilot_gates(study: Study, preset: str, store: Store) -> list[tuple[str, str, Gate]]:
    """What the gates say of a pilot: claim, condition and gate; a pilot decides nothing."""
    registration = _registration(study, preset)
    known = trial_rows(store, registration)
    found, rates = registered_rows(store, registration, PILOT), registration.rates_of(known)
    return [
        (claim.id, condition, gate)
        for claim in registration.claims
        for condition in claim.conditions
        for gate in gates_of(
            registration, claim.gates, condition, [row for row in found if row.cell["condition"] == condition], rates
        )
    ]


# ---- the ledger ----------------------------------------------------------------------------------------------------


def judge_study(study: Study, store: Store) -> list[Judgement]:
    """A study's claims: registered ones from the preset `desktop`, others from the largest preset that is complete."""
    if study.registered:
        return judge_registered(study, "desktop", store)
    return judge_all(study, store)


def rows_of(study: Study, preset: str, store: Store) -> list[Row]:
    """The finished runs of a preset, registered or not."""
    if registration := study.registration(preset):
        return [row for row in registered_rows(store, registration) if row.metrics["error"] < float("inf")]
    return study_rows(study, preset, store)


def ledger_of(studies: Iterable[Study], store: Store) -> list[Judgement]:
    """Every claim once, with its newest verdict."""
    return newest(judgement for study in studies for judgement in judge_study(study, store))


def newest(judgements: Iterable[Judgement]) -> list[Judgement]:
    """Every claim once: its registered verdict where that has runs, with the one before it; corrected in families."""
    ledger: dict[str, Judgement] = {}
    for one in sorted(judgements, key=lambda judgement: judgement.registered):
        other = ledger.get(one.claim.id)
        if other is None or other.registered:
            ledger[one.claim.id] = one if other is None or one.comparisons else other
        elif one.comparisons:
            ledger[one.claim.id] = replace(one, before=other)
        elif other.verdict in ("open", "cannot tell"):
            ledger[one.claim.id] = replace(other, remedy=one.remedy)
    return sharing(corrected(list(ledger.values())))


def chance_of(judgement: Judgement) -> float | None:
    """A verdict's two-sided p-value; none where nothing was sampled. Before registration: of its weakest comparison,
    times how many there are, as they were judged."""
    if judgement.registered:
        return judgement.chance if judgement.comparisons else None
    chances: list[tuple[float, float]] = []
    for one in judgement.comparisons:
        if one.comparison.exact or one.seeds < 3:
            continue
        chances.append(_chances(one.comparison.ratios, one.comparison.threshold))
    if not chances:
        return None
    return min(1.0, 2 * len(chances) * min(max(p for p, _ in chances), min(p for _, p in chances)))


def _chances(ratios: Sequence[float], threshold: float) -> tuple[float, float]:
    """One-sided p-values for a comparison and against it."""
    logs = [math.log(ratio) for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
    if len(logs) < len(ratios) or threshold <= 0:
        return 1.0, 1.0
    error, gap = stdev(logs) / math.sqrt(len(logs)), mean(logs) - math.log(threshold)
    if not error:
        return (0.0, 1.0) if gap > 0 else (1.0, 0.0)
    return t_tail(len(logs) - 1, gap / error), t_tail(len(logs) - 1, -gap / error)


def corrected(judgements: list[Judgement]) -> list[Judgement]:
    """With the verdict that is left of each after Holm's correction, within the sampled claims of its source."""
    families: dict[str, dict[str, float]] = {}
    for one in judgements:
        if (chance := chance_of(one)) is not None:
            families.setdefault(source_of(one.claim), {})[one.claim.id] = chance
    kept = set().union(*(holm(chances, 1 - LEVEL) for chances in families.values())) if families else set()
    sampled = {name for chances in families.values() for name in chances}
    return [
        replace(one, in_family=_after(one.verdict, one.claim.id in kept)) if one.claim.id in sampled else one
        for one in judgements
    ]


def _after(verdict: Verdict, kept: bool) -> Verdict:
    return verdict if kept or verdict not in ("holds", "fails") else "open"


def sharing(judgements: list[Judgement]) -> list[Judgement]:
    """With the other claims that some of the same runs decide."""
    runs = {one.claim.id: set(one.runs) for one in judgements}
    return [
        replace(
            one, shared=tuple(name for name, keys in runs.items() if name != one.claim.id and keys & runs[one.claim.id])
        )
        for one in judgements
    ]
