"""The commands about theory: what error is certified, how many heads it needs, how conditioning should go."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli.terminal import AsJson

if TYPE_CHECKING:
    from headwise.report.theory import TheoryResult

theory_app = typer.Typer(
    no_args_is_help=True,
    help="Certified bounds and predictions, without training.",
    epilog="Example: headwise theory heads-needed --dim 64 --rank 1..32 --error 0.1",
)

DimOption = Annotated[int, typer.Option(help="Dimension of the points (the width).", show_default=False)]
RanksOption = Annotated[str, typer.Option(help="Rank of each head: 8, a list 1,4,16, or 1..64 by doubling.")]
HeadsOption = Annotated[str, typer.Option(help="Number of heads: 8, a list 1,4,16, or 1..64 by doubling.")]
Skip = Annotated[bool, typer.Option("--skip", help="Allow any function of the query to be added (a skip connection).")]
ChartFolder = Annotated[Path | None, typer.Option("--chart", help="Folder for a chart.", show_default="no chart")]


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.add_typer(theory_app, name="theory")


@theory_app.command("bound", epilog="Example: headwise theory bound --dim 64 --rank 8 --heads 1..64")
def bound(
    dim: DimOption,
    rank: RanksOption,
    heads: HeadsOption,
    skip: Skip = False,
    as_json: AsJson = False,
    chart: ChartFolder = None,
) -> None:
    """Lower bound on the error of finding the nearer of two points, for any such heads."""
    import headwise

    _show(headwise.bound(dim, rank, heads, skip=skip), chart, as_json)


@theory_app.command("heads-needed", epilog="Example: headwise theory heads-needed --dim 64 --rank 1..32 --error 0.1")
def heads_needed(
    dim: DimOption,
    rank: RanksOption,
    error: Annotated[str, typer.Option(help="Squared error to reach; answering the mean of the points has 0.5.")],
    skip: Skip = False,
    as_json: AsJson = False,
    chart: ChartFolder = None,
) -> None:
    """Number of heads of a rank below which no training reaches an error."""
    import headwise

    _show(headwise.heads_needed(dim, rank, error, skip=skip), chart, as_json)


@theory_app.command("conditioning", epilog="Example: headwise theory conditioning --tokens 64 --heads 1..64")
def conditioning(
    tokens: Annotated[int, typer.Option(help="Number of tokens: rows of the matrix.")] = 64,
    heads: HeadsOption = "1..64",
    head_size: Annotated[int, typer.Option(help="Columns that each head adds.")] = 16,
    seeds: Annotated[int, typer.Option(help="Random matrices per size.")] = 5,
    as_json: AsJson = False,
    chart: ChartFolder = None,
) -> None:
    """Condition number of concatenated Gaussian heads, predicted and simulated."""
    import headwise

    _show(headwise.conditioning(tokens, heads, head_size, seeds), chart, as_json)


def _show(result: "TheoryResult", folder: Path | None, as_json: bool) -> None:
    """The table, or JSON; the chart is written first."""
    files: list[Path] = []
    if folder is not None:
        from headwise.charts.grammar import save

        files = save(result.chart(), folder, result.name)
    if as_json:
        return typer.echo(result.with_chart(files[0]).to_json() if files else result.to_json())
    from headwise.report.tables import show

    show(*result.lines())
    if files:
        show(f"Chart: {files[0]}, and .svg, .pdf, .html beside it")
