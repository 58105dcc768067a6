"""The commands about tasks: what there is to learn, and one model trained on it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.terminal import AsJson, StorePath, show_or_json, watched

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
    """What shapes can be tried on, what each tests, and its no-skill baseline."""
    import headwise
    from headwise.report.tasks import task_card, tasks_table
    from headwise.spec import SpecError

    if task:
        return show_or_json(headwise.describe_task(task, baselines), as_json, lambda one: task_card(one.facts))
    if baselines:
        raise SpecError("--baselines needs a task: fitting the classical methods of all of them takes many minutes")
    show_or_json(headwise.list_tasks(), as_json, lambda found: tasks_table(found.rows))


def train(
    spec: Annotated[str, typer.Argument(help="A run as JSON, or a file that holds it.", show_default="none")] = "",
    task: Annotated[str, typer.Option(help=f"Instead of a run: {TASK_HELP}", show_default="none")] = "",
    shape: Annotated[str, typer.Option(help="Of the model.", show_default="the task's usual one")] = "",
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 1000,
    batch_size: Annotated[int, typer.Option("--batch-size", "--batch", help="Samples per step.")] = 64,
    learning_rate: Annotated[
        str,
        typer.Option(
            "--lr",
            "--learning-rate",
            help="Peak learning rate; of several (0.001,0.003,0.01) the best on validation, with another seed.",
        ),
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
    import headwise
    from headwise.report.tasks import result_lines

    trained = headwise.train(
        spec or None,
        task=task,
        shape=shape,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        optimizer=optimizer,
        weight_decay=weight_decay,
        clip=clip,
        seed=seed,
        keep_weights=keep_weights,
        store=store,
        checkpoints=checkpoints,
        watching=watched,
    )
    failed = trained.status == "failed"
    if os.environ.get("RANK", "0") == "0":  # of torchrun's processes, the first one tells
        if as_json or not failed:
            show_or_json(trained, as_json, result_lines)
        if failed:
            typer.echo(trained.result.message, err=True)
    if failed:
        raise typer.Exit(1)
