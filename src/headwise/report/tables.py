"""Tables for a terminal of 80 columns."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.cost import KnownModels
from headwise.gpu.kernels import LARGEST, kernel_fit
from headwise.search import EqualShapes

if TYPE_CHECKING:
    from headwise.measure.step_time import EqualTimes
    from headwise.studies._demo import Demo

WIDTH = 80  # columns of a terminal
SLOW = "†"
_SI = ("", "k", "M", "G", "T", "P", "E", "Z")  # FLOPs and bytes
_COUNT = ("", "k", "M", "B", "T", "Q")  # parameters


def show(*parts: RenderableType) -> None:
    """Print to standard output; text that may not be broken, such as a command to copy, stays one line."""
    console = Console(highlight=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


def short(number: float, unit: str = "", prefixes: tuple[str, ...] = _SI) -> str:
    """Three significant digits with a prefix: 1234567 bytes are '1.23 MB'."""
    power = 0
    while abs(number) >= 999.5 and power < len(prefixes) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {prefixes[power]}{unit}".rstrip()


def parameters_heading(rows: Iterable[Mapping[str, Any]]) -> str:
    """Of a column of `parameters_cell`; a bare shape has nothing but a body."""
    whole = any(row.get("parameters") != row.get("parameters_body") for row in rows)
    return "parameters\n(body)" if whole else "parameters\nof the body"


def parameters_cell(row: Mapping[str, Any]) -> str:
    """All of a model's parameters, its body's in brackets: '1.31 B (1.08 B)'; one number for a bare shape."""
    total, body = row.get("parameters"), row.get("parameters_body")
    if total is None:
        return "–"
    inside = f" ({short(body, prefixes=_COUNT)})" if body not in (None, total) else ""
    return short(total, prefixes=_COUNT) + inside


def percent(part: float) -> str:
    return f"{part:+.2%}" if abs(part) >= 0.00005 else "0%"


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        left = column.startswith("<")
        table.add_column(column.removeprefix("<"), justify="left" if left else "right", overflow="fold")
    return table


def published_errors(rows: list[dict[str, float]]) -> Table:
    """Measured errors beside published ones."""
    table = _table("depth", "multiplier", "rank", "error", "range", "published", "ratio", title="Against the figure")
    for row in rows:
        sizes = (f"{row[name]:g}" for name in ("depth", "multiplier", "rank"))
        spread = f"{row['least']:.4g}–{row['most']:.4g}"
        table.add_row(*sizes, f"{row['error']:.4g}", spread, f"{row['published']:.4g}", f"{row['ratio']:.3g}")
    return table


def shapes_table(rows: EqualShapes, limit: int) -> list[RenderableType]:
    """Shapes of equal cost, the base marked. Beside the shape, only what varies and still fits."""
    shown = rows[:limit]
    columns = {"heads": "heads", "qk": "qk_rank", "v": "v_rank", "kv": "kv_heads"}
    if max(len(str(row.shape)) for row in shown) > 32:
        columns = {"heads": "heads", "qk": "qk_rank"}
    costs = [row.as_dict() for row in shown]
    table = _table("<shape", *columns, parameters_heading(costs), "difference")
    table.columns[0].no_wrap = True
    for row, cost in zip(shown, costs, strict=True):
        slow = kernel_fit(row.shape)["head_dim"] > LARGEST
        cells = [str(row.shape), *(str(getattr(row.shape, name)) for name in columns.values())]
        cells[2] += SLOW if slow else ""
        style = "bold" if cells[0] == rows.base else ""
        table.add_row(*cells, parameters_cell(cost), percent(row.difference), style=style)
    more = [f"… and {len(rows) - limit} more: --limit {len(rows)} or --json"] if len(rows) > limit else []
    slow = any(kernel_fit(row.shape)["head_dim"] > LARGEST for row in shown)
    marked = (
        [f"[dim]{SLOW} beyond the flash kernels of NVIDIA's GPUs (heads of at most {LARGEST})[/dim]"] if slow else []
    )
    return [rows.headline, table, *more, *marked]


def times_table(times: "EqualTimes") -> list[RenderableType]:
    """Shapes with the time of a training step here, and how many steps fit the base's time."""
    table = _table("<shape", "heads", "qk", parameters_heading(times.rows), "difference", "step time", "steps")
    table.columns[0].no_wrap = True
    for row in times.rows:
        cells = [row["shape"], str(row["heads"]), str(row["qk_rank"]), parameters_cell(row)]
        cells += [percent(row["difference"]), f"{row['time']:.2f} ×", f"{row['steps']:.2f} ×"]
        table.add_row(*cells, style="bold" if row["shape"] == times.base else "")
    return [times.headline, table, "steps: what fits the time of one step of the base"]


def known_table(models: KnownModels) -> RenderableType:
    """Every known model."""
    table = _table("<name", "<shape", "<family", "parameters")
    for row in models.rows:
        table.add_row(row["name"], row["shape"], row["family"], f"{row['parameters']:,}")
    return table


def demo_lines(demo: "Demo") -> list[RenderableType]:
    """The demo's shapes, with a bar for each error, and what they say."""
    table = _table("heads", "rank", "parameters", "error", "range of seeds", "no skill", "<")
    for row in demo.rows:
        bar = "█" * max(1, round(20 * min(1, row["error"] / demo.trivial_error)))
        seeds = f"{row['low']:.3f}–{row['high']:.3f}"
        cells = [f"{row['parameters']:,}", f"{row['error']:.3f}", seeds, f"{demo.trivial_error:.3f}", bar]
        table.add_row(str(row["heads"]), str(row["qk_rank"]), *cells)
    beside = f"Chart: {demo.chart_files[0]}, and .svg, .pdf, .html beside it. " if demo.chart_files else ""
    return ["", table, "", demo.verdict, f"{beside}Next: headwise explore gpt2"]


def doctor_tables(examination: dict[str, Any]) -> list[RenderableType]:
    """What `headwise doctor` prints."""
    precisions = _table("<precision", "<safe", "<")
    for row in examination["precisions"]:
        precisions.add_row(row["name"], "yes" if row["safe"] else "NO", row["why"])
    kernels = _table("<shape", "<kernel", "<why")
    for row in examination["kernels"]:
        kernels.add_row(row["shape"], row["kernel"], row["why"])
    heading = f"Python {examination['python']}, torch {examination['torch']}, {examination['threads']} threads"
    training = f"kernels for training on the processor: {examination['training']}"
    return [heading, *examination["devices"], "", precisions, "", kernels, "", training]
