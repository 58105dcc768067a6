"""A study: which runs, which chart and which claims; no more.

Presets are data: `smoke` takes seconds and decides nothing, `laptop` minutes on two cores, `paper` is the published
configuration. A preset with `rates` tunes: every place of the grid is tried at each of these learning rates with a seed
that is not judged, and the judged runs take the rate whose validation error was the least. A preset with `data` says,
by the task's name, what `--data` must point to: a default that decides nothing is not taken in its place.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from headwise.ledger.claims import Claim
from headwise.spec import SpecError
from headwise.store.rows import Cell, Row, at_rate, at_rates, cell, results_of, rows
from headwise.store.store import Store
from headwise.sweep.resolve import fitted
from headwise.training.run import Execution, Run

PRESETS = ("paper", "laptop", "smoke")  # the first that has rows decides


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
                found.append(Cell(at.place, at_rate(at.run, min(tried, key=lambda rate: tried[rate]))))
        return found


def study_rows(study: Study, preset: str, store: Store) -> list[Row]:
    """What the store holds of a study's preset."""
    trials = study.trials(preset)
    cells = study.judged(preset, rows(trials, results_of(store, trials)))
    return rows(cells, results_of(store, cells))


def stages(
    study: Study, preset: str, store: Store, execution: Execution, sources: dict[str, str]
) -> Iterator[list[Run]]:
    """A study's runs as they are planned here: trials of learning rates, then the grid they decide."""
    trials = study.trials(preset)
    study.check_data(preset, sources)
    if trials:
        yield fitted([cell.run for cell in trials], execution, store, sources)
    cells = study.judged(preset, rows(trials, results_of(store, trials)))
    yield fitted([cell.run for cell in cells], execution, store, sources)
