"""A registered study: all that decides its claims, as data, before a judged run exists.

A `Registration` is a preset with nothing left open: claims with their tests, gates and conditions; every variant's
task, shape, options, recipe, steps and seeds; the grid of learning rates and how it grows; the data by its digest.
Its `hash` covers all of it and the source of the statistics, **and the judged seeds are derived from the hash**: no
judged run can be older than its registration, and whatever changes is a new registration with new seeds. Rows carry
the hash in a column that is no part of a run's key. Pilots have the seeds 100 to 199, are stored as pilots, and never
count. Trials of learning rates have seeds of their own, are chosen from by validation error, and never count either.
"""

import ast
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from statistics import mean
from textwrap import dedent
from typing import Any, Literal

from pydantic import Field, model_validator

from headwise.cost import parameters
from headwise.ledger.change_point import CURVES
from headwise.ledger.contrasts import STATISTICS
from headwise.ledger.preset import Preset
from headwise.ledger.statistics import LEVEL
from headwise.options import ModelOptions
from headwise.spec import Spec, SpecError
from headwise.store.rows import Cell, Row, at_rate, cell
from headwise.training.run import ProbeName, Recipe, Run

PILOT_SEEDS = range(100, 200)
JUDGED_SEEDS = (1 << 20, 1 << 31)  # far from pilots, trials and every other preset's
PILOT = "pilot "  # how the column of a pilot's row begins

Scale = Literal["log", "gain", "solved", "change point"]


class Data(Spec):
    """What a task must read; a run on anything else does not count."""

    task: str
    about: str = Field(description="what to get, in words")
    digest: str = Field(description="of its content, as runs have it")
    train: int = Field(gt=0, description="tokens of its training part")
    split: str = "of every twenty blocks of 64 KiB the tenth is for validation and the twentieth for test"


class RateGrid(Spec):
    """Learning rates that are tried, and how the grid grows where the best is at its edge."""

    first: tuple[float, ...] = Field(min_length=1)
    factor: float = Field(default=2.0, gt=1, description="between neighbours, also of those that are added")
    most: int = Field(default=8, description="rates that are tried of one variant at most")
    steps: float = Field(default=1 / 3, gt=0, le=1, description="of a trial, as a part of the judged run's")
    seeds: tuple[int, ...] = Field(default=(1000, 1001), description="of the trials, which are not judged")


class Arm(Spec):
    """A variant under one condition, in one stratum (a size or a task): a run but for its learning rate and seed."""

    variant: str
    condition: str = ""
    stratum: str = ""
    task: dict[str, Any]
    shape: str
    options: ModelOptions
    recipe: Recipe
    steps: int
    seeds: int = Field(ge=2)
    rate: str = Field(
        default="",
        description="'': tuned; 'like X': of variant X in its place, else of X without one; 'law': from smaller strata",
    )
    evaluations: int = 4
    begin: dict[str, Any] = Field(default={}, description="an earlier training, as `Run` has it")
    probes: tuple[ProbeName, ...] = ()

    @property
    def place(self) -> dict[str, str]:
        return {"condition": self.condition, "stratum": self.stratum, "variant": self.variant}

    @property
    def name(self) -> str:
        return ", ".join(word for word in (self.variant, self.stratum, self.condition) if word)

    @cached_property
    def run(self) -> Run:
        return Run(
            task=self.task, shape=self.shape, options=self.options, recipe=self.recipe, steps=self.steps,
            evaluations=self.evaluations, begin=self.begin, probes=self.probes,
        )  # fmt: skip

    @cached_property
    def parameters(self) -> int:
        return parameters(self.run.model_shape, self.options)["total"]


class Test(Spec):
    """A linear contrast over variants, and what is required of it.

    On the scale "log" it is one of logarithms, so a ratio, and `threshold` is in parts: 0.01 allows 1 % more. On
    "gain" errors are divided by what the base gained over a constant predictor: a share of the gain lost. "solved" is
    the share of seeds whose error is below 5 %, of two variants. "change point" has doses instead of weights: whether
    two lines predict a dose that is left out better than a power law (`change_point`).
    """

    name: str
    variant: str = Field(description="what is judged, as tables name it")
    baseline: str = Field(description="what it is judged against, as tables name it")
    metric: str
    field: str = Field(default="error", description="of a row: what is compared; 'a/b' is one metric over another")
    scale: Scale = "log"
    weights: dict[str, float] = Field(description="by variant, or by 'stratum:variant'")
    doses: dict[str, float] = Field(default={}, description="likewise, on the scale 'change point'")
    direction: Literal["at most", "at least"]
    threshold: float = 0.0
    base: str = Field(default="base", description="the variant whose gain is the unit, on the scale 'gain'")
    conditions: tuple[str, ...] = Field(default=(), description="where it is judged, if not under all of the claim's")

    @model_validator(mode="after")
    def _check(self) -> "Test":
        for stratum, weights in self.by_stratum.items():
            if not self.doses and abs(sum(weights.values())) > 1e-9:
                raise SpecError(f"the weights of '{self.name}' must sum to 0{f' in {stratum}' if stratum else ''}")
        return self

    @cached_property
    def by_stratum(self) -> dict[str, dict[str, float]]:
        parts: dict[str, dict[str, float]] = {}
        for name, weight in (self.weights | self.doses).items():
            stratum, _, variant = name.rpartition(":")
            parts.setdefault(stratum, {})[variant] = weight
        return parts

    @property
    def limit(self) -> float:
        """The threshold on the scale of the contrast."""
        return math.log1p(self.threshold) if self.scale == "log" else self.threshold


class Saving(Spec):
    """A variant has at least so much fewer parameters than another: exact."""

    variant: str
    baseline: str
    part: float
    stratum: str = ""


class Learned(Spec):
    """A gate: a variant's mean lies below a named baseline with its interval, and at half the budget it had begun.

    Of a task that a run solves or not: at least so many of its seeds did.
    """

    variant: str = "base"
    stratum: str = ""
    baseline: str
    value: float
    half: float = Field(default=0.8, description="of a constant predictor's error, at half the steps; 0: not asked")
    solved: float = Field(default=0.0, description="share of seeds that must have solved it, instead of a baseline")


class Gates(Spec):
    """What must hold before a claim is judged; else the verdict is `cannot tell`, with the reason."""

    learned: tuple[Learned, ...] = ()
    sensitive: tuple[str, str] | None = Field(
        default=None, description="for 'keeps': the first variant must be worse than the second"
    )
    rates: tuple[str, ...] = Field(default=(), description="variants whose learning rate must be inside its grid")
    passes: float = Field(default=4.0, description="over the data at most; more, and validation must not have risen")


class RegisteredClaim(Spec):
    """A claim, and what decides it: every test must hold under every condition."""

    id: str
    claim: str
    source: str
    conditions: tuple[str, ...] = ("",)
    tests: tuple[Test, ...]
    saving: Saving | None = None
    also: tuple[Test, ...] = Field(default=(), description="contrasts with verdicts of their own, such as the credit")
    gates: Gates = Gates()
    family: Literal["Q", "N", "L"]
    supersedes: str = Field(default="", exclude=True, description="why the verdict before registration was not enough")
    restated: str = Field(default="", exclude=True, description="what was restated")


class Look(Spec):
    """A point at which the runs are judged, at a level such that all looks together have 0.05."""

    seeds: int
    level: float


class Registration(Preset):
    """A preset with nothing left open; see the module's first lines."""

    study: str
    claims: tuple[RegisteredClaim, ...]
    arms: tuple[Arm, ...]
    grid: RateGrid
    sources: tuple[Data, ...] = ()
    looks: tuple[Look, ...] = Field(default=(), description="none: one, at the end")
    stopping: str = "when every registered seed has run"
    note: str = Field(default="", exclude=True)

    @model_validator(mode="after")
    def _check(self) -> "Registration":
        places = {tuple(arm.place.values()) for arm in self.arms}
        if len(places) < len(self.arms):
            raise SpecError(f"{self.study}: two variants have the same place")
        for claim in self.claims:
            for test in (*claim.tests, *claim.also):
                for condition in test.conditions or claim.conditions:
                    for stratum, weights in test.by_stratum.items():
                        lacking = {name for name in weights if (condition, stratum, name) not in places}
                        if lacking:
                            raise SpecError(f"{claim.id}, {test.name}: no variant {', '.join(lacking)} ({condition})")
        return self

    # ---- identity

    @cached_property
    def hash(self) -> str:
        """16 digits of a hash of all of it, and of the statistics' source."""
        spec = self.model_dump(mode="json", exclude_defaults=True)
        curves = any(test.doses for claim in self.claims for test in (*claim.tests, *claim.also))
        functions = STATISTICS | (CURVES if curves else {})
        sources = {name: source_of(function) for name, function in functions.items()}
        text = json.dumps({"registration": spec, "statistics": sources}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def judged_seeds(self, count: int) -> list[int]:
        """The first of the seeds that the hash gives; all variants share them."""
        low, high = JUDGED_SEEDS
        drawn = (hashlib.sha256(f"{self.hash} {i}".encode()).digest() for i in range(count))
        return [low + int.from_bytes(one[:8], "big") % (high - low) for one in drawn]

    @property
    def stages(self) -> tuple[Look, ...]:
        """Its looks; where none are registered, one at the end."""
        return self.looks or (Look(seeds=max(arm.seeds for arm in self.arms), level=1 - LEVEL),)

    # ---- runs

    def cells(self) -> list[Cell]:
        """Every judged run, at the recipe's own learning rate."""
        return list(self._cells)

    @cached_property
    def _cells(self) -> tuple[Cell, ...]:
        return tuple(Cell(arm.place, arm.run.replace(seed=seed)) for arm in self.arms for seed in self._seeds(arm, ""))

    def _seeds(self, arm: Arm, kind: str, count: int = 0) -> list[int]:
        if kind == PILOT:
            return list(PILOT_SEEDS[: count or 2])
        return self.judged_seeds(min(arm.seeds, count or arm.seeds))

    def trials(self, known: list[Row]) -> list[Cell]:
        """Trials of learning rates: the first grid, and what grew where rows so far have their best at an edge."""
        return self._trials(known) if known else list(self._first_trials)

    @cached_property
    def _first_trials(self) -> tuple[Cell, ...]:
        return tuple(self._trials([]))

    def _trials(self, known: list[Row]) -> list[Cell]:
        return [
            Cell({**arm.place, "trial": rate}, _short(at_rate(arm.run, rate), self.grid.steps).replace(seed=seed))
            for arm in self.arms
            for rate in self.tried(arm, known)
            for seed in self.grid.seeds
        ]

    def tried(self, arm: Arm, known: list[Row]) -> tuple[float, ...]:
        """The learning rates of a variant's trials; none where it has that of others."""
        if arm.rate:
            return ()
        rates = tuple(sorted(self.grid.first))
        while len(rates) < self.grid.most:
            best = self._best(arm, rates, known)
            if best is None or rates[0] < best < rates[-1]:
                break
            more = best / self.grid.factor if best == rates[0] else best * self.grid.factor
            rates = tuple(sorted((*rates, float(f"{more:.6g}"))))
        return rates

    def _errors(self, arm: Arm, rates: tuple[float, ...], known: list[Row]) -> dict[float, float] | None:
        """Mean validation error by learning rate; None where trials are missing."""
        errors: dict[float, float] = {}
        for rate in rates:
            rows = cell(known, **arm.place, trial=rate)
            if len(rows) < len(self.grid.seeds):
                return None
            errors[rate] = mean(row.metrics["validation_error"] for row in rows)
        return errors

    def _best(self, arm: Arm, rates: tuple[float, ...], known: list[Row]) -> float | None:
        errors = self._errors(arm, rates, known)
        if errors is None or min(errors.values()) == math.inf:
            return None
        return min(errors, key=lambda rate: errors[rate])

    def rates_of(self, known: list[Row]) -> dict[str, "Rate"]:
        """By a variant's name: its learning rate, once its trials are done."""
        found: dict[str, Rate] = {}
        for arm in self.arms:
            if not arm.rate:
                rates = self.tried(arm, known)
                best = self._best(arm, rates, known)
                if best is not None:
                    errors = self._errors(arm, rates, known) or {}
                    interior = rates[0] < best < rates[-1] or len(rates) == 1
                    found[arm.name] = Rate(value=_vertex(errors, best), interior=interior)
        for arm in self.arms:
            if arm.rate.startswith("like "):
                name = arm.rate.removeprefix("like ")
                for other in (arm.model_copy(update={"variant": name}).name, name):
                    if other in found:
                        found.setdefault(arm.name, found[other])
        return found | self._extrapolated(found)

    def _extrapolated(self, found: Mapping[str, "Rate"]) -> dict[str, "Rate"]:
        """log rate = a + b log parameters, a slope for all and a level for each variant, of all that were tuned."""
        tuned = [arm for arm in self.arms if not arm.rate]
        asked = [arm for arm in self.arms if arm.rate == "law"]
        if not asked or any(arm.name not in found for arm in tuned):
            return {}
        points: dict[str, list[tuple[float, float]]] = {}
        for arm in tuned:
            points.setdefault(arm.variant, []).append((math.log(arm.parameters), math.log(found[arm.name].value)))
        centres = {name: (mean(x for x, _ in some), mean(y for _, y in some)) for name, some in points.items()}
        moved = [(x - centres[name][0], y - centres[name][1]) for name, some in points.items() for x, y in some]
        slope = sum(x * y for x, y in moved) / sum(x * x for x, _ in moved)
        rates = {}
        for arm in asked:
            x, y = centres[arm.variant]
            rate = float(f"{math.exp(y + slope * (math.log(arm.parameters) - x)):.4g}")
            inside = all(found[other.name].interior for other in tuned if other.variant == arm.variant)
            rates[arm.name] = Rate(value=rate, interior=inside)
        return rates

    def judged(self, known: list[Row], kind: str = "", count: int = 0) -> list[Cell]:
        """The runs that are judged (or a pilot's), at the learning rates that trials chose, as far as known."""
        rates = self.rates_of(known)
        return [
            Cell(arm.place, at_rate(arm.run, rates[arm.name].value).replace(seed=seed))
            for arm in self.arms
            if arm.name in rates
            for seed in self._seeds(arm, kind, count)
        ]

    def column(self, kind: str = "") -> str:
        """What its rows have in the store's column."""
        return f"{kind}{self.hash}"


class Rate(Spec):
    """A chosen learning rate, and whether the best of its trials lies inside of its grid."""

    value: float
    interior: bool


def _short(run: Run, part: float) -> Run:
    return run.replace(steps=max(1, round(run.steps * part)), evaluations=1)


def _vertex(errors: Mapping[float, float], best: float) -> float:
    """The least of a parabola, in the logarithm of the rate, through the best of the trials and its neighbours.

    Trials are noisy: the best of a grid is off by a step too often for what is compared. At an edge, the best itself.
    """
    rates = sorted(errors)
    place = rates.index(best)
    if place in (0, len(rates) - 1):
        return best
    x = [math.log(rate) for rate in rates[place - 1 : place + 2]]
    y = [errors[rate] for rate in rates[place - 1 : place + 2]]
    if not all(map(math.isfinite, y)):
        return best
    up, down = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    if down <= up:
        return best
    bend = (down - up) / (x[2] - x[0])
    return float(f"{math.exp(min(max((x[0] + x[1]) / 2 - up / (2 * bend), x[0]), x[2])):.4g}")


def source_of(function: Callable[..., Any]) -> str:
    """A function's source without its docstring, comments and layout: what it does, and nothing else."""
    tree = ast.parse(dedent(inspect.getsource(function)))
    body = tree.body[0]
    assert isinstance(body, ast.FunctionDef)
    if ast.get_docstring(body):
        body.body = body.body[1:]
    return ast.unparse(tree)
