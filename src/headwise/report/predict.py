"""A predicted loss for a terminal: the number, whether it may be trusted, and how far the law errs elsewhere."""

from rich.console import RenderableType

from headwise.comparison.prediction import PredictedLoss


def prediction_lines(predicted: PredictedLoss) -> list[RenderableType]:
    interval = f"{predicted.low:.3f} to {predicted.high:.3f}, {predicted.level:.0%} of new shapes"
    lines: list[RenderableType] = [f"[bold]{predicted.loss:.3f} bits per byte[/bold] ({interval})"]
    lines += [f"[bold red]not to be trusted:[/] {reason}" for reason in predicted.outside]
    lines += [] if predicted.outside else ["within the runs that the law was fitted to"]
    if families := predicted.families_left_out:
        worst = max(families, key=lambda name: families[name])
        error = f"of a family it never saw it errs by up to {families[worst]:.1%} ({worst})"
        lines.append(f"[dim]fitted to {predicted.points} shapes; {error}[/dim]")
    return lines
