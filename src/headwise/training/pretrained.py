"""Weights from an earlier training, as a run's `begin`: text with masked bytes first, then labelled texts, say.

    begin={"name": "pretrained", "run": {"task": {"name": "text", "objective": "masked", "context": 64}, "steps": 800}}

So pre-training and fine-tuning are one run, with one key. `run` is a `Run` of which only the task and the steps must be
given: shape, recipe, seed, evaluations and execution are the run's own unless it says otherwise, and so is the model
but for its head. Which trainings a task can begin with, and what its model takes over from them, the task says
(`Task.check_pretraining`, `Task.carry_over`).
"""

from typing import Any

from headwise.spec import SpecError
from headwise.tasks import DataTask, load_task
from headwise.training.run import Run

PRETRAINED = "pretrained"
_INHERITED = ("shape", "recipe", "seed", "evaluations", "execution")
_OF_THE_HEAD = ("head", "vocab", "context", "classes", "segments", "pooler")


def earlier(run: Run) -> Run:
    """The training that a run begins with, as a run of its own: the same as if it were asked for alone."""
    given: dict[str, Any] = run.begin.get("run") or {}
    if set(run.begin) != {"name", "run"} or not {"task", "steps"} <= set(given) or given.get("begin"):
        raise SpecError('a pre-training is {"name": "pretrained", "run": {"task": {...}, "steps": ...}}, from nothing')
    first = load_task(given["task"])
    load_task(run.task).check_pretraining(first)
    usual = first.default_options()
    own = {name: getattr(run, name) for name in _INHERITED}
    own["options"] = run.options.replace(**{name: getattr(usual, name) for name in _OF_THE_HEAD})
    data = {"content": first.content or first.digest()} if isinstance(first, DataTask) else {}
    return Run(**own | given | {"task": given["task"] | data})
