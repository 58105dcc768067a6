"""A study: which runs, which chart and which claims; no more.

Presets are typed specs: `smoke` takes seconds and decides nothing, `laptop` minutes on two cores, `desktop` hours,
`paper` is the published configuration. A `desktop` preset is registered (`registration.py`). A preset with `rates`
tunes: every place of the grid is tried at each of these learning rates with a seed that is not judged, and the judged
runs take the learning rate whose validation error was the least.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from headwise.ledger.claims import Claim
from headwise.ledger.preset import Preset as Preset
from headwise.ledger.registration import RegisteredClaim, Registration
from headwise.spec import SpecError
from headwise.store.rows import Cell, Row, at_rate, at_rates, cell, results_of, rows
from headwise.store.store import Store
from headwise.sweep.resolve import fitted
from headwise.training.run import Execution, Run

PRESET_ORDER = ("paper", "laptop", "smoke")  # the first that has rows decides; `desktop` presets are registered


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

    def registration(self, preset: str) -> Registration | None:
        """A preset as what was registered, if it is that."""
        found = self.presets.get(preset)
        return found if isinstance(found, Registration) else None

    @property
    def all_claims(self) -> tuple[Claim, ...]:
        """Its claims, and those that its registered preset decides."""
        registration = self.registration("desktop")
        return self.claims + tuple(as_claim(one, self.name) for one in (registration.claims if registration else ()))

    @property
    def registered(self) -> bool:
        return any(isinstance(preset, Registration) for preset in self.presets.values())

    @cache  # noqa: B019 (likewise)
    def trials(self, preset: str) -> list[Cell]:
        """The runs that learning rates are chosen by; none where a preset has no `rates`.

        Of a registered preset: those of the first grid, which may grow.
        """
        if registration := self.registration(preset):
            return registration.trials([])
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


def as_claim(claim: RegisteredClaim, study: str) -> Claim:
    """A registered claim as the ledger lists it; its rows are judged by `registered.judge_rows`."""
    return Claim(claim.id, claim.claim, claim.source, study, lambda rows: [])


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
