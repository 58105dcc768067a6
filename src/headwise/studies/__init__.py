"""Studies: one short file each, found by its name. A study says which runs, which chart and which claims; no more.

Presets are data: `smoke` takes seconds and decides nothing, `laptop` minutes on two cores, `paper` is the published
configuration. A preset with `rates` tunes: every place of the grid is tried at each of these learning rates with a seed
that is not judged, and the judged runs take the rate whose validation error was the least. A preset with `data` says,
by the task's name, what `--data` must point to: a default that decides nothing is not taken in its place.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from headwise.claims import Claim, Row, cell
from headwise.cost import cached_per_token
from headwise.run import Run, RunResult
from headwise.spec import SpecError
from headwise.theory.needs import needed

PRESETS = ("paper", "laptop", "smoke")  # the first that has rows decides
TRIAL_SEED = 1000  # no preset has so many seeds


@dataclass(frozen=True)
class Cell:
    """A run and its place in the study's grid."""

    place: dict[str, Any]
    run: Run


@dataclass(frozen=True, eq=False)  # two studies are never equal, so that one can be the key of a cache
class Study:
    """What `headwise study` works with; `about` is the file's own docstring."""

    name: str
    about: str
    presets: dict[str, dict[str, Any]]
    cells: Callable[[dict[str, Any]], list[Cell]]
    chart: Callable[[list[Row], str], Any]
    claims: tuple[Claim, ...]
    keep_weights: bool = False
    against_published: Callable[[list[Row]], list[dict[str, float]]] | None = None

    @cache  # noqa: B019 (studies live as long as the program)
    def of(self, preset: str) -> list[Cell]:
        if preset not in self.presets:
            raise SpecError(f"{self.name} has no preset '{preset}'; there are {', '.join(self.presets)}")
        return self.cells(self.presets[preset])

    def trials(self, preset: str) -> list[Cell]:
        """What the choice of learning rates needs; nothing where a preset has no `rates`."""
        cells, rates = self.of(preset), self.presets[preset].get("rates", ())
        return [
            Cell({**at.place, "trial": run.recipe.learning_rate}, run)
            for at in cells
            if at.run.seed == 0
            for run in at_rates(at.run, rates)
        ]

    def check_data(self, preset: str, sources: Mapping[str, str]) -> None:
        """Of a preset that needs data of the user's own: whether they said where it is."""
        for task, wanted in self.presets[preset].get("data", {}).items():
            if task not in sources:
                told = f"headwise study run {self.name} --preset {preset} --data {task}=PLACE"
                raise SpecError(f"the {preset} preset of {self.name} needs {wanted}; say where it is: {told}")

    def judged(self, preset: str, trials: list[Row]) -> list[Cell]:
        """The grid, with the rate that trials chose; without the places whose trials are not all done."""
        rates = self.presets[preset].get("rates", ())
        if not rates:
            return self.of(preset)
        found = []
        for at in self.of(preset):
            tried = {row.cell["trial"]: row.metrics["validation_error"] for row in cell(trials, **at.place)}
            if len(tried) == len(rates):
                found.append(Cell(at.place, _at_rate(at.run, min(tried, key=lambda rate: tried[rate]))))
        return found


def at_rates(run: Run, rates: Iterable[float]) -> list[Run]:
    """Trials of learning rates, each a whole schedule, with a seed that is judged nowhere."""
    return [_at_rate(run, rate).replace(seed=TRIAL_SEED) for rate in rates]


def _at_rate(run: Run, rate: float) -> Run:
    return run.replace(recipe=run.recipe.replace(learning_rate=rate))


def constructed(begin: dict[str, Any], dim: int, heads: int = 1, rank: int = 1, seed: int = 0) -> Run:
    """A run that trains nothing: a construction's weights in the model it needs, measured."""
    shape, options, task = needed(begin, dim, heads, rank)
    return Run(task=task, shape=shape, options=options, begin=begin, steps=0, seed=seed)


def rows(cells: list[Cell], results: Mapping[str, RunResult]) -> list[Row]:
    """The finished runs among the cells, as claims and charts read them; a trial that diverged has an endless error."""
    found = []
    for at in cells:
        result = results.get(at.run.cell_key)
        if result is not None and result.status == "done":
            history = tuple((step, name, value) for step, name, value in (*result.curve, *result.probes))
            found.append(Row(at.place, at.run.seed, {**result.metrics, **_facts(at.run, result)}, result.key, history))
        elif result is not None and result.status == "diverged" and "trial" in at.place:
            found.append(Row(at.place, at.run.seed, {"validation_error": math.inf}, result.key))
    return found


def _facts(run: Run, result: RunResult) -> dict[str, float]:
    """What a run cost and was given, beside its metrics."""
    sizes = {"parameters": float(result.parameters), "heads": float(run.model_shape.layers[0].heads)}
    spent = {"flops": float(result.flops), "seconds": result.seconds, "learning_rate": run.recipe.learning_rate}
    spent |= {"kv_bytes_per_token": 2.0 * cached_per_token(run.model_shape)}  # at 16 bits
    return {**sizes, **spent, **({"latency": result.latency} if result.latency else {})}


def names() -> list[str]:
    return sorted(module.name.replace("_", "-") for module in iter_modules(__path__))


def load(name: str) -> Study:
    if name not in names():
        raise SpecError(f"no study '{name}'; there are {', '.join(names())}")
    study: Study = import_module(f"{__name__}.{name.replace('-', '_')}").STUDY
    return study


def load_all() -> list[Study]:
    return [load(name) for name in names()]
