"""A run: everything that can change its numbers, and the key that is a hash of it.

Two runs with the same key give the same numbers, alone, in a pool, on a cluster, or killed and resumed. So a run is
done once, anywhere, and found again. Whatever is chosen for a machine (device, precision, threads, kernel path) is
chosen when the plan is made and stands in the spec; nothing is chosen by timing inside a run. No torch here.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from headwise.options import FACTS, ModelOptions
from headwise.shape import ModelShape
from headwise.spec import JsonSpec, Spec, SpecError

NUMERICS = 2  # raised when the same spec would give other numbers (but for rounding), or a default gets another value
Status = Literal["done", "diverged", "failed"]
_parsed = lru_cache(maxsize=4096)(ModelShape.parse)  # a store has many runs of few shapes, and shapes never change
ProbeName = Literal[
    "qk-rank",
    "vo-rank",
    "qk-stable-rank",
    "vo-stable-rank",
    "qk-participation-rank",
    "vo-participation-rank",
    "qk-condition",
    "vo-condition",
    "qk-identity-angle",
    "qk-norm",
    "input-weight-condition",
    "output-weight-condition",
    "heads-condition",
    "centred-heads-condition",
    "block-condition",
    "residual-block-condition",
    "jacobian-condition",
    "residual-jacobian-condition",
    "attention-entropy",
    "sharpness",
    "head-overlap",
]


Beta = Annotated[float, Field(ge=0, lt=1)]


class Recipe(JsonSpec):
    """How a model is trained."""

    optimizer: Literal["adamw", "muon"] = Field(default="adamw", description="muon: for the body's matrices")
    learning_rate: float = Field(default=0.01, gt=0, description="at the end of the warm-up")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.95), description="AdamW's averages")
    weight_decay: float = Field(default=0.0, ge=0, description="on matrices only")
    momentum: float = Field(default=0.95, ge=0, lt=1, description="Muon's")
    schedule: Literal["cosine", "linear", "constant"] = Field(default="cosine", description="after the warm-up")
    warm_up: float = Field(default=0.05, ge=0, le=1, description="part of the steps")
    final_learning_rate: float = Field(default=0.0, ge=0, le=1, description="at the last step, part of the highest")
    clip: float = Field(default=0.0, ge=0, description="largest norm of the gradient; 0 for any")
    batch: int = Field(default=128, gt=0, description="samples per step")
    micro_batches: int = Field(default=1, gt=0, description="parts a batch is computed in; gradients add up")


class Execution(Spec):
    """What was resolved for a machine when the plan was made."""

    device: Literal["cpu", "cuda", "mps"] = Field(default="cpu", description="kind of device")
    devices: int = Field(default=1, gt=0, description="how many of them share the run")
    precision: Literal["float32", "bfloat16"] = Field(default="float32", description="of products")
    threads: int = Field(default=1, gt=0, description="of one process")
    compiled: bool = Field(default=False, description="through torch.compile")
    path: Literal["fast", "plain", "generated"] = Field(default="fast", description="of the layers")


class Run(JsonSpec):
    """One training run. `task` is the task's own description: its name and every field."""

    task: dict[str, Any] = Field(description="name and options of the task")
    options: ModelOptions = Field(default_factory=ModelOptions, description="the model, but for its shape")
    shape: str = Field(description="the model's shape, as the options build it")
    recipe: Recipe = Field(default_factory=Recipe, description="how it is trained")
    begin: dict[str, Any] = Field(default_factory=dict, description="an earlier training or a construction")
    steps: int = Field(ge=0, description="optimiser steps; 0 to measure a model as it begins")
    seed: int = Field(default=0, ge=0, description="of weights, data and dropout")
    evaluations: int = Field(default=10, gt=0, description="points of the validation curve")
    probes: tuple[ProbeName, ...] = Field(default=(), description="what is measured on the model at each of them")
    execution: Execution = Field(default_factory=Execution, description="what was resolved for a machine")

    @field_validator("shape")
    @classmethod
    def _canonical(cls, text: str, info: ValidationInfo) -> str:
        shape = _parsed(text)
        return str(info.data["options"].complete(shape) if "options" in info.data else shape)

    @field_validator("task")
    @classmethod
    def _named(cls, task: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(task.get("name"), str):
            raise SpecError(f"a task needs a name, as in {{'name': 'nearest-neighbor'}}, not {task}")
        return task

    @field_validator("begin")
    @classmethod
    def _described(cls, begin: dict[str, Any]) -> dict[str, Any]:
        before = begin.get("run", {})
        if not isinstance(before, dict) or not isinstance(before.get("task", {}), dict):
            raise SpecError(f"what a run begins with must be a run with a task, not {str(before)[:60]}")
        return begin

    @property
    def model_shape(self) -> ModelShape:
        return _parsed(self.shape)

    @property
    def content(self) -> str:
        """What data the run reads, in its pre-training too; empty where it reads none."""
        tasks = (self.begin.get("run", {}).get("task", {}), self.task)
        return " ".join(str(task.get("content", "")) for task in tasks)

    @cached_property
    def key(self) -> str:
        """The run's name everywhere: 16 hexadecimal digits of a hash of the whole spec.

        Fields at their default are left out of the hash, so that a field added later leaves known keys alone. So are
        the places of files whose content is hashed: the same data elsewhere is the same run.
        """
        return _hash(_with_tasks(self.model_dump(exclude_defaults=True), _without_places))

    @cached_property
    def cell_key(self) -> str:
        """A hash of what a study asks for: the run without what was resolved for a machine or read off the data."""
        spec = self.model_dump(exclude={"execution"}, exclude_defaults=True)
        options = {name: value for name, value in spec.get("options", {}).items() if name not in FACTS}
        return _hash(_with_tasks(spec, _asked) | {"options": options})


def _hash(spec: dict[str, Any]) -> str:
    text = json.dumps(spec | {"numerics": NUMERICS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _with_tasks(spec: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A run's spec with its task changed, and so that of the pre-training it begins with, where it does."""
    begin = spec.get("begin", {})
    before = begin.get("run", {})
    changed = {"begin": begin | {"run": _with_tasks(before, change)}} if "task" in before else {}
    return spec | {"task": change(spec["task"])} | changed


def _asked(task: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name not in ("source", "content")}


def _without_places(task: dict[str, Any]) -> dict[str, Any]:
    if task.get("hash"):
        task = task | {"name": task["name"].replace("\\", "/").rpartition("/")[2]}
    return {name: value for name, value in task.items() if name != "source" or not task.get("content")}


Point = tuple[int, str, float]  # of a curve: step, name, value


@dataclass(frozen=True)
class RunResult:
    """The result of a run; plain data, so that it can cross processes and enter the store.

    `metrics` are final numbers on the test stream; `curve` and `probes` are rows of (step, name, value).
    """

    key: str
    status: Status
    metrics: dict[str, float] = field(default_factory=dict)
    curve: list[Point] = field(default_factory=list)
    probes: list[Point] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    latency: float = 0.0  # seconds that the trained model takes for a batch, without gradients; 0 where not measured
    tokens: int = 0
    flops: int = 0
    parameters: int = 0
    peak_bytes: int = 0
    kernel: str = ""
    weights: str = ""  # hash of the final weights, where they were kept
    message: str = ""  # why a run diverged or failed
    environment: dict[str, str] = field(default_factory=dict)
    registration: str = ""  # of the study that the run was done for; pilots begin with "pilot"

    @property
    def validation_error(self) -> float:
        """What a learning rate is chosen by: infinite where a run diverged or failed.

        An external trainer may report the final error only, which is then used instead.
        """
        metrics = self.metrics if self.status == "done" else {}
        error = metrics.get("validation_error", metrics.get("error", math.inf))
        return error if math.isfinite(error) else math.inf

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
