"""The command that asks the fitted scaling law: the loss a shape is predicted to end at, before it is trained."""

from typing import Annotated

import typer

from headwise.cli.terminal import AsJson, ShippedResults, StorePath, show_or_json


def add_to(app: typer.Typer) -> None:
    """Hang this command on the main one."""
    app.command(epilog="Example: headwise predict w48-h3-L2 --task text --steps 150")(predict)


def predict(
    shape: Annotated[str, typer.Argument(help="A shape (w48-h3-L2) or a known model (gpt2).", show_default=False)],
    steps: Annotated[int, typer.Option(help="Training steps.", show_default=False, min=1)],
    task: Annotated[str, typer.Option(help="Task; the scaling law is fitted to text alone.")] = "text",
    from_: ShippedResults = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Predict the final loss of a shape from the fitted scaling law, with its interval."""
    import headwise
    from headwise.report.predict import prediction_lines

    predicted = headwise.predict(shape, steps, task=task, store=store, results=from_)
    show_or_json(predicted, as_json, prediction_lines)
