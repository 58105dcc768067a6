"""From rows to verdicts: each claim's comparisons with their intervals, and what would resolve a claim that is open."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from headwise.ledger.claims import Claim, Comparison
from headwise.ledger.statistics import LEAST_SEEDS, LEVEL, interval
from headwise.ledger.study import PRESETS, Study, study_rows
from headwise.store.rows import Row
from headwise.store.store import Store
from headwise.sweep.plan import work

Verdict = Literal["holds", "fails", "open"]
SOURCES = {"Q": "rank", "N": "nanochat", "L": "heads and depth"}  # by the first letter of a claim


@dataclass(frozen=True)
class Remedy:
    """What would resolve an open claim: the runs that a preset still lacks; none where it lacks only seeds."""

    study: str
    preset: str
    runs: int
    flops: int

    @property
    def command(self) -> str:
        return f"headwise study run {self.study} --preset {self.preset}" if self.runs else ""


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict: the comparison that decided it with its interval, and the runs behind all of them."""

    claim: Claim
    verdict: Verdict
    preset: str
    comparison: Comparison
    estimate: float
    low: float
    high: float
    seeds: int
    runs: tuple[str, ...]
    remedy: Remedy | None

    def as_dict(self) -> dict[str, Any]:
        claim = self.claim
        about = {"id": claim.id, "claim": claim.claim, "source": claim.source, "study": claim.study}
        decided = {"verdict": self.verdict, "preset": self.preset, "what": self.comparison.what}
        numbers = {name: _finite(getattr(self, name)) for name in ("estimate", "low", "high")}
        wanted = {"above": self.comparison.above, "published": self.comparison.published}
        return {
            **about,
            **decided,
            **numbers,
            **wanted,
            "seeds": self.seeds,
            "runs": list(self.runs),
            "settle": self.remedy.command if self.remedy else "",
        }


def _interval(comparison: Comparison, level: float) -> tuple[float, float, float]:
    if comparison.exact:
        (value,) = comparison.ratios
        return value, value, value
    return interval(comparison.ratios, level)


def judge(claim: Claim, preset: str, rows: list[Row], remedy: Remedy | None, whole: bool = True) -> Judgement:
    """The verdict of one preset's rows: all comparisons must hold, one that fails is enough; open if rows lack."""
    comparisons = claim.decide(rows) if claim.computed or (rows and whole) else []
    if not comparisons:
        nothing = Comparison("not all of its cells have runs" if rows else "no runs yet", (), math.nan, ())
        return Judgement(claim, "open", preset, nothing, math.nan, 0.0, math.inf, 0, (), remedy)
    level = 1 - (1 - LEVEL) / len(comparisons)
    judged = [(comparison, *_interval(comparison, level)) for comparison in comparisons]
    sampled = [len(comparison.ratios) for comparison in comparisons if not comparison.exact]
    seeds = min(sampled, default=0)
    runs = tuple(dict.fromkeys(key for comparison in comparisons for key in comparison.keys))
    weakest = min(judged, key=lambda found: found[2] / found[0].above)  # the lowest, against what it should exceed
    failing = [found for found in judged if found[3] < found[0].above]
    verdict: Verdict = "open"
    if (seeds >= LEAST_SEEDS or not sampled) and (claim.computed or preset != "smoke"):
        holds = all(low > comparison.above for comparison, _, low, _ in judged)
        verdict = "fails" if failing else "holds" if holds else "open"
    decided = failing[0] if verdict == "fails" else weakest
    return Judgement(claim, verdict, preset, *decided, seeds, runs, remedy if verdict == "open" else None)


def judge_all(study: Study, store: Store) -> list[Judgement]:
    """Every claim of a study, from the largest preset whose every cell has rows; without one, claims stay open."""
    found = {preset: study_rows(study, preset, store) for preset in PRESETS if preset in study.presets}
    whole = (preset for preset, held in found.items() if held and _covers(study, preset, held))
    used = next(whole, next((preset for preset, held in found.items() if held), "laptop"))
    larger = "paper" if used == "laptop" and found[used] and "paper" in study.presets else "laptop"
    remedy = _remedy(study, larger, found.get(larger, []))
    done = _covers(study, used, found.get(used, []))
    return [judge(claim, used, found.get(used, []), remedy, done) for claim in study.claims]


def _remedy(study: Study, preset: str, held: list[Row]) -> Remedy:
    """What would resolve a claim that is open: the preset's missing runs."""
    found = [(row.cell, row.seed) for row in held]
    todo = [cell.run for cell in study.of(preset) if (cell.place, cell.run.seed) not in found]
    tried = [cell.run for cell in study.trials(preset)] if todo and not held else []
    return Remedy(study.name, preset, len(todo), sum(work(run) for run in todo + tried))


def _covers(study: Study, preset: str, held: list[Row]) -> bool:
    """Whether every place of the grid has a row: a comparison that is missing could have failed."""
    return all(cell.place in [row.cell for row in held] for cell in study.of(preset))


def place(judgement: Judgement) -> tuple[int, int]:
    """Of a claim in the ledger: as the sources are listed, then by number, Q2 before Q13."""
    return list(SOURCES).index(judgement.claim.id[0]), int(judgement.claim.id[1:])


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
