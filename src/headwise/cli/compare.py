"""The commands about choosing a shape: compare on a task or in one's own trainer, or ask the ledger."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.recipe import with_recipe
from headwise.cli.terminal import (
    AsJson,
    DeviceOption,
    PrecisionOption,
    RayAddress,
    ShippedResults,
    StorePath,
    TrackOption,
    WorkersOption,
    chart_folder,
    listed,
    show_or_json,
    watched,
)


def add_to(app: typer.Typer) -> None:
    """Hang these commands on the main one."""
    app.command(epilog="Example: headwise compare w64-h4-L2 --task text:my.txt --budget 25m")(with_recipe(compare))
    app.command(epilog="Example: headwise suggest nanochat-d20 --goal memory --context 32k")(suggest)


def compare(
    shapes: Annotated[
        list[str] | None,
        typer.Argument(help="The shape to beat, then variants.", show_default="the task's usual one, equal costs"),
    ] = None,
    task: Annotated[
        str, typer.Option(help="Task to train on, such as text:my.txt; headwise tasks lists them.", show_default="none")
    ] = "",
    base: Annotated[str, typer.Option(help="The same as the first SHAPE.", show_default="none")] = "",
    arms: Annotated[
        list[str] | None,
        typer.Option(help="The same as a further SHAPE; repeat for more.", show_default="none"),
    ] = None,
    hold: Annotated[
        str, typer.Option(help="Cost equal in all variants: params (of the body), flops, kv (KV cache) or time.")
    ] = "params",
    vary: Annotated[
        str,
        typer.Option(
            help="What variants may change, separated by commas: heads, qk_rank, v_rank, kv_heads, kv_latent, "
            "q_latent, rope_rank, depth, mlp."
        ),
    ] = "heads",
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
        str,
        typer.Option(
            help="Name of the metric in --metric-json, or its column in --from.",
            show_default="metric; the only one that can be meant",
        ),
    ] = "",
    higher_is_better: Annotated[
        bool | None,
        typer.Option(
            "--higher-is-better/--lower-is-better",
            help="Which way --metric is better.",
            show_default="known by its name (accuracy, BLEU, loss), else lower",
        ),
    ] = None,
    parallel: Annotated[int, typer.Option(help="Commands at once.", show_default="one per device, else 1")] = 0,
    devices: Annotated[
        str, typer.Option(help="CUDA_VISIBLE_DEVICES for commands at once, as in 0,1,2,3.", show_default="none")
    ] = "",
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Compare finished runs: a CSV, TSV, JSON lines or Parquet file, a line per run."),
    ] = None,
    arm_columns: Annotated[
        str,
        typer.Option(
            help="Columns of --from that name a variant, as in heads,kv_heads.",
            show_default="arm, variant, shape, model or name",
        ),
    ] = "",
    workers: WorkersOption = 0,
    ray: RayAddress = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    store: StorePath = None,
    track: TrackOption = "",
    out: Annotated[Path, typer.Option(help="Folder for the chart.")] = Path("headwise-compare"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost, and stop.")] = False,
    as_json: AsJson = False,
    *,
    recipe: dict[str, Any],
) -> None:
    """Find the best shape for a task within a time budget: tuned, with paired seeds."""
    import headwise
    from headwise.report.compare import answer_tables, plan_lines
    from headwise.spec import SpecError

    if sum(map(bool, (task, command, from_))) != 1:
        raise SpecError("give one of --task (to train here), --command (your own trainer) and --from (finished runs)")
    base, *given = [*([base] if base else []), *(shapes or [])] or [""]
    if from_:
        about: dict[str, Any] = {"arm_columns": listed(arm_columns), "higher_is_better": higher_is_better}
        answer = headwise.compare_table(from_, base, metric=metric, out=chart_folder(out), **about)
        return show_or_json(answer, as_json, answer_tables)
    variants = [shape for text in [*given, *(arms or [])] for shape in text.split()]
    settings: dict[str, Any] = {"command": command, "metric_json": metric_json, "metric": metric, "hold": hold}
    settings |= {"vary": listed(vary), "budget": budget, "steps": steps, "seeds": seeds}
    settings |= {"learning_rates": lr, "batch_size": batch_size, "workers": workers, "ray": ray}
    settings |= {"higher_is_better": higher_is_better, "device": device, "precision": precision, "store": store}
    settings |= {"parallel": parallel, "devices": devices, "watching": watched, **recipe}
    if dry_run:
        planned = headwise.plan_comparison(task, base, variants, **settings)
        return show_or_json(planned, as_json, plan_lines)
    settings |= {"on_plan": lambda plan: typer.echo("\n".join(plan_lines(plan)), err=True)}
    settings |= {"track": track}
    answer = headwise.compare(task, base, variants, out=chart_folder(out), **settings)
    show_or_json(answer, as_json, answer_tables)
    if answer.summary and answer.summary.failed:
        failed = f"{answer.summary.failed} runs failed; headwise runs --status failed lists them"
        typer.echo(f"headwise: {failed}", err=True)
        raise typer.Exit(1)


def suggest(
    shapes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Your model: a shape, a known model, a config.json or its folder; several become columns.",
            metavar="SHAPE",
            show_default=False,
        ),
    ] = None,
    goal: Annotated[str, typer.Option(help="What to improve: memory, speed or quality.")] = "quality",
    context: Annotated[
        str, typer.Option(help="Tokens per sequence: 2048, 32k.", show_default="the model's, else 1024")
    ] = "0",
    batch: Annotated[str, typer.Option(help="Sequences decoded at once.")] = "1",
    dtype: Annotated[str, typer.Option(help="Number format of weights and KV cache: bf16, fp8, fp32.")] = "bf16",
    task: Annotated[str, typer.Option(help="What the model is for: text, lookup or vision.")] = "text",
    base: Annotated[str, typer.Option(help="The same as SHAPE.", show_default=False)] = "",
    from_: ShippedResults = None,
    store: StorePath = None,
    as_json: AsJson = False,
) -> None:
    """Suggest what to change, without training: exact costs, published evidence, our claims."""
    import headwise
    from headwise.report.suggest import suggestion_lines, suggestions_table
    from headwise.spec import SpecError, read_count

    models = [*(shapes or ()), *([base] if base else ())]
    if not models:
        raise SpecError("give a shape, a known model or a config.json, as in 'headwise suggest gpt2 --goal memory'")
    settings: dict[str, Any] = {
        "context": read_count(context, "context"),
        "batch": read_count(batch, "batch"),
        "dtype": dtype,
    }
    settings |= {"task": task, "store": store, "results": from_}
    if len(models) > 1:
        return show_or_json(headwise.suggest_each(models, goal, **settings), as_json, suggestions_table)
    show_or_json(headwise.suggest(models[0], goal, **settings), as_json, lambda it: suggestion_lines(it.document))
