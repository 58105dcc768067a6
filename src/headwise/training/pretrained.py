"""Weights from an earlier training, as a run's `begin`: hidden bytes of text first, then texts sorted into classes.

    begin={"name": "pretrained", "run": {"task": {"name": "text", "objective": "masked", "context": 64}, "steps": 800}}

So pre-training and fine-tuning are one run, with one key. `run` is a `Run` of which only the task and the steps must be
given: shape, recipe, seed, evaluations and execution are the run's own unless it says otherwise, and so is the model
but for its head. The body, the positions and the table's rows for bytes are carried over; tokens that are no text, the
pooler and the head of the classes begin anew.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headwise.data.tables import SPECIAL
from headwise.data.text import BYTES
from headwise.models import Bert
from headwise.spec import SpecError
from headwise.tasks import Task, load
from headwise.tasks.glue import Reading
from headwise.tasks.text import Text
from headwise.training.run import Run

NAME = "pretrained"
_INHERITED = ("shape", "recipe", "seed", "evaluations", "execution")
_OF_THE_HEAD = ("head", "vocab", "context", "classes", "segments", "pooler")
_CARRIED = ("body.", "places.", "embedding_norm.")


def earlier(run: Run) -> Run:
    """The training that a run begins with, as a run of its own: the same as if somebody had asked for it alone."""
    given: dict[str, Any] = run.begin.get("run") or {}
    if set(run.begin) != {"name", "run"} or not {"task", "steps"} <= set(given) or given.get("begin"):
        raise SpecError('a pre-training is {"name": "pretrained", "run": {"task": {...}, "steps": ...}}, from nothing')
    text = _text(load(given["task"]), load(run.task))
    usual = text.default_options()
    own = {name: getattr(run, name) for name in _INHERITED}
    own["options"] = run.options.replace(**{name: getattr(usual, name) for name in _OF_THE_HEAD})
    return Run(**own | given | {"task": given["task"] | {"content": text.content or text.digest()}})


def _text(first: Task, then: Task) -> Text:
    """The text that is learned first; refused where its tokens are not those of the task that comes then."""
    if not isinstance(first, Text) or first.objective != "masked" or not isinstance(then, Reading):
        raise SpecError("a pre-training is on text with objective 'masked', for a task of labelled texts such as glue")
    if (first.tokenizer, then.tokenizer) != ("bytes", "bytes"):
        raise SpecError("byte pairs learned from two texts differ: a pre-training and its run need tokenizer 'bytes'")
    return first


@torch.no_grad()
def carry_over(weights: dict[str, Tensor], model: nn.Module) -> None:
    """Begin with what the pre-trained model has learned, whose state `weights` is."""
    bert = next(module for module in model.modules() if isinstance(module, Bert))
    own = bert.state_dict()
    for name, tensor in own.items():
        if name.startswith(_CARRIED):
            before = weights.get(name)
            if before is None or before.shape != tensor.shape:
                has = "none" if before is None else tuple(before.shape)
                raise SpecError(
                    f"the pre-trained model's {name} is {has}, and this run needs {tuple(tensor.shape)}: shape, "
                    "options and context (the task's length) must be the same in both"
                )
            tensor.copy_(before)
    own["embedding.weight"][SPECIAL : SPECIAL + BYTES] = weights["embedding.weight"][:BYTES]
