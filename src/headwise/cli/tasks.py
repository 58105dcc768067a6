"""The commands about tasks: what there is to learn, and one model trained on it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.terminal import AsJson, StorePath, open_store, print_json

if TYPE_CHECKING:
    from headwise.tasks import Task
    from headwise.training.run import Run

TASK_HELP = "NAME[:SOURCE][,OPTION=VALUE...], or a .py file of your own; headwise tasks lists them."


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise tasks   or: headwise tasks text:my.txt --baselines")(tasks)
    app.command(epilog="Example: headwise train --task text:my.txt --shape w128-h4-L4 --steps 500")(train)


def tasks(
    task: Annotated[str, typer.Argument(help=f"One task: {TASK_HELP}", show_default="all")] = "",
    baselines: Annotated[bool, typer.Option("--baselines", help="Also fit the classical methods.")] = False,
    as_json: AsJson = False,
) -> None:
    """What shapes can be tried on, what each tests, and its trivial error."""
    from headwise.report.tables import show
    from headwise.report.tasks import task_card, tasks_table
    from headwise.spec import SpecError
    from headwise.tasks import names, parse

    if baselines and not task:
        raise SpecError("--baselines needs a task: fitting the classical methods of all of them takes many minutes")
    found = [_facts(parse(name), baselines) for name in ([task] if task else names())]
    if as_json:
        return print_json(found[0] if task else found)
    show(*(task_card(found[0]) if task else tasks_table(found)))


def _facts(task: "Task", baselines: bool) -> dict[str, Any]:
    """What `headwise tasks` says of a task."""
    fields = type(task).model_fields.items()
    options = [{"option": n, "value": getattr(task, n), "about": f.description} for n, f in fields if n != "content"]
    samples = {stream: task.samples(stream) for stream in ("train", "validation", "test")}
    facts = {"name": task.name, "summary": task.summary, "trivial_error": task.trivial_error(), "floor": task.floor()}
    facts |= {"tokens": task.tokens, "samples": samples, "usual_shape": task.usual_shape, "options": options}
    return facts | ({"baselines": task.baselines()} if baselines else {})


def train(
    spec: Annotated[str, typer.Argument(help="A run as JSON, or a file that holds it.", show_default="none")] = "",
    task: Annotated[str, typer.Option(help=f"Instead of a run: {TASK_HELP}", show_default="none")] = "",
    shape: Annotated[str, typer.Option(help="Of the model.", show_default="the task's usual one")] = "",
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 1000,
    batch: Annotated[int, typer.Option(help="Samples a step.")] = 64,
    learning_rate: Annotated[
        str, typer.Option(help="Highest; of several (0.001,0.003,0.01) the best on validation, with another seed.")
    ] = "0.002",
    optimizer: Annotated[str, typer.Option(help="adamw or muon (for the body's matrices).")] = "adamw",
    weight_decay: Annotated[float, typer.Option(help="On matrices.")] = 0.0,
    clip: Annotated[float, typer.Option(help="Largest norm of the gradient; 0 for any.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of weights and data.")] = 0,
    keep_weights: Annotated[bool, typer.Option("--keep-weights", help="Keep final weights beside the store.")] = False,
    store: StorePath = None,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder for a given run's checkpoint.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train one model on a task, or do a given run (also under torchrun)."""
    from headwise.spec import SpecError

    if bool(spec) == bool(task):
        raise SpecError("give either a run (a JSON file) or a --task, as in: headwise train --task recall")
    if spec:
        return _train_given(_read(spec), store, checkpoints, as_json)
    from headwise.cost import fitting_micro_batches
    from headwise.report.live import live_sweep
    from headwise.shape import ModelShape
    from headwise.store.rows import at_rates, best_rate
    from headwise.sweep.drive import conduct
    from headwise.sweep.plan import Stopped
    from headwise.sweep.resolve import fitted, resolve
    from headwise.tasks import parse
    from headwise.training.run import Recipe, Run

    asked = parse(task)
    model, options = ModelShape.parse(shape or asked.usual_shape), asked.default_options()
    parts = fitting_micro_batches(model, options, asked.tokens, batch)
    rates = _numbers(learning_rate)
    settings: dict[str, Any] = {"optimizer": optimizer, "weight_decay": weight_decay, "clip": clip}
    recipe = Recipe(learning_rate=rates[0], batch=batch, micro_batches=parts, warm_up=0.1, **settings)
    wanted = Run(task=asked.spec(), shape=str(model), options=options, recipe=recipe, steps=steps, seed=seed)
    with open_store(store) as held:

        def done(runs: list[Run]) -> list[Run]:
            planned = fitted(runs, resolve("auto", "auto"), held)
            try:
                with live_sweep(planned) as watch:
                    conduct(planned, held, folder=held.files, watch=watch, keep_weights=keep_weights)
            except Stopped:
                typer.echo("headwise: stopped; the same command goes on from the checkpoint", err=True)
                raise typer.Exit(130) from None
            return planned

        if len(rates) > 1:
            rate = best_rate(done(at_rates(wanted, rates)), held)
            wanted = wanted.replace(recipe=recipe.replace(learning_rate=rate))
            typer.echo(f"learning rate {rate:g}, the best of {learning_rate} on validation", err=True)
        (run,) = done([wanted])
        found = held.get(run.key)
    assert found is not None
    _tell(run, found[1], as_json)


def _numbers(text: str) -> tuple[float, ...]:
    from headwise.spec import SpecError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"cannot read '{text}' as learning rates; write 0.003, or 0.001,0.003,0.01") from None


def _read(spec: str) -> "Run":
    from headwise.spec import SpecError
    from headwise.training.run import Run

    try:
        return Run(**json.loads(spec if spec.lstrip().startswith("{") else Path(spec).read_text()))
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise SpecError(f"cannot read a run from '{spec}': {error}") from None


def _train_given(run: "Run", store: Path | None, checkpoints: Path | None, as_json: bool) -> None:
    """By itself in this process: what torchrun starts once for each device."""
    import os

    from headwise.training.loop import train as train_run
    from headwise.training.machine import use_one_core

    use_one_core()
    result = train_run(run, checkpoints=checkpoints)
    if os.environ.get("RANK", "0") != "0":
        raise typer.Exit(1 if result.status == "failed" else 0)
    if store is not None:
        with open_store(store) as held:
            held.add(run, result)
    _tell(run, result, as_json)


def _tell(run: "Run", result: Any, as_json: bool) -> None:
    if as_json:
        print_json(result.as_dict())
    elif result.status != "failed":
        from headwise.report.tables import show
        from headwise.report.tasks import result_lines

        show(*result_lines(run, result))
    if result.status == "failed":
        typer.echo(result.message, err=True)
        raise typer.Exit(1)
