"""The command that asks the fitted scaling laws: the loss a shape is predicted to end at, before it is trained."""

from typing import Annotated

import typer

from headwise.cli.terminal import AsJson, ShippedResults, StorePath, show_or_json


def add_to(app: typer.Typer) -> None:
    """Hang this command on the main one."""
    app.command(epilog="Example: headwise predict w192-h4-L6")(predict)


def predict(
    shape: Annotated[str, typer.Argument(help="A shape (w192-h4-L6) or a known model (gpt2).", show_default=False)],
    steps: Annotated[
        int | None,
        typer.Option(help="Training steps.", show_default="those of the ladder, 10 bytes per parameter", min=1),
    ] = None,
    task: Annotated[str, typer.Option(help="Task; the scaling laws are fitted to text alone.")] = "text",
    from_: ShippedResults = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Predict the final loss of a shape from the laws fitted to the ladder, with its interval."""
    import headwise
    from headwise.report.predict import prediction_lines

    predicted = headwise.predict(shape, steps or 0, task=task, store=store, results=from_)
    show_or_json(predicted, as_json, prediction_lines)
