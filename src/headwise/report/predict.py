"""A predicted loss for a terminal: the number, what it is of, and how far the law errs; else what others published."""

from rich.console import RenderableType
from rich.text import Text

from headwise.comparison.prediction import PredictedLoss
from headwise.report.evidence import row_table
from headwise.report.ledger import wrapped


def prediction_lines(predicted: PredictedLoss) -> list[RenderableType]:
    at = predicted.prediction
    runs = [Text(line, style="dim") for line in wrapped(f"law {predicted.law}; runs: {predicted.trained}", indent=0)]
    if at is None:
        said = [Text(line, style="bold") for line in wrapped(predicted.headline + ".", indent=0)]
        rows = row_table(predicted.nearest, title="Published comparisons nearest in scale")
        return [*said, *runs, "", rows, f"[dim]more: headwise evidence --near {predicted.shape}[/dim]"]
    interval = f"{at.low:.3f} to {at.high:.3f}, {predicted.level:.0%} of new shapes"
    lines: list[RenderableType] = [f"[bold]{at.value:.3f} bits per byte[/bold] ({interval})"]
    lines += [f"[bold red]not to be trusted:[/] {reason}" for reason in predicted.outside]
    lines += [*([] if predicted.outside else ["within the runs that the law was fitted to"]), *runs]
    if families := predicted.families_left_out:
        worst = max(families, key=lambda name: families[name])
        lines.append(
            f"[dim]of a family it never saw the law of all shapes errs by {families[worst]:.1%} ({worst})[/dim]"
        )
    return lines
