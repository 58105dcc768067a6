"""Tasks for a terminal of 80 columns: the list, one task with its options, and how a training ended."""

from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from headwise.training.run import Run, RunResult


def tasks_table(tasks: list[dict[str, Any]]) -> list[RenderableType]:
    table = _table()
    for task in tasks:
        table.add_row(f"[bold]{task['name']}[/bold]", escape(task["summary"]))
        table.add_row("", f"[dim]trivial error {task['trivial_error']:.3f}, usual shape {task['usual_shape']}[/dim]")
    return [table, "", "One of them: headwise tasks NAME   Train on it: headwise train --task NAME"]


def task_card(task: dict[str, Any]) -> list[RenderableType]:
    table = _table()
    for option in task["options"]:
        table.add_row(f"  {option['option']}", f"{option['value']!r}", escape(option["about"] or ""))
    samples = [f"{count:,} for {stream}" for stream, count in task["samples"].items() if count is not None]
    lines: list[RenderableType] = [f"[bold]{task['name']}[/bold]: {escape(task['summary'])}", table]
    lines.append(f"{task['tokens']} tokens a sample; {', '.join(samples) or 'drawn without end'}")
    floor = f", least possible {task['floor']:.4g}" if task["floor"] is not None else ""
    lines.append(f"trivial error {task['trivial_error']:.4f}{floor}")
    lines += [f"  {name}: error {error:.4f}" for name, error in task.get("baselines", {}).items()]
    lines.append(f"Train on it: headwise train --task {task['name']} --shape {task['usual_shape']}")
    return lines


def result_lines(run: Run, result: RunResult) -> list[RenderableType]:
    told = f"{run.shape} on {escape(run.task['name'])}: {result.status} after {result.steps:,} steps"
    heading = f"[bold]{told}, {result.seconds:.0f} s[/bold] (run {run.key})"
    table = _table()
    for name, value in result.metrics.items():
        table.add_row(f"  {name}", f"{value:.4f}")
    return [heading, table, *([escape(result.message)] if result.message else [])]


def _table() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    return table
