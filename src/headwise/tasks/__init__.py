"""The tasks that models are trained on: one file per task, looked up by its name.

A task is a spec (its fields are its options) that knows how to draw a batch, how to wrap a model of any shape, what
the loss and the metrics are, and the error without skill (no-skill baseline). The trainer needs no more.
"""

import json
import re
from abc import ABC, abstractmethod
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Self

from pydantic import Field
from torch import Tensor, nn

from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import OwnFile, Spec, SpecError, unknown
from headwise.tasks.stream import Stream

Batch = tuple[Tensor, Tensor]
Scores = dict[str, Tensor]
_NOT_TASKS = ("sequences", "stream")


class Task(Spec, ABC):
    """The contract; `metrics()["error"]` is the number that is reported, and smaller is better."""

    name: ClassVar[str]
    summary: ClassVar[str]
    usual_shape: ClassVar[str]  # a small model that learns the default options in minutes

    @abstractmethod
    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        """Batch `index` of a stream: inputs and labels, from nothing but the arguments."""

    @abstractmethod
    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        """A model of that shape that takes this task's inputs."""

    @abstractmethod
    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """What is minimised: a mean over the batch."""

    def training_loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """The same from a model and a batch: a task may know a way to it that never has the whole output."""
        return self.loss(model(inputs), labels)

    @abstractmethod
    def scores(self, output: Tensor, labels: Tensor) -> Scores:
        """What the metrics are made of, one row per sample."""

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The field's own numbers over all evaluated samples, among them `error`.

        By default each score's mean, and the standard error of `error`: how far chance may have moved it.
        """
        spread = scores["error"].double().std() / len(scores["error"]) ** 0.5
        means = {name: float(values.double().mean()) for name, values in scores.items()}
        return means | {"standard_error": float(spread)}

    @property
    def metric_name(self) -> str:
        """What people call the error that is reported."""
        return "test error"

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens of one sample."""

    def tokens_in(self, options: ModelOptions) -> int:
        """The same for a planned model, without reading any data: where data decides, the options have heard it."""
        return self.tokens

    def samples(self, stream: Stream) -> int | None:
        """How many samples a stream has; None where it never ends."""
        return None

    @abstractmethod
    def trivial_error(self) -> float:
        """The no-skill baseline: the error of the best predictor that has learned nothing of what the task is about."""

    def simple_baseline(self) -> tuple[str, float]:
        """A simple model that a trained one must beat to have learned, and its test error; takes seconds at most."""
        return "no-skill baseline", self.trivial_error()

    def floor(self) -> float | None:
        """The least error there can be, where it is known."""
        return None

    def baselines(self) -> dict[str, float]:
        """Test errors of classical methods, by name; computed when asked for, and may take a while."""
        return {}

    def default_options(self) -> ModelOptions:
        """The kind of model this task is usually given."""
        return ModelOptions()

    def check_pretraining(self, first: "Task") -> None:
        """Refuse a pre-training that this task's models cannot begin with; most can begin with none.

        A task that allows some says here which, and in `carry_over` what its model takes from them.
        """
        raise SpecError(f"a run of the task '{self.name}' cannot begin with a pre-training")

    def carry_over(self, weights: dict[str, Tensor], model: nn.Module) -> None:
        """Give this task's model what a pre-trained one has learned, whose state `weights` is."""
        raise SpecError(f"a run of the task '{self.name}' cannot begin with a pre-training")

    def resolved(self) -> Self:
        """The task as it enters a run: with the hash of its data, where it reads some."""
        return self

    def spec(self) -> dict[str, Any]:
        """Name and every field, as a Run holds it; a task in a file of its own brings the file's hash."""
        return {**_ORIGINS.get(type(self), {"name": self.name}), **self.model_dump()}


class DataTask(Task):
    """A task that reads data: a place, and the hash of what was found there, which makes it part of a run's key."""

    source: str = Field(default="", description="file, folder or data set name; empty: what is on every machine")
    content: str = Field(default="", description="hash of the data, filled in when a run is planned")

    @abstractmethod
    def digest(self) -> str:
        """A hash of the data, and of nothing else."""

    def resolved(self) -> Self:
        return self.replace(content=self.digest())

    def check_content(self) -> None:
        """Refuse data that is not what the run was planned with; call it where the data is read."""
        if self.content and self.content != self.digest():
            place = self.source or "the default data of this machine"
            raise SpecError(f"{place} is not the data this run was planned with ({self.content}); plan it again")


def names() -> list[str]:
    """Every task there is: a file in this folder."""
    return sorted(m.name.replace("_", "-") for m in iter_modules(__path__) if m.name not in _NOT_TASKS)


def parse(text: str, **more: Any) -> Task:
    """A task as it is written on the command line: NAME[:SOURCE][,OPTION=VALUE...], or a .py file in NAME's place.

    `more` are further options.
    """
    name, *pairs = re.split(r",(?=\w+=)", text)
    options: dict[str, Any] = {}
    for pair in pairs:
        option, _, value = pair.partition("=")
        options[option] = _value(value)
    head, _, source = name.partition(":")
    if not name.endswith(".py") or head in names():  # text:code.py is text, my_task.py a task
        name = head
        options |= {"source": source} if source else {}
    return load_task({"name": name, **options, **more}).resolved()


def _value(text: str) -> Any:
    """A number or true/false where it reads as one, text in quotation marks without them, else text as it is."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value if isinstance(value, int | float | str) else text


def written(task: Task) -> str:
    """The task as `parse` reads it: its name, its source, and the options that are not at their default."""
    fields = type(task).model_fields
    changed = {name: getattr(task, name) for name in fields if getattr(task, name) != fields[name].default}
    name, source = task.spec()["name"], changed.pop("source", "")
    changed.pop("content", None)
    pairs = (f",{option}={_as_text(value)}" for option, value in changed.items())
    return f"{name}:{source}{''.join(pairs)}" if source else f"{name}{''.join(pairs)}"


def _as_text(value: Any) -> str:
    """What `_value` reads as this value."""
    return value if isinstance(value, str) and _value(value) == value else json.dumps(value)


def load_task(spec: dict[str, Any]) -> Task:
    """The task of a Run: its name finds the file (here, or anywhere if it ends in .py), the rest are its options."""
    options = dict(spec)
    name, expected = str(options.pop("name", "")), options.pop("hash", None)
    if name.endswith(".py"):
        return _from_file(name, expected)(**options)
    return find_task(name)(**options)


def find_task(name: str) -> type[Task]:
    """The task of that name."""
    if name not in names():
        raise unknown("task", name, names(), "give the path of a .py file")
    task: type[Task] = import_module(f"{__name__}.{name.replace('-', '_')}").TASK
    return task


_ORIGINS: dict[type[Task], dict[str, str]] = {}


def _from_file(name: str, expected: str | None) -> type[Task]:
    """Somebody's own task: a file with a class named by TASK. Its hash is part of a run, and so of its key."""
    file = OwnFile(name, "task")
    if expected not in (None, file.hash):
        raise SpecError(f"{file.path} has changed since this run was planned; plan it again")
    task: type[Task] = file.load("TASK = YourTask", lambda it: isinstance(it, type) and issubclass(it, Task))
    _ORIGINS[task] = {"name": str(file.path.resolve()), "hash": file.hash}
    return task
