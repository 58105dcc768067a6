"""Studies: one short file each, found by its name, or a file of your own, found by its path.

A study says which runs, which chart and which claims; no more.
"""

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from headwise.ledger.study import Study
from headwise.spec import OwnFile, SpecError, unknown


def names() -> list[str]:
    """Every study of the package."""
    return sorted(module.name.replace("_", "-") for module in iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> Study:
    """The study of that name, or of that .py file."""
    if name.endswith(".py"):
        return _from_file(name)
    if name not in names():
        raise unknown("study", name, names(), "give the path of a .py file")
    study: Study = import_module(f"{__name__}.{name.replace('-', '_')}").STUDY
    return study


def load_all(extra: Iterable[str | Path] = ()) -> list[Study]:
    """Every study of the package, and those of your own files; no two with the same name or claim."""
    studies = [load(name) for name in names()]
    for path in extra:
        study = _from_file(path)
        if study.name in {other.name for other in studies}:
            raise SpecError(f"{path}: there is already a study '{study.name}'; give yours another name")
        known = {claim.id: other.name for other in studies for claim in other.claims}
        for claim in study.claims:
            if claim.id in known:
                raise SpecError(f"{path}: claim {claim.id} is one of {known[claim.id]}; give yours another letter")
        studies.append(study)
    return studies


def _from_file(path: str | Path) -> Study:
    """Somebody's own study: a file with a Study named STUDY."""
    study: Study = OwnFile(path, "study").load("STUDY = Study(...)", lambda it: isinstance(it, Study))
    if "laptop" not in study.presets:
        raise SpecError(f"the study in {path} has no preset 'laptop', which is the one that decides its claims")
    return replace(study, file=str(path))
