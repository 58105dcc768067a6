"""From rows to verdicts: each claim's comparisons with their intervals, and what would resolve a claim that is open."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headwise.ledger.claims import Claim, Comparison
from headwise.ledger.registration import Test
from headwise.ledger.statistics import LEAST_SEEDS, LEVEL, interval
from headwise.ledger.study import PRESET_ORDER, Study, study_rows
from headwise.spec import SpecError
from headwise.store.rows import Row
from headwise.store.store import Store
from headwise.sweep.plan import work

Verdict = Literal["holds", "fails", "open", "cannot tell"]
SOURCES = {"Q": "rank", "N": "nanochat", "L": "heads and depth"}  # by the letters of a claim; others come after these


@dataclass(frozen=True)
class Remedy:
    """What would resolve an open claim: the runs that a preset still lacks; none where it lacks only seeds."""

    study: str
    preset: str
    runs: int
    flops: int
    data: tuple[str, ...] = ()  # tasks whose data must be given

    @property
    def command(self) -> str:
        given = "".join(f" --data {task}=PLACE" for task in self.data)
        return f"headwise study run {self.study} --preset {self.preset}{given}" if self.runs else ""


@dataclass(frozen=True)
class Scale:
    """How large the runs behind a claim are: their tasks, and the least and the most steps and parameters."""

    tasks: tuple[str, ...]
    steps: tuple[int, int]
    parameters: tuple[int, int]
    data: tuple[str, ...] = ()  # files or data sets that were read, where the runs name them
    tokens: tuple[int, int] = (0, 0)
    passes: float = 0.0  # over the data, the most


@dataclass(frozen=True)
class Gate:
    """What must hold before anything is judged, and how it is."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Measured:
    """A comparison with its interval, and what it says by itself."""

    comparison: Comparison
    estimate: float
    low: float
    high: float
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Ratios as they are judged, and as differences of the variant from the baseline, in parts of the latter."""
        comparison = self.comparison
        compared = ("metric", "variant", "baseline", "where", "subject", "direction", "unit", "note")
        names = (*compared, "threshold", "margin", "exact")
        bounds = {"estimate": self.estimate, "low": self.low, "high": self.high}
        document = {name: getattr(comparison, name) for name in names} | {"seeds": self.seeds, "verdict": self.verdict}
        document |= {name: _finite(value) for name, value in bounds.items()} | {"difference": None}
        document |= {"published": comparison.published, "beside": dict(comparison.beside)}
        if comparison.unit == "ratio":
            sides = [comparison.relative(value) - 1 for value in (self.estimate, self.low, self.high)]
            low, high = sides[1:] if comparison.direction == "higher" else sides[:0:-1]
            document["difference"] = {"estimate": _finite(sides[0]), "low": _finite(low), "high": _finite(high)}
        return document

    @property
    def seeds(self) -> int:
        return 0 if self.comparison.exact else len(self.comparison.ratios)


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict: all its comparisons with their intervals, which of them decided, and the runs behind them."""

    claim: Claim
    verdict: Verdict
    preset: str
    comparisons: tuple[Measured, ...] = ()
    deciding: Measured | None = None  # the one that fails, or the weakest; none where nothing could be compared
    seeds: int = 0
    runs: tuple[str, ...] = ()
    remedy: Remedy | None = None
    missing: str = ""  # why nothing could be compared
    scale: Scale | None = None
    registration: str = ""  # hash; empty: the verdict is unregistered
    qualifier: str = ""  # why it cannot tell, under which conditions, or where it could be tested
    gates: tuple[tuple[str, Gate], ...] = ()  # with the condition that each is about
    also: tuple[tuple[Test, Verdict, tuple[Measured, ...]], ...] = ()  # contrasts with verdicts of their own
    chance: float | None = None  # two-sided p-value of the verdict, for the correction within a family
    in_family: Verdict | None = None  # the verdict after Holm's correction; none where nothing was sampled
    shared: tuple[str, ...] = ()  # other claims that the same runs decide
    before: "Judgement | None" = None  # the verdict before registration, superseded
    superseded: str = ""  # why the verdict before registration was not enough
    restated: str = ""

    @property
    def registered(self) -> bool:
        return bool(self.registration)

    def as_dict(self) -> dict[str, Any]:
        claim, one = self.claim, self.deciding
        return {
            **{"id": claim.id, "claim": claim.claim, "source": claim.source, "study": claim.study},
            **{"verdict": self.verdict, "preset": self.preset},
            "what": f"{one.comparison.metric}: {one.comparison.subject}" if one else self.missing,
            **{name: _finite(getattr(one, name)) if one else None for name in ("estimate", "low", "high")},
            "above": one.comparison.threshold if one else None,
            "published": one.comparison.published if one else None,
            "seeds": self.seeds,
            "runs": list(self.runs),
            "settle": self.remedy.command if self.remedy else "",
            "comparisons": [measured.as_dict() for measured in self.comparisons],
            "deciding": self.comparisons.index(one) if one else None,
            "tasks": list(self.scale.tasks) if self.scale else [],
            "steps": self.scale.steps[-1] if self.scale else None,
            "parameters": self.scale.parameters[-1] if self.scale else None,
            "tokens": self.scale.tokens[-1] if self.scale else None,
            "passes": self.scale.passes if self.scale else None,
            "caveat": claim.caveat,
            "registered": self.registered,
            "registration": self.registration,
            "qualifier": self.qualifier,
            "gates": [{"condition": name, **vars(gate)} for name, gate in self.gates],
            "also": [
                {"name": test.name, "verdict": verdict, "comparisons": [one.as_dict() for one in measured]}
                for test, verdict, measured in self.also
            ],
            "after_holm": self.in_family,
            "shares_runs_with": list(self.shared),
            "restated": self.restated,
            "superseded_because": self.superseded,
            "before_registration": self.before.as_dict() if self.before else None,
        }


def judge_claim(
    claim: Claim, preset: str, rows: list[Row], remedy: Remedy | None = None, whole: bool = True
) -> Judgement:
    """The verdict of one preset's rows: all comparisons must hold, one that fails is enough; open if rows lack."""
    missing = claim.needs or ("not all of its cells have runs" if rows else "no runs yet")
    try:
        comparisons = claim.decide(rows) if claim.computed or (rows and whole) else []
    except (ArithmeticError, LookupError, ValueError):  # metrics that runs of others lack, or that are 0 or infinite
        comparisons, missing = [], "its runs have metrics that cannot be compared"
    if not comparisons:
        return Judgement(claim, "open", preset, remedy=remedy, missing=missing)
    decides = claim.computed or preset != "smoke"
    level = 1 - (1 - LEVEL) / len(comparisons)
    judged = tuple(_measured(comparison, level, decides) for comparison in comparisons)
    sampled = [one.seeds for one in judged if not one.comparison.exact]
    verdict: Verdict = "open"
    if decides and min(sampled, default=LEAST_SEEDS) >= LEAST_SEEDS:
        verdicts = [one.verdict for one in judged]
        verdict = "fails" if "fails" in verdicts else "open" if "open" in verdicts else "holds"
        verdict = "cannot tell" if claim.untestable else verdict
    weakest = min(judged, key=lambda one: one.low / one.comparison.threshold)
    deciding = next((one for one in judged if one.verdict == "fails"), weakest) if verdict == "fails" else weakest
    runs = tuple(dict.fromkeys(key for comparison in comparisons for key in comparison.keys))
    seeds = min(sampled, default=0)
    needed = remedy if verdict in ("open", "cannot tell") else None
    qualifier = claim.untestable if verdict == "cannot tell" else ""
    return Judgement(
        claim, verdict, preset, judged, deciding, seeds, runs, needed, qualifier=qualifier, restated=claim.restated
    )


def _measured(comparison: Comparison, level: float, decides: bool) -> Measured:
    exact = comparison.exact
    estimate, low, high = comparison.ratios * 3 if exact else interval(comparison.ratios, level)
    verdict: Verdict = "open"
    if decides and (exact or len(comparison.ratios) >= LEAST_SEEDS):
        verdict = "holds" if low > comparison.threshold else "fails" if high < comparison.threshold else "open"
    return Measured(comparison, estimate, low, high, verdict)


# ---- a study's claims ----------------------------------------------------------------------------------------------


def judge_all(study: Study, store: Store) -> list[Judgement]:
    """Every claim of a study, from the largest preset whose every cell has rows; without one, claims stay open."""
    rows = {preset: study_rows(study, preset, store) for preset in PRESET_ORDER if preset in study.presets}
    whole = (preset for preset, some in rows.items() if some and _covers(study, preset, some))
    used = next(whole, next((preset for preset, some in rows.items() if some), "laptop"))
    larger = "paper" if used == "laptop" and rows[used] and "paper" in study.presets else "laptop"
    mine = rows.get(used, [])
    done = _covers(study, used, mine)
    judgements = [judge_claim(claim, used, mine, whole=done) for claim in study.claims]
    priced = any(one.verdict == "open" and not one.claim.needs for one in judgements)
    remedy = _remedy(study, larger, rows.get(larger, [])) if priced else None
    return [
        replace(
            judgement,
            remedy=remedy if judgement.verdict == "open" and not judgement.claim.needs else None,
            scale=_scale(study, used, mine, judgement.runs, store),
        )
        for judgement in judgements
    ]


def _remedy(study: Study, preset: str, rows: list[Row]) -> Remedy:
    """What would resolve a claim that is open: the preset's missing runs. Their price loads torch."""
    done = {_spot(row.cell, row.seed) for row in rows}
    todo = [cell.run for cell in study.of(preset) if _spot(cell.place, cell.run.seed) not in done]
    trials = [cell.run for cell in study.trials(preset)] if todo and not rows else []
    return Remedy(study.called, preset, len(todo + trials), sum(work(run) for run in todo + trials))


def _covers(study: Study, preset: str, rows: list[Row]) -> bool:
    """Whether every place of the grid has a row: a comparison that is missing could have failed."""
    return {_spot(cell.place) for cell in study.of(preset)} <= {_spot(row.cell) for row in rows}


def _scale(study: Study, preset: str, rows: list[Row], keys: tuple[str, ...], store: Store) -> Scale | None:
    """Of the runs behind a claim; stored runs say what data they read, a study's own leave it out."""
    behind = set(keys)
    used = {_spot(row.cell, row.seed): row for row in rows if row.key in behind}
    cells = [cell for cell in study.of(preset) if _spot(cell.place, cell.run.seed) in used]
    runs = [cell.run for cell in cells]
    one_per_task = {cell.run.task["name"]: used[_spot(cell.place, cell.run.seed)].key for cell in cells}
    stored = [pair[0] for key in one_per_task.values() if (pair := store.get(key))]
    sizes = [int(row.metrics.get("parameters", 0)) for row in used.values()]
    if not runs:
        return None
    tasks = tuple(dict.fromkeys(str(run.task["name"]) for run in runs))
    steps = [run.steps for run in runs]
    data = tuple(Path(run.task["source"]).name for run in stored if run.task.get("source"))
    return Scale(tasks, (min(steps), max(steps)), (min(sizes), max(sizes)), data)


def _spot(place: dict[str, Any], *seed: int) -> tuple[Any, ...]:
    """A place of a grid, as a key."""
    return (*sorted(place.items()), *seed)


# ---- the ledger ----------------------------------------------------------------------------------------------------


def source_of(claim: Claim) -> str:
    """The letters that a claim's id begins with: Q of Q12, AB of AB12."""
    return re.split(r"\d", claim.id, maxsplit=1)[0].upper()


def ledger_order(judgement: Judgement) -> tuple[int, str, int, str]:
    """Of a claim in the ledger: as the sources are listed, others after them; then by number, Q2 before Q13."""
    claim = judgement.claim
    source, number = source_of(claim), re.search(r"\d+", claim.id)
    place = list(SOURCES).index(source) if source in SOURCES else len(SOURCES)
    return place, source, int(number[0]) if number else 0, claim.id


def asked_for(source: str, claims: Iterable[Claim]) -> list[Claim]:
    """The claims of one source; of all where none is named."""
    known = list(claims)
    wanted = [claim for claim in known if source.upper() in ("", source_of(claim))]
    if not wanted and source:
        letters = dict.fromkeys(source_of(claim) for claim in known)
        raise SpecError(f"no source '{source}'; there are {', '.join(map(source_title, letters))}")
    return wanted


def source_title(source: str) -> str:
    """A source's letters, with what they stand for where that is known."""
    return f"{source} ({SOURCES[source]})" if source in SOURCES else source


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
