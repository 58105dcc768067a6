"""What the store holds, for a terminal of 80 columns: a table of runs, and a card that tells all about one.

show(*runs_lines(headwise.runs(limit=40)))
show(*run_card(headwise.find_run("82cd05")))
"""

import json
import shlex
from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headwise.report.tables import WIDTH, _table, short
from headwise.store.listing import RunList, StoredRun
from headwise.store.records import CurvePoint
from headwise.training.run import Run, RunResult

LONGEST_OUTCOME = 14
BARS = "▁▂▃▄▅▆▇█"
SPARK = 40  # characters of a curve
STYLES = {"done": "", "diverged": "yellow", "failed": "red"}


def runs_lines(listed: RunList) -> list[RenderableType]:
    """The table, and how many runs it leaves out."""
    table = runs_table(listed, listed.key_digits)
    if len(listed) == listed.total:
        return [table]
    return [f"{listed.headline}; --limit {listed.total}, --status, --task or --json for others", table]


def runs_table(stored: Iterable[StoredRun], digits: int) -> RenderableType:
    """One line per run, keys cut to so many digits; the metric is the first that a task reports."""
    ended = [(one.run, one.result) for one in stored]
    if not ended:
        return Text("No runs yet.")
    shared = {next(iter(result.metrics)) for _, result in ended if result.metrics}
    heading = shared.pop() if len(shared) == 1 else "metric"
    table = _table("<key", "<status", "<task", "<shape", "steps", "seed", "<")
    for run, result in ended:
        cells = [run.task["name"], run.shape, f"{run.steps:,}", str(run.seed), _outcome(result, heading)]
        table.add_row(result.key[:digits], result.status, *map(_text, cells), style=STYLES[result.status])
    *others, last = table.columns
    last.header, last.max_width, last.overflow = _text(heading), LONGEST_OUTCOME, "ellipsis"
    for column in (*others, last):
        column.no_wrap = column.header != "shape"  # what is too long for 80 columns folds there
    return table


def run_card(stored: StoredRun) -> list[RenderableType]:
    """Everything about one run, and the command that runs it again."""
    run, result = stored.run, stored.result
    parts: list[RenderableType] = [_text(f"run {result.key}  {result.status}  {run.task['name']}  {run.shape}")]
    if result.message:
        parts += [_text(result.message)]
    for title, rows in (
        ("metrics", {name: f"{value:.6g}" for name, value in result.metrics.items()}),
        ("curves", _sparks(result.curve)),
        ("spec", _spec_rows(run)),
        ("cost", _cost_rows(result)),
        ("environment", result.environment),
    ):
        if rows:
            parts += ["", _two_columns(title, rows)]
    if run.key != result.key:
        parts += ["", f"This version of headwise gives the same spec another key, {run.key}: its numbers may differ."]
    return [*parts, "", "To run it again:", Text(_folded(run))]


def rerun_command(run: Run) -> str:
    """A line for the shell that trains the same run."""
    return f"headwise train {shlex.quote(json.dumps(_short_spec(run)))}"


def _short_spec(run: Run) -> dict[str, object]:
    """Only what is not the default: the same run, so the same key."""
    return run.model_dump(mode="json", exclude_defaults=True)


def _folded(run: Run) -> str:
    """The command over several lines, still one command: JSON and the shell's quotes both allow a new line."""
    command, *pieces = f"headwise train {shlex.quote(json.dumps(_short_spec(run), indent=0))}".split("\n")
    lines = [command]
    for piece in pieces:
        joined = f"{lines[-1]} {piece}"
        lines = [*lines[:-1], joined] if len(joined) <= WIDTH else [*lines, piece]
    return "\n".join(lines)


def _text(text: str) -> Text:
    """As it is, but for what a terminal would obey: runs may come from other people's files."""
    return Text("".join(sign if sign.isprintable() or sign == "\n" else "\ufffd" for sign in text))


def _outcome(result: RunResult, heading: str) -> str:
    """The main metric, named where the column is not, or why there is none."""
    if not result.metrics:
        return next(reversed(result.message.splitlines()), "")
    name, value = next(iter(result.metrics.items()))
    return f"{value:.4g}" if name == heading else f"{name} {value:.4g}"


def _two_columns(title: str, rows: dict[str, str]) -> Table:
    table = _table(f"<{title}", "<")
    for name, value in rows.items():
        table.add_row(_text(f"  {name}"), _text(value))
    return table


def _spec_rows(run: Run) -> dict[str, str]:
    """One line per field; nested ones by what they contain."""
    rows = {}
    for name, value in run.model_dump(mode="json").items():
        parts = (
            [f"{part} {_plain(inner)}" for part, inner in value.items()] if isinstance(value, dict) else [_plain(value)]
        )
        rows[name] = ", ".join(parts)
    return rows


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cost_rows(result: RunResult) -> dict[str, str]:
    rows = {"steps": f"{result.steps:,}", "seconds": f"{result.seconds:.1f}", "parameters": f"{result.parameters:,}"}
    rows |= {"tokens": f"{result.tokens:,}", "training": short(result.flops, "FLOP")}
    rows |= {"peak memory": short(result.peak_bytes, "B"), "kernel": result.kernel, "weights": result.weights}
    return {name: text for name, text in rows.items() if text}


def _sparks(curve: Sequence[CurvePoint]) -> dict[str, str]:
    """Each curve as a row of bars, with its first and last value."""
    values: dict[str, list[float]] = {}
    for _, name, value in curve:
        values.setdefault(name, []).append(value)
    return {name: f"{spark(points)}  {points[0]:.4g} → {points[-1]:.4g}" for name, points in values.items()}


def spark(values: Sequence[float]) -> str:
    """Bars between the least and the greatest value; × where a value is not a finite number."""
    shown = [values[i * len(values) // SPARK] for i in range(SPARK)] if len(values) > SPARK else values
    finite = [value for value in shown if abs(value) < float("inf")]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] if abs(value) < float("inf") else "×" for value in shown)
