"""Tasks for a terminal of 80 columns: the list, one task with its options, and how a training ended."""

import shlex
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headwise.sweep.single import Trained


def tasks_table(tasks: list[dict[str, Any]]) -> list[RenderableType]:
    table = _table()
    for task in tasks:
        table.add_row(f"[bold]{escape(task['name'])}[/bold]", escape(task["summary"]))
        error = task["trivial_error"]
        facts = f"error of a constant predictor {error:.3f}" if error is not None else escape(task["needs"])
        facts += f", usual shape {task['usual_shape']}"
        table.add_row("", f"[dim]{facts}[/dim]")
    return [table, "", "One of them: headwise tasks NAME   Train on it: headwise train --task NAME"]


def task_card(task: dict[str, Any]) -> list[RenderableType]:
    table = _table()
    for option in task["options"]:
        table.add_row(f"  {option['option']}", escape(f"{option['value']!r}"), escape(option["about"] or ""))
    samples = [f"{count:,} for {stream}" for stream, count in task["samples"].items() if count is not None]
    lines: list[RenderableType] = [f"[bold]{escape(task['name'])}[/bold]: {escape(task['summary'])}", table]
    lines.append(f"{task['tokens']} tokens per sample; {', '.join(samples) or 'drawn without end'}")
    floor = f", least possible {task['floor']:.4g}" if task["floor"] is not None else ""
    lines.append(f"error of a constant predictor (no-skill baseline) {task['trivial_error']:.4f}{floor}")
    lines += [escape(f"  {name}: error {error:.4f}") for name, error in task.get("baselines", {}).items()]
    command = f"headwise train --task {shlex.quote(task['task'])} --shape {task['usual_shape']}"
    return [*lines, "Train on it:", Text(command, no_wrap=True)]


def trained_lines(trained: Trained) -> list[RenderableType]:
    table = _table()
    for name, value in trained.metrics.items():
        table.add_row(escape(f"  {name}"), f"{value:.4f}")
    message = trained.result.message
    about = [f"model: {escape(trained.model)}", f"recipe: {escape(trained.recipe)}"]
    return [f"[bold]{escape(trained.headline)}[/bold]", table, *about, *([escape(message)] if message else [])]


def _table() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    return table
