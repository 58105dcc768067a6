"""Studies: one short file each, found by its name. A study says which runs, which chart and which claims; no more.

Presets are data: `smoke` takes seconds and decides nothing, `laptop` minutes on two cores, `paper` is the published
configuration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from headwise.claims import Claim, Row
from headwise.run import Run, RunResult
from headwise.spec import SpecError
from headwise.theory.needs import needed

PRESETS = ("paper", "laptop", "smoke")  # the first that has rows decides


@dataclass(frozen=True)
class Cell:
    """A run and its place in the study's grid."""

    place: dict[str, Any]
    run: Run


@dataclass(frozen=True)
class Study:
    """What `headwise study` works with; `about` is the file's own docstring."""

    name: str
    about: str
    presets: dict[str, dict[str, Any]]
    cells: Callable[[dict[str, Any]], list[Cell]]
    chart: Callable[[list[Row], str], Any]
    claims: tuple[Claim, ...]
    keep_weights: bool = False

    def of(self, preset: str) -> list[Cell]:
        if preset not in self.presets:
            raise SpecError(f"{self.name} has no preset '{preset}'; there are {', '.join(self.presets)}")
        return self.cells(self.presets[preset])


def constructed(begin: dict[str, Any], dim: int, heads: int = 1, rank: int = 1, seed: int = 0) -> Run:
    """A run that trains nothing: a construction's weights in the model it needs, measured."""
    shape, options, task = needed(begin, dim, heads, rank)
    return Run(task=task, shape=shape, options=options, begin=begin, steps=0, seed=seed)


def rows(cells: list[Cell], results: Mapping[str, RunResult]) -> list[Row]:
    """The finished runs among the cells, as claims and charts read them."""
    found = []
    for cell in cells:
        result = results.get(cell.run.key)
        if result is not None and result.status == "done":
            sizes = {"parameters": float(result.parameters), "heads": float(cell.run.model_shape.layers[0].heads)}
            found.append(Row(cell.place, cell.run.seed, {**result.metrics, **sizes}, cell.run.key))
    return found


def names() -> list[str]:
    return sorted(module.name.replace("_", "-") for module in iter_modules(__path__))


def load(name: str) -> Study:
    if name not in names():
        raise SpecError(f"no study '{name}'; there are {', '.join(names())}")
    study: Study = import_module(f"{__name__}.{name.replace('-', '_')}").STUDY
    return study


def load_all() -> list[Study]:
    return [load(name) for name in names()]
