"""The commands about theory: what error is certified, how many heads it needs, how conditioning should go."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.terminal import AsJson

theory_app = typer.Typer(no_args_is_help=True, help="Certified bounds and predictions: no training.")

Dim = Annotated[int, typer.Option(help="Dimension of the points (the width).", show_default=False)]
Ranks = Annotated[str, typer.Option(help="Rank of each head: 8, a list 1,4,16, or 1..64 by doubling.")]
Heads = Annotated[str, typer.Option(help="Number of heads: 8, a list 1,4,16, or 1..64 by doubling.")]
Skip = Annotated[bool, typer.Option("--skip", help="Any function of the query may be added (skip connection).")]
ChartFolder = Annotated[Path | None, typer.Option("--chart", help="Folder for a chart.", show_default="no chart")]


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.add_typer(theory_app, name="theory")


@theory_app.command("bound", epilog="Example: headwise theory bound --dim 64 --rank 8 --heads 1..64")
def bound(
    dim: Dim, rank: Ranks, heads: Heads, skip: Skip = False, as_json: AsJson = False, chart: ChartFolder = None
) -> None:
    """No heads of this rank and number have a smaller error at finding the nearer of two points."""
    from headwise.report.theory import bound_chart, bound_table
    from headwise.theory.bounds import HYPOTHESES, free_bound, scalar_bound

    cells = [(r, h) for r in read_counts("rank", rank) for h in read_counts("heads", heads)]
    rows = [
        {
            "dim": dim,
            "rank": r,
            "heads": h,
            "skip": skip,
            "scalar_values": scalar_bound(dim, r, h, skip=skip),
            "free_values": free_bound(dim, r, h, skip=skip),
            "hypotheses": HYPOTHESES,
        }
        for r, h in cells
    ]
    _tell(rows, bound_table, bound_chart, "theory-bound", chart, as_json)


@theory_app.command("heads-needed", epilog="Example: headwise theory heads-needed --dim 64 --rank 1..32 --error 0.1")
def heads_needed(
    dim: Dim,
    rank: Ranks,
    error: Annotated[str, typer.Option(help="Squared error to reach; the mean of the points has 0.5.")],
    skip: Skip = False,
    as_json: AsJson = False,
    chart: ChartFolder = None,
) -> None:
    """With fewer heads of this rank no training and no attention function reaches the error."""
    from headwise.report.theory import heads_chart, heads_table
    from headwise.theory.bounds import HYPOTHESES, read_error
    from headwise.theory.bounds import heads_needed as least

    allowed = read_error(error)
    rows = [
        {
            "dim": dim,
            "rank": r,
            "error": float(allowed),
            "skip": skip,
            "scalar_values": least(dim, r, allowed, values="scalar", skip=skip),
            "free_values": least(dim, r, allowed, values="free", skip=skip),
            "hypotheses": HYPOTHESES,
        }
        for r in read_counts("rank", rank)
    ]
    _tell(rows, heads_table, heads_chart, "theory-heads-needed", chart, as_json)


@theory_app.command("conditioning", epilog="Example: headwise theory conditioning --tokens 64 --heads 1..64")
def conditioning(
    tokens: Annotated[int, typer.Option(help="Tokens N: rows of the matrix.")] = 64,
    heads: Heads = "1..64",
    head_size: Annotated[int, typer.Option(help="Columns that each head adds.")] = 16,
    seeds: Annotated[int, typer.Option(help="Random matrices of each size.")] = 5,
    as_json: AsJson = False,
    chart: ChartFolder = None,
) -> None:
    """Condition number of independent Gaussian head outputs, side by side: predicted and simulated."""
    from statistics import mean

    from headwise.report.theory import conditioning_chart, conditioning_table
    from headwise.theory.sphere import whole

    for name, number in {"tokens": tokens, "head size": head_size, "seeds": seeds}.items():
        whole(name, number, 2 if name == "tokens" else 1, 4096)
    sizes = {count: whole("heads × head size", count * head_size, 1, 2**17) for count in read_counts("heads", heads)}
    from headwise.theory.conditioning import gaussian_condition, marchenko_pastur

    rows: list[dict[str, Any]] = []
    for count, columns in sizes.items():
        found = [gaussian_condition(tokens, columns, seed) for seed in range(seeds)]
        rows.append(
            {
                "tokens": tokens,
                "heads": count,
                "head_size": head_size,
                "columns": columns,
                "predicted": None if columns == tokens else marchenko_pastur(tokens, columns),
                "simulated": mean(found),
                "low": min(found),
                "high": max(found),
                "seeds": seeds,
            }
        )
    _tell(rows, conditioning_table, conditioning_chart, "theory-conditioning", chart, as_json)


def read_counts(name: str, text: str) -> list[int]:
    """'8' is one number, '1,4,16' are three, '1..64' doubles from 1 up to 64, and ends with it."""
    from headwise.spec import SpecError

    try:
        numbers: list[int] = []
        for part in text.split(","):
            low, dots, high = part.partition("..")
            number, last = int(low), int(high if dots else low)
            if number < 1 or last < number:
                raise ValueError
            while number < last:
                numbers.append(number)
                number *= 2
            numbers.append(last)
    except ValueError:
        sentence = f"cannot read --{name} '{text}'; write a number from 1 on, a list 1,4,16 or a range 1..64"
        raise SpecError(sentence) from None
    return sorted(set(numbers))


def _tell(rows: list[dict[str, Any]], table: Any, draw: Any, name: str, folder: Path | None, as_json: bool) -> None:
    """One row is an object, several are a list; a table otherwise. The chart is written first."""
    files: list[Path] = []
    if folder is not None:
        from headwise.charts.grammar import save

        files = save(draw(rows), folder, name)
    if as_json:
        sys.set_int_max_str_digits(0)  # numbers of heads may have thousands of digits
        document = [{**row, "chart": str(files[0])} for row in rows] if files else rows
        return typer.echo(json.dumps(document[0] if len(rows) == 1 else document, indent=2, allow_nan=False))
    from headwise.report.tables import show

    show(*table(rows))
    if files:
        show(f"Chart: {files[0]}, and .svg, .pdf, .html beside it")
