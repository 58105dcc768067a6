"""One model trained on a task: with one learning rate, or the best of several on validation; or a run as it is given.

trained = headwise.train(task="text:my.txt", shape="w128-h4-L4", steps=500)
trained.metrics["error"], trained.run.key
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.cost import fitting_micro_batches
from headwise.shape import ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened
from headwise.store.rows import at_rate, at_rates, best_rate
from headwise.store.store import Store
from headwise.sweep.drive import conduct
from headwise.sweep.plan import make_plan
from headwise.sweep.resolve import fitted, resolve
from headwise.sweep.watching import Watching, unwatched
from headwise.training.run import Recipe, Run, RunResult


@dataclass(frozen=True)
class Trained(Shown):
    """A run and its result."""

    run: Run
    result: RunResult

    @property
    def status(self) -> str:
        """done, diverged or failed."""
        return self.result.status

    @property
    def metrics(self) -> dict[str, float]:
        """Final numbers on the test stream; `error` is what is reported."""
        return self.result.metrics

    @property
    def learning_rate(self) -> float:
        return self.run.recipe.learning_rate

    @property
    def headline(self) -> str:
        result = self.result
        ended = f"{result.status} after {result.steps:,} steps, {result.seconds:.0f} s"
        return f"{self.run.shape} on {self.run.task['name']}: {ended} (run {self.run.key})"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise train --json` prints."""
        return self.result.as_dict()

    def records(self) -> list[dict[str, Any]]:
        return [{"metric": name, "value": value} for name, value in self.metrics.items()]


def train(
    run: Run | str | None = None,
    *,
    task: str = "",
    shape: str = "",
    steps: int = 1000,
    batch_size: int = 64,
    learning_rate: float | Sequence[float] | str = 0.002,
    optimizer: str = "adamw",
    weight_decay: float = 0.0,
    clip: float = 1.0,
    seed: int = 0,
    keep_weights: bool = False,
    store: StoreLike = None,
    checkpoints: str | Path | None = None,
    watching: Watching = unwatched,
) -> Trained:
    """Train one model on a task, or do a given run.

    A task is written as in "text:my.txt"; of several learning rates the best on validation is taken, with another seed.
    What the store holds is found and not trained again. A run (or its JSON, or a file that holds it) is done by itself
    in this process, as torchrun starts it, and stored where a store is named.

    Training on a task starts a process, so a script does it under `if __name__ == "__main__"`. An interrupt saves and
    raises `KeyboardInterrupt`; the same call goes on from the checkpoint.
    """
    if bool(run) == bool(task):
        raise SpecError("give either a run (a JSON file) or a --task, as in: headwise train --task recall")
    if run:
        return _train_given(_read(run) if isinstance(run, str) else run, store, checkpoints)
    from headwise.tasks import parse

    asked, rates = parse(task), _rates(learning_rate)
    model, options = ModelShape.parse(shape or asked.usual_shape), asked.default_options()
    parts = fitting_micro_batches(model, options, asked.tokens, batch_size)
    settings: dict[str, Any] = {"optimizer": optimizer, "weight_decay": weight_decay, "clip": clip}
    recipe = Recipe(learning_rate=rates[0], batch=batch_size, micro_batches=parts, warm_up=0.1, **settings)
    wanted = Run(task=asked.spec(), shape=str(model), options=options, recipe=recipe, steps=steps, seed=seed)
    with opened(store) as source:
        if len(rates) > 1:
            trials = _done(at_rates(wanted, rates), source, keep_weights, watching, "learning rates")
            wanted = at_rate(wanted, best_rate(trials, source))
        (planned,) = _done([wanted], source, keep_weights, watching, f"learning rate {wanted.recipe.learning_rate:g}")
        pair = source.get(planned.key)
    assert pair is not None
    return Trained(planned, pair[1])


def _done(runs: list[Run], store: Store, keep_weights: bool, watching: Watching, stage: str) -> list[Run]:
    """The runs as they are planned here, all of them in the store."""
    planned = fitted(runs, resolve("auto", "auto"), store)
    with watching(list(make_plan(planned, store).todo), stage) as watch:
        conduct(planned, store, folder=store.files, watch=watch, keep_weights=keep_weights)
    return planned


def _train_given(run: Run, store: StoreLike, checkpoints: str | Path | None) -> Trained:
    """By itself in this process: what torchrun starts once for each device, of which the first one stores."""
    from headwise.training.loop import train_run
    from headwise.training.machine import use_one_core

    use_one_core()
    result = train_run(run, checkpoints=None if checkpoints is None else Path(checkpoints))
    if store is not None and os.environ.get("RANK", "0") == "0":
        with opened(store) as source:
            source.add(run, result)
    return Trained(run, result)


def _rates(text: float | Sequence[float] | str) -> tuple[float, ...]:
    if isinstance(text, int | float):
        return (text,)
    try:
        return tuple(float(part) for part in (text.split(",") if isinstance(text, str) else text))
    except ValueError:
        raise SpecError(f"cannot read '{text}' as learning rates; write 0.003, or 0.001,0.003,0.01") from None


def _read(spec: str) -> Run:
    try:
        return Run(**json.loads(spec if spec.lstrip().startswith("{") else Path(spec).read_text()))
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise SpecError(f"cannot read a run from '{spec}': {error}") from None
