"""One model trained on a task: with one learning rate, or the best of several on validation; or a run as it is given.

trained = headwise.train(task="text:my.txt", shape="w128-h4-L4", steps=500)
trained.metrics["error"], trained.run.key
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from headwise.activations import fitting_micro_batches
from headwise.shape import ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError, read_json_text, read_text
from headwise.store.opening import StoreLike, opened
from headwise.store.rows import at_rate, at_rates, best_rate
from headwise.store.store import Store
from headwise.sweep.drive import conduct
from headwise.sweep.known import finished_cells, identity
from headwise.sweep.plan import make_plan
from headwise.sweep.resolve import fitted, resolve
from headwise.sweep.tracking import tracked
from headwise.sweep.watching import Watching, unwatched
from headwise.training.asked import (
    RecipeSettings,
    asked_options,
    asked_recipe,
    asked_task,
    model_in_words,
    recipe_in_words,
)
from headwise.training.run import Run, RunResult

PROJECT = "train"  # of a tracker


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
    def model(self) -> str:
        """What kind of model, in words."""
        return model_in_words(self.run.options)

    @property
    def recipe(self) -> str:
        """How it was trained, in words."""
        return recipe_in_words(self.run.recipe)

    @property
    def headline(self) -> str:
        result = self.result
        ended = f"{result.status} after {result.steps:,} steps, {result.seconds:.0f} s"
        return f"{self.run.shape} on {self.run.task['name']}: {ended} (run {self.run.key})"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise train --json` prints."""
        return {**self.result.as_dict(), "model": self.model, "recipe": self.recipe}

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
    family: str = "",
    options: Mapping[str, Any] | None = None,
    context: int = 0,
    tokenizer: str = "",
    seed: int = 0,
    keep_weights: bool = False,
    again: bool = False,
    store: StoreLike = None,
    checkpoints: str | Path | None = None,
    track: str = "",
    watching: Watching = unwatched,
    **recipe: Unpack[RecipeSettings],
) -> Trained:
    """Train one model on a task, or do a given run.

    A task is written as in "text:my.txt"; of several learning rates the best on validation is taken, with another seed.
    `family` and `options` say what kind of model in place of the task's usual one (`family="gpt2"`,
    `options={"tied": False}`), and `recipe` how it is trained: optimizer, weight_decay, warm_up, clip, betas, schedule,
    final_learning_rate.
    What the store holds, by whatever device or kernels it was done, is found and not trained again, unless `again` asks
    for that: then the first result stays in the store, and what is given is the new one. A run (or its JSON, or a file
    that holds it) is done by itself in this process, as torchrun starts it. `track` mirrors curves to tensorboard or
    wandb as they are measured.

    Training on a task starts a process, so a script does it under `if __name__ == "__main__"`. An interrupt saves and
    raises `KeyboardInterrupt`; the same call goes on from the checkpoint.
    """
    if bool(run) == bool(task):
        raise SpecError("give either a run (a JSON file) or a --task, as in: headwise train --task recall")
    shown = tracked(watching, track, PROJECT)
    if run:
        return _train_given(_read(run) if isinstance(run, str) else run, store, checkpoints, again, shown)
    asked, rates = asked_task(task, context=context, tokenizer=tokenizer), _rates(learning_rate)
    model = ModelShape.parse(shape or asked.usual_shape)
    kind = asked_options(asked.default_options(), asked.tokens, family, options or {})
    parts = fitting_micro_batches(model, kind, asked.tokens_in(kind), batch_size)
    trained = asked_recipe(recipe, learning_rate=rates[0], batch=batch_size, micro_batches=parts)
    wanted = Run(task=asked.spec(), shape=str(model), options=kind, recipe=trained, steps=steps, seed=seed)
    with opened(store) as source:
        if len(rates) > 1:
            trials = _done(at_rates(wanted, rates), source, keep_weights, shown, "learning rates")
            wanted = at_rate(wanted, best_rate(trials, source))
        if again:
            (planned,) = fitted([wanted], resolve("auto", "auto"))
            return _train_given(planned, source, source.files / "checkpoints", again, shown)
        (planned,) = _done([wanted], source, keep_weights, shown, f"learning rate {wanted.recipe.learning_rate:g}")
        pair = source.get(planned.key)
    assert pair is not None
    return Trained(planned, pair[1])


def _done(runs: list[Run], store: Store, keep_weights: bool, watching: Watching, stage: str) -> list[Run]:
    """The runs as they are planned here, all of them in the store."""
    planned = fitted(runs, resolve("auto", "auto"), store)
    with watching(list(make_plan(planned, store).todo), stage) as watch:
        conduct(planned, store, folder=store.files, watch=watch, keep_weights=keep_weights)
    return planned


def _train_given(
    run: Run, store: StoreLike, checkpoints: str | Path | None, again: bool, watching: Watching
) -> Trained:
    """By itself in this process: what torchrun starts once for each device, of which the first one knows the store."""
    from headwise.training.distributed import Workers
    from headwise.training.doctor import check_runnable
    from headwise.training.loop import train_run
    from headwise.training.machine import use_one_core

    use_one_core()
    check_runnable(run)
    workers = Workers(run)
    with opened(store) if workers.first else nullcontext() as source:
        known = finished_cells(source).get(identity(run)) if source and not again else None
        stored = source.get(known.key) if source and known else None
        if pair := workers.share(stored):
            return Trained(*pair)
        with (watching if workers.first else unwatched)([run], "") as watch:
            settings: dict[str, Any] = {"on_step": partial(watch.on_step, run)}
            settings |= {"on_points": partial(watch.on_points, run), "on_loss": partial(watch.on_loss, run)}
            watch.on_start(run)
            result = train_run(run, checkpoints=None if checkpoints is None else Path(checkpoints), **settings)
            watch.on_end(run, result)
        if source:
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
    given = spec.lstrip().startswith("{")
    document = read_json_text(spec if given else read_text(spec, "a run"), "a run" if given else f"'{spec}'")
    if not isinstance(document, dict):
        raise SpecError(f"'{spec}' holds no run: a JSON object with its fields is expected")
    return Run(**document)
