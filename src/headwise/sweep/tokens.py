"""Tokens of one sample of a run: its task knows them, and to ask a task loads torch, which takes a second or two.

So what the built-in tasks said is kept in the user's cache folder, for as long as their code is the same, and read by
those who have not loaded torch: a ledger prices the runs that it lacks, and does nothing else with tasks.
"""

import hashlib
import json
import sys
from contextlib import suppress
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cost import sequence_length
from headwise.data import cache_folder
from headwise.options import ModelOptions
from headwise.training.run import Run

if TYPE_CHECKING:
    from headwise.tasks import Task


def sample_tokens(run: Run) -> int:
    """Tokens of one sample, which the run's task knows.

    A task that cannot be loaded here (another trainer's, a file or data that is gone) must not keep other runs from
    being planned: then the model's own context has to do.
    """
    task = json.dumps(run.task, sort_keys=True)
    try:
        if _began_without_torch() and not run.task["name"].endswith(".py"):
            return _remembered(task, run.options)
        return _task(task).tokens_in(run.options)
    except Exception:  # a task may be anybody's code
        return sequence_length(run.options)


@cache
def _began_without_torch() -> bool:
    """When it was first asked: one answer loads torch, and the others are to be kept as well."""
    return "torch" not in sys.modules


@lru_cache(maxsize=1024)
def _task(spec: str) -> "Task":
    from headwise.tasks import load_task

    return load_task(json.loads(spec))


@lru_cache(maxsize=1024)
def _remembered(task: str, options: ModelOptions) -> int:
    memory = cache_folder() / f"tokens-{_code()}.json"
    asked = f"{task} {options.model_dump_json(exclude_defaults=True)}"
    known = _read(memory)
    if asked not in known:
        known[asked] = _task(task).tokens_in(options)
        with suppress(OSError):  # an unwritable cache only means asking again
            memory.parent.mkdir(parents=True, exist_ok=True)
            partial = memory.with_suffix(".partial")
            partial.write_text(json.dumps(known))
            partial.replace(memory)
    return known[asked]


def _read(memory: Path) -> dict[str, int]:
    """What is known; a file that somebody else wrote, or that was cut off, says nothing."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        known = dict(json.loads(memory.read_text()))
        return {asked: tokens for asked, tokens in known.items() if type(tokens) is int and tokens > 0}
    return {}


@cache
def _code() -> str:
    """A digest of the tasks' code, and of the options that it reads."""
    package = files("headwise")
    sources = [file for file in package.joinpath("tasks").iterdir() if file.name.endswith(".py")]
    texts = [file.read_bytes() for file in sorted(sources, key=lambda file: file.name)]
    texts.append(package.joinpath("options.py").read_bytes())
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
