"""A predicted loss for a terminal: the number, what it is of, how far it is carried on; else what others published."""

from rich.console import RenderableType
from rich.text import Text

from headwise.comparison.prediction import PredictedLoss
from headwise.report.evidence import row_table
from headwise.report.ledger import wrapped


def prediction_lines(predicted: PredictedLoss) -> list[RenderableType]:
    at = predicted.prediction
    if at is None:
        runs = _dim(f"the ladder's runs: {predicted.trained}") if predicted.trained else []
        said = [Text(line, style="bold") for line in wrapped(predicted.headline + ".", indent=0)]
        rows = row_table(predicted.nearest, title="Published comparisons nearest in scale")
        return [*said, *runs, "", rows, f"[dim]more: headwise evidence --near {predicted.shape}[/dim]"]
    interval = f"{at.low:.3f} to {at.high:.3f}, {predicted.level:.0%} of new runs"
    lines: list[RenderableType] = [f"[bold]{at.value:.3f} bits per byte[/bold] ({interval})"]
    lines.append(f"{predicted.shape}, trained {predicted.steps:,} steps")
    lines += [f"[bold red]carried on beyond the runs:[/] {reason}" for reason in predicted.outside]
    lines += [] if predicted.outside else ["within the runs that the law was fitted to"]
    return [*lines, *_dim(f"law {predicted.law}; runs: {predicted.trained}")]


def _dim(text: str) -> list[RenderableType]:
    return [Text(line, style="dim") for line in wrapped(text, indent=0)]
