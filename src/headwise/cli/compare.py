"""The commands about choosing a shape: compare on a task or in one's own trainer, or ask the ledger."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.terminal import (
    AsJson,
    DeviceOption,
    PrecisionOption,
    RayAddress,
    ResultsFolder,
    StorePath,
    WorkersOption,
    listed,
    show_or_json,
    watched,
)


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise compare --task text:my.txt --base w64-h4-L2 --budget 25m")(compare)
    app.command(epilog="Example: headwise suggest --base w512-h8-L6 --goal memory")(suggest)


def compare(
    task: Annotated[
        str, typer.Option(help="Task to train on, such as text:my.txt; headwise tasks lists them.", show_default="none")
    ] = "",
    base: Annotated[str, typer.Option(help="The shape to beat.", show_default="the task's usual one")] = "",
    arms: Annotated[
        list[str] | None,
        typer.Option(help="A variant to compare; repeat for more.", show_default="shapes of equal cost"),
    ] = None,
    hold: Annotated[
        str, typer.Option(help="Cost that is equal in all variants: params, flops, kv (KV cache) or time.")
    ] = "params",
    vary: Annotated[
        str,
        typer.Option(
            help="What variants may change, separated by commas: heads, qk_rank, v_rank, kv_heads, depth, mlp."
        ),
    ] = "heads",
    family: Annotated[str, typer.Option(help="Model family: gpt2, llama, ...", show_default="the task's usual")] = "",
    budget: Annotated[str, typer.Option(help="Total time: 90s, 30m, 2h.")] = "30m",
    steps: Annotated[
        int, typer.Option(help="Training steps per finalist.", show_default="as many as fit the budget")
    ] = 0,
    seeds: Annotated[
        int, typer.Option(help="Paired seeds per finalist.", show_default="as many as fit the budget")
    ] = 0,
    lr: Annotated[
        str,
        typer.Option(
            "--lr", "--rates", help="Learning rates to choose from, separated by commas.", show_default="0.002 to 0.032"
        ),
    ] = "",
    batch_size: Annotated[
        int, typer.Option("--batch-size", "--batch", help="Samples per step.", show_default="16")
    ] = 0,
    command: Annotated[
        str, typer.Option(help="Command of your own trainer, with {heads}, {lr}, {seed}, ... in it.")
    ] = "",
    metric_json: Annotated[
        str, typer.Option(help="JSON file that --command writes; may have {seed}, {key}, ... in it.")
    ] = "",
    metric: Annotated[
        str, typer.Option(help="Name of the metric in --metric-json, or its column in --from.")
    ] = "metric",
    from_: Annotated[
        Path | None, typer.Option("--from", help="Compare finished runs: a CSV file with columns arm, seed, metric.")
    ] = None,
    workers: WorkersOption = 0,
    ray: RayAddress = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    store: StorePath = None,
    out: Annotated[Path, typer.Option(help="Folder for the chart.")] = Path("headwise-compare"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the best shape for a task within a time budget: tuned, with paired seeds."""
    import headwise
    from headwise.report.compare import answer_tables, plan_lines
    from headwise.spec import SpecError

    if sum(map(bool, (task, command, from_))) != 1:
        raise SpecError("give one of --task (to train here), --command (your own trainer) and --from (finished runs)")
    if from_:
        answer = headwise.compare_table(from_, base, metric=metric, out=out)
        return show_or_json(answer, as_json, answer_tables)
    variants = [shape for text in arms or [] for shape in text.split()]
    settings: dict[str, Any] = {"command": command, "metric_json": metric_json, "metric": metric, "hold": hold}
    settings |= {"vary": listed(vary), "family": family, "budget": budget, "steps": steps, "seeds": seeds}
    settings |= {"learning_rates": lr, "batch_size": batch_size, "workers": workers, "ray": ray}
    settings |= {"device": device, "precision": precision, "store": store}
    if dry_run:
        planned = headwise.plan_comparison(task, base, variants, **settings)
        return show_or_json(planned, as_json, plan_lines)
    settings |= {"watching": watched, "on_plan": lambda plan: typer.echo("\n".join(plan_lines(plan)), err=True)}
    answer = headwise.compare(task, base, variants, out=out, **settings)
    show_or_json(answer, as_json, answer_tables)
    if answer.summary and answer.summary.failed:
        failed = f"{answer.summary.failed} runs failed; headwise runs --status failed lists them"
        typer.echo(f"headwise: {failed}", err=True)
        raise typer.Exit(1)


def suggest(
    base: Annotated[str, typer.Option(help="Shape you start from, or a known model.", show_default=False)],
    goal: Annotated[str, typer.Option(help="What to improve: quality, speed or memory.")] = "quality",
    context: Annotated[int, typer.Option(help="Tokens per sequence.", show_default="the model's, else 1024")] = 0,
    from_: ResultsFolder = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Suggest shapes to try, without training: exact costs, and what the ledger says."""
    import headwise
    from headwise.report.suggest import suggestion_lines

    suggestions = headwise.suggest(base, goal, context=context, store=store, results=from_)
    show_or_json(suggestions, as_json, lambda shown: suggestion_lines(shown.document))
