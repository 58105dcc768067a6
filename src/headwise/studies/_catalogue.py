"""What there is: the studies and the tasks, listed and described."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwise.extras import MissingExtra
from headwise.shown import Shown
from headwise.studies import load, load_all

if TYPE_CHECKING:
    from headwise.tasks import Task


@dataclass(frozen=True)
class Catalogue(Shown):
    """A list of things with their names, one row each."""

    rows: list[dict[str, Any]]

    def as_dict(self) -> list[Any]:
        return self.rows

    def records(self) -> list[dict[str, Any]]:
        return self.rows


@dataclass(frozen=True)
class Description(Shown):
    """One thing in full; the rows of its table are those of one of its parts."""

    facts: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def headline(self) -> str:
        return f"{self.facts['name']}: {self.facts.get('summary') or self.facts['about'].strip()}"

    def as_dict(self) -> dict[str, Any]:
        return self.facts

    def records(self) -> list[dict[str, Any]]:
        return self.rows


def list_studies() -> Catalogue:
    """Every study: its name, what it asks in a line, the ids of its claims."""
    return Catalogue(
        [
            {"name": s.name, "about": s.about.strip().splitlines()[0], "claims": [claim.id for claim in s.all_claims]}
            for s in load_all()
        ]
    )


def describe_study(name: str) -> Description:
    """What a study asks, and what each of its presets runs."""
    study = load(name)
    presets = {at: {"runs": len(study.of(at)), **preset.model_dump()} for at, preset in study.presets.items()}
    rows = [{"preset": preset, **settings} for preset, settings in presets.items()]
    return Description({"name": name, "about": study.about, "presets": presets}, rows)


def list_tasks() -> Catalogue:
    """Every task that shapes can be tried on, with the error of a constant predictor; or what its usual data needs."""
    from headwise.tasks import names

    return Catalogue([_listed(name) for name in names()])


def _listed(name: str) -> dict[str, Any]:
    from headwise.tasks import find_task, parse

    try:
        return _task(parse(name), baselines=False)
    except MissingExtra as missing:
        task = find_task(name)
        known = {"name": task.name, "summary": task.summary, "usual_shape": task.usual_shape}
        return {**known, "trivial_error": None, "needs": str(missing)}


def describe_task(task: str, baselines: bool = False) -> Description:
    """One task with its options, NAME[:SOURCE][,OPTION=VALUE...] or a .py file; `baselines` fits classical methods."""
    from headwise.tasks import parse

    facts = _task(parse(task), baselines)
    return Description(facts, facts["options"])


def _task(task: "Task", baselines: bool) -> dict[str, Any]:
    from headwise.tasks import written

    fields = type(task).model_fields.items()
    options = [{"option": n, "value": getattr(task, n), "about": f.description} for n, f in fields if n != "content"]
    samples = {stream: task.samples(stream) for stream in ("train", "validation", "test")}
    facts: dict[str, Any] = {
        "name": task.name,
        "task": written(task),
        "summary": task.summary,
        "trivial_error": task.trivial_error(),
        "floor": task.floor(),
    }
    facts |= {"tokens": task.tokens, "samples": samples, "usual_shape": task.usual_shape, "options": options}
    return facts | ({"baselines": task.baselines()} if baselines else {})
