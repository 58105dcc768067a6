"""What shapes are tried on: one file a task, found by its name.

A task is a spec (its fields are its options) that knows how to draw a batch, how to wrap a model of any shape, what
the loss and the metrics are, and what a predictor scores that has learned nothing. The trainer asks for no more.
"""

import hashlib
import sys
from abc import abstractmethod
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, ClassVar

from torch import Tensor, nn

from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import Spec, SpecError
from headwise.tasks.stream import Stream

Batch = tuple[Tensor, Tensor]
_NOT_TASKS = {"stream"}


class Task(Spec):
    """The contract; `metrics()["error"]` is the number that is reported, and smaller is better."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        """Batch `index` of a stream: inputs and labels, from nothing but the arguments."""

    @abstractmethod
    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        """A model of that shape that takes this task's inputs."""

    @abstractmethod
    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """What is minimised: a mean over the batch."""

    @abstractmethod
    def metrics(self, output: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Means over the batch, among them `error`."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens of one sample."""

    @abstractmethod
    def trivial_error(self) -> float:
        """The error of the best predictor that has learned nothing of what the task is about."""

    def default_options(self) -> ModelOptions:
        """The kind of model this task is usually given."""
        return ModelOptions()

    def spec(self) -> dict[str, Any]:
        """Name and every field, as a Run holds it; a task in a file of its own brings the file's hash."""
        return {**_ORIGINS.get(type(self), {"name": self.name}), **self.model_dump()}


def names() -> list[str]:
    """Every task there is: a file in this folder."""
    return sorted(m.name.replace("_", "-") for m in iter_modules(__path__) if m.name not in _NOT_TASKS)


def load(spec: dict[str, Any]) -> Task:
    """The task of a Run: its name finds the file (here, or anywhere if it ends in .py), the rest are its options."""
    options = dict(spec)
    name, expected = str(options.pop("name", "")), options.pop("hash", None)
    if name.endswith(".py"):
        return _from_file(Path(name), expected)(**options)
    if name not in names():
        raise SpecError(f"no task '{name}'; there are {', '.join(names())}, or give the path of a .py file")
    task: type[Task] = import_module(f"{__name__}.{name.replace('-', '_')}").TASK
    return task(**options)


_ORIGINS: dict[type[Task], dict[str, str]] = {}


def _from_file(path: Path, expected: str | None) -> type[Task]:
    """Somebody's own task: a file with a class named by TASK. Its hash is part of a run, and so of its key."""
    try:
        source = path.resolve().read_bytes()
    except OSError as error:
        raise SpecError(f"cannot read the task file {path}: {error.strerror}") from None
    found = hashlib.sha256(source).hexdigest()[:16]
    if expected not in (None, found):
        raise SpecError(f"{path} has changed since this run was planned; plan it again")
    module = ModuleType(f"headwise_task_{found}")
    sys.modules[module.__name__] = module  # pydantic looks a class's module up by name
    exec(compile(source, str(path), "exec"), module.__dict__)
    task = getattr(module, "TASK", None)
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise SpecError(f"{path} does not say which class is its task: end it with TASK = YourTask")
    _ORIGINS[task] = {"name": str(path.resolve()), "hash": found}
    return task
