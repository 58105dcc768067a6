"""Studies: one short file each, found by its name. A study says which runs, which chart and which claims; no more."""

from importlib import import_module
from pkgutil import iter_modules

from headwise.ledger.study import Study
from headwise.spec import SpecError


def names() -> list[str]:
    return sorted(module.name.replace("_", "-") for module in iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> Study:
    if name not in names():
        raise SpecError(f"no study '{name}'; there are {', '.join(names())}")
    study: Study = import_module(f"{__name__}.{name.replace('-', '_')}").STUDY
    return study


def load_all() -> list[Study]:
    return [load(name) for name in names()]
