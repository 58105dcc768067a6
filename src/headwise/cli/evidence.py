"""The command that shows what others published: by axis, by scale, weighed by lab, and tested by itself."""

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.terminal import AsJson, ShippedResults, StorePath, print_json, show_or_json


def add_to(app: typer.Typer) -> None:
    """Hang this command on the main one."""
    app.command(epilog="Example: headwise evidence --axis kv_heads --near gpt2")(evidence)


def evidence(
    axis: Annotated[
        str, typer.Option(help="kv_heads, kv_latent, heads, head_dim, qk_rank, depth_vs_heads, ...", show_default="all")
    ] = "",
    near: Annotated[
        str, typer.Option(help="Rows nearest in parameters to this model first.", show_default="as listed")
    ] = "",
    held: Annotated[
        str, typer.Option(help="What was equal: params, flops, tokens, steps, nothing.", show_default="any")
    ] = "",
    test: Annotated[bool, typer.Option("--test", help="Predict each lab from the others, and show how well.")] = False,
    limit: Annotated[int, typer.Option(help="Rows to print.")] = 12,
    out: Annotated[
        Path | None, typer.Option(help="Write the page and its charts into this folder.", show_default="none")
    ] = None,
    from_: ShippedResults = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Show published comparisons of shapes, weighed by lab, beside our own claims."""
    import headwise
    from headwise.report.evidence import evidence_lines, self_test_lines
    from headwise.spec import SpecError

    rows = headwise.evidence(axis, near, held, store=store, results=from_)
    if out is not None and (axis or held):
        raise SpecError("the page is of all rows: leave out --axis and --held")
    if out is not None:
        files = [str(file) for file in headwise.write_evidence(rows, out)]
        return print_json({"files": files}) if as_json else typer.echo("\n".join(files))
    if test:
        return show_or_json(rows.leave_one_out(), as_json, self_test_lines)
    show_or_json(rows, as_json, lambda shown: evidence_lines(shown, limit))
