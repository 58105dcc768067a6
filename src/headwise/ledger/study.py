"""A study: which runs, which chart and which claims; no more.

Presets are typed specs: `smoke` takes seconds and decides nothing, `laptop` minutes on two cores, `paper` is the
published configuration. A preset with `rates` tunes: every place of the grid is tried at each of these learning rates
with a seed that is not judged, and the judged runs take the learning rate whose validation error was the least.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from pydantic import Field

from headwise.ledger.claims import Claim
from headwise.spec import Spec, SpecError
from headwise.store.rows import Cell, Row, at_rate, at_rates, cell, results_of, rows
from headwise.store.store import Store
from headwise.sweep.resolve import fitted
from headwise.training.run import Execution, Run

PRESET_ORDER = ("paper", "laptop", "smoke")  # the first that has rows decides


class Preset(Spec):
    """What every preset has; a study's own subclass adds the sizes of its models and its grid."""

    seeds: int = Field(default=3, ge=1, description="runs of each place of the grid")
    rates: tuple[float, ...] = Field(default=(), description="learning rates to choose from; none: the recipe's own")
    data: dict[str, str] = Field(
        default_factory=dict, description="by the name of a task: what its data must be; defaults are not taken"
    )

    @classmethod
    def like(cls, other: Spec, **changes: Any) -> Self:
        """A preset that takes over the fields of another, perhaps smaller one, and adds or changes some."""
        return cls(**{name: getattr(other, name) for name in type(other).model_fields} | changes)

    @property
    def tuning(self) -> str:
        """How learning rates were chosen, as charts say it."""
        return "learning rate of each variant chosen on validation" if self.rates else "the published learning rate"


@dataclass(frozen=True, eq=False)  # two studies are never equal, so that one can be the key of a cache
class Study:
    """What `headwise study` works with; `about` is the file's own docstring, `cells` takes one of `presets`."""

    name: str
    about: str
    presets: Mapping[str, Preset]
    cells: Callable[[Any], list[Cell]]
    chart: Callable[[list[Row], str], Any]
    claims: tuple[Claim, ...]
    keep_weights: bool = False
    against_published: Callable[[list[Row]], list[dict[str, float]]] | None = None
    file: str = ""  # where a study of your own stands

    @property
    def called(self) -> str:
        """What `headwise study run` takes: the name, or the file of a study of your own."""
        return self.file or self.name

    @cache  # noqa: B019 (studies live as long as the program)
    def of(self, preset: str) -> list[Cell]:
        """The grid of a preset: every run, and its place."""
        if preset not in self.presets:
            raise SpecError(f"{self.name} has no preset '{preset}'; there are {', '.join(self.presets)}")
        return self.cells(self.presets[preset])

    def trials(self, preset: str) -> list[Cell]:
        """The runs that learning rates are chosen by; none where a preset has no `rates`."""
        cells, rates = self.of(preset), self.presets[preset].rates
        return [
            Cell({**at.place, "trial": run.recipe.learning_rate}, run)
            for at in cells
            if at.run.seed == 0
            for run in at_rates(at.run, rates)
        ]

    def check_data(self, preset: str, sources: Mapping[str, str]) -> None:
        """Of a preset that needs data of the user's own: whether they said where it is."""
        for task, wanted in self.presets[preset].data.items():
            if task not in sources:
                command = f"headwise study run {self.called} --preset {preset} --data {task}=PLACE"
                raise SpecError(f"the {preset} preset of {self.name} needs {wanted}; say where it is: {command}")

    def judged(self, preset: str, trials: list[Row]) -> list[Cell]:
        """The grid at the learning rates that trials chose; without the places whose trials are not all done."""
        rates = self.presets[preset].rates
        if not rates:
            return self.of(preset)
        cells = []
        for at in self.of(preset):
            errors = {row.cell["trial"]: row.metrics["validation_error"] for row in cell(trials, **at.place)}
            if len(errors) == len(rates):
                cells.append(Cell(at.place, at_rate(at.run, min(errors, key=lambda rate: errors[rate]))))
        return cells


def study_rows(study: Study, preset: str, store: Store) -> list[Row]:
    """The finished runs of a study's preset that the store has."""
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
