"""How well the published results predict each other: each lab's directions, from the labs that are left.

The forecast takes the rows of the same family and the same dose (of all doses where fewer than two other labs have
that one), a vote per lab, a lab that is a decade of parameters away counting 1/e, and our own claims on text as one
vote. How dose and distance count was chosen by looking at these same rows, so its scores say what is right after the
fact: they are marked so. Three baselines were not: the majority of the other labs, "no difference", "more is better".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.comparison.evidence.rows import EFFECTS, OWN, Effect, EvidenceRow
from headwise.comparison.evidence.weigh import LEAST_LABS, PRIOR, by_lab, distance
from headwise.shown import Shown

LEAST_SAME_DOSE = 2
METHODS = ("forecast", "majority", "no difference", "more is better")
CHOSEN_AFTER = ("forecast",)  # methods that were chosen on the rows they are scored by


@dataclass(frozen=True)
class Guess:
    """One row of a left-out lab: what was forecast of more of the knob, what was found, and how much it counts."""

    row: EvidenceRow
    forecast: dict[Effect, float]
    named: dict[str, Effect]  # by each method
    found: Effect
    weight: float


@dataclass(frozen=True)
class Score:
    """Of one family: how often each method named the direction, and the Brier score of the forecast."""

    family: str
    labs: int
    hits: dict[str, float]
    brier: float

    @property
    def enough(self) -> bool:
        return self.labs >= LEAST_LABS

    @property
    def best(self) -> bool:
        """Whether the forecast names more than any baseline does."""
        return all(self.hits["forecast"] > self.hits[name] for name in METHODS[1:])


@dataclass(frozen=True)
class LeaveOneOut(Shown):
    """The evidence's test of itself."""

    guesses: tuple[Guess, ...]

    @property
    def scores(self) -> list[Score]:
        """Of each family, most labs first; then of all families with enough labs, and of all."""
        families: dict[str, list[Guess]] = {}
        for guess in self.guesses:
            families.setdefault(guess.row.family, []).append(guess)
        each = sorted((score_of(name, some) for name, some in families.items()), key=lambda score: -score.labs)
        enough = [guess for score in each if score.enough for guess in families[score.family]]
        return [*each, score_of("five labs or more", enough), score_of("all", self.guesses)]

    @property
    def headline(self) -> str:
        last = self.scores[-1]
        if not last.labs:
            return "No labs to leave out"
        said = ", ".join(f"{name} {last.hits[name]:.2f}" for name in METHODS)
        return f"Direction named, {last.labs} labs × axes: {said}; Brier score {last.brier:.2f} (uniform 0.67)"

    def calibration(self, bins: int = 5) -> list[dict[str, float]]:
        """Probabilities that were forecast, in bins, and how often it came so."""
        points: list[dict[str, float]] = []
        pairs = [(g.forecast[e], float(g.found == e), g.weight) for g in self.guesses for e in EFFECTS]
        for i in range(bins):
            here = [pair for pair in pairs if i / bins <= pair[0] < (i + 1) / bins or (i == bins - 1 and pair[0] == 1)]
            weight = sum(w for _, _, w in here)
            if weight:
                told = sum(p * w for p, _, w in here) / weight
                points.append({"forecast": told, "found": sum(y * w for _, y, w in here) / weight, "labs": weight / 3})
        return points

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "axis": score.family,
                "labs": score.labs,
                **({name: score.hits[name] if score.enough else None for name in METHODS}),
                "brier": score.brier if score.enough else None,
                "best": score.best if score.enough else None,
            }
            for score in self.scores
        ]

    def as_dict(self) -> dict[str, Any]:
        return {"scores": self.records(), "calibration": self.calibration(), "chosen_after": list(CHOSEN_AFTER)}


def leave_one_out(rows: Sequence[EvidenceRow], held: bool = False) -> LeaveOneOut:
    """Every lab's rows, predicted from those of the other labs and of our own claims.

    With `held` the forecast takes the rows that held alike too, where two other labs have them: tried, and not used.
    """
    known = [row for row in rows if row.of_more and (row.lab != OWN or row.task == "text")]
    guesses = []
    for family in dict.fromkeys(row.family for row in known if row.lab != OWN):
        labs = by_lab(row for row in known if row.family == family)
        for lab, own in labs.items():
            if lab == OWN:
                continue
            others = [row for name, some in labs.items() if name != lab for row in some]
            majority = _likeliest(_votes([row for row in others if row.lab != OWN]))
            for row in own:
                chances = forecast(_of_held(others, row) if held else others, row.dose, row.scale)
                named: dict[str, Effect] = {"forecast": _likeliest(chances), "majority": majority}
                named |= {"no difference": "tie", "more is better": "better"}
                guesses.append(Guess(row, chances, named, _found(row), 1 / len(own)))
    return LeaveOneOut(tuple(guesses))


def forecast(rows: Sequence[EvidenceRow], dose: str | None, parameters: int | None) -> dict[Effect, float]:
    """How likely more of a knob is better, tied or worse, for a change of that dose at that size."""
    votes = _votes(of_dose(rows, dose), parameters)
    total = sum(votes.values()) + PRIOR * len(EFFECTS)
    return {effect: (votes[effect] + PRIOR) / total for effect in EFFECTS}


def of_dose(rows: Sequence[EvidenceRow], dose: str | None) -> Sequence[EvidenceRow]:
    """The rows of a dose, and our own, where two labs or more have it; else all."""
    same = [row for row in rows if row.dose == dose or row.lab == OWN]
    return same if len(by_lab(row for row in same if row.lab != OWN)) >= LEAST_SAME_DOSE else rows


def _of_held(rows: Sequence[EvidenceRow], left_out: EvidenceRow) -> Sequence[EvidenceRow]:
    """Of the same dose, those that refilled alike, where two labs or more did; else all."""
    same = [row for row in rows if row.lab == OWN or (row.dose, row.refilled) == (left_out.dose, left_out.refilled)]
    return same if len(by_lab(row for row in same if row.lab != OWN)) >= LEAST_SAME_DOSE else rows


def held_too(rows: Sequence[EvidenceRow]) -> float:
    """How often the forecast names the direction if what was held counts, on the axes with labs enough."""
    return leave_one_out(rows, held=True).scores[-2].hits["forecast"]


def _votes(rows: Sequence[EvidenceRow], parameters: int | None = None) -> dict[Effect, float]:
    votes = dict.fromkeys(EFFECTS, 0.0)
    for lab, own in by_lab(row for row in rows if row.of_more).items():
        near = 1.0 if lab == OWN or not parameters else max(math.exp(-distance(row, parameters)) for row in own)
        for row in own:
            votes[_found(row)] += near / len(own)
    return votes


def _found(row: EvidenceRow) -> Effect:
    if row.of_more is None:
        raise ValueError(f"{row.id} has no direction")
    return row.of_more


def _likeliest(chances: dict[Effect, float]) -> Effect:
    return max(EFFECTS, key=lambda effect: chances[effect])


def score_of(family: str, guesses: Sequence[Guess]) -> Score:
    whole = sum(guess.weight for guess in guesses)
    if not guesses:
        return Score(family, 0, dict.fromkeys(METHODS, 0.0), 0.0)
    hits = {name: sum(g.weight * (g.named[name] == g.found) for g in guesses) / whole for name in METHODS}
    errors = [sum((g.forecast[e] - (e == g.found)) ** 2 for e in EFFECTS) * g.weight for g in guesses]
    return Score(family, round(whole), hits, sum(errors) / whole)
