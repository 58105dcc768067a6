"""The commands about tasks: what there is to learn, and one model trained on it."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.recipe import with_recipe
from headwise.cli.terminal import AsJson, StorePath, TrackOption, show_or_json, watched

TASK_HELP = "NAME[:SOURCE][,OPTION=VALUE...], or a .py file of your own"


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise tasks   or: headwise tasks text:my.txt --baselines")(tasks)
    app.command(epilog="Example: headwise train --task text:my.txt --shape w128-h4-L4 --steps 500")(with_recipe(train))


def tasks(
    task: Annotated[str, typer.Argument(help=f"{TASK_HELP}.", show_default="all")] = "",
    baselines: Annotated[bool, typer.Option("--baselines", help="Also fit classical methods to compare with.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the tasks, or describe one: what it tests, and its no-skill baseline."""
    import headwise
    from headwise.report.tasks import task_card, tasks_table
    from headwise.spec import SpecError

    if task:
        return show_or_json(headwise.describe_task(task, baselines), as_json, lambda one: task_card(one.facts))
    if baselines:
        raise SpecError("--baselines needs a task: fitting the classical methods of all of them takes many minutes")
    show_or_json(headwise.list_tasks(), as_json, lambda listed: tasks_table(listed.rows))


def train(
    spec: Annotated[
        str, typer.Argument(help="A run as JSON, or a file with it, in place of the options.", show_default="none")
    ] = "",
    task: Annotated[str, typer.Option(help=f"{TASK_HELP}; headwise tasks lists them.", show_default="none")] = "",
    shape: Annotated[
        str, typer.Option(help="Shape of the model, such as w128-h4-L4.", show_default="the task's usual one")
    ] = "",
    steps: Annotated[int, typer.Option(help="Training steps.")] = 1000,
    batch_size: Annotated[int, typer.Option("--batch-size", "--batch", help="Samples per step.")] = 64,
    learning_rate: Annotated[
        str,
        typer.Option(
            "--lr",
            "--learning-rate",
            help="Peak learning rate; of several (0.001,0.003,0.01) the one with the best validation loss.",
        ),
    ] = "0.002",
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    keep_weights: Annotated[bool, typer.Option("--keep-weights", help="Keep final weights beside the store.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Train it also where the store has its result.")] = False,
    store: StorePath = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Folder for the checkpoint of a run given as JSON.", show_default="none is kept"),
    ] = None,
    track: TrackOption = "",
    as_json: AsJson = False,
    *,
    recipe: dict[str, Any],
) -> None:
    """Train one model on a task, or a run given as JSON (also under torchrun)."""
    import headwise
    from headwise.report.tasks import trained_lines

    trained = headwise.train(
        spec or None,
        task=task,
        shape=shape,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        **recipe,
        seed=seed,
        keep_weights=keep_weights,
        again=again,
        store=store,
        checkpoints=checkpoints,
        track=track,
        watching=watched,
    )
    failed = trained.status == "failed"
    if os.environ.get("RANK", "0") == "0":  # of torchrun's processes, the first one prints
        if as_json or not failed:
            show_or_json(trained, as_json, trained_lines)
        if failed:
            typer.echo(trained.result.message, err=True)
    if failed:
        raise typer.Exit(1)
