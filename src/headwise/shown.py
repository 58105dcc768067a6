"""What a public call gives back: a table, JSON, and HTML in a notebook, in one way for all of them."""

import json
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from headwise.extras import extra

if TYPE_CHECKING:
    import polars

MOST_SHOWN = 100  # rows of a table in a notebook


class Shown(ABC):
    """A result that people look at. Subclasses say what it is as plain data; `records` are the rows of its table."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any] | list[Any]:
        """The whole result as plain data: what `--json` prints."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """One dictionary per row of the table."""

    @property
    def headline(self) -> str:
        """One sentence above the table; empty for none."""
        return ""

    @property
    def table(self) -> "polars.DataFrame":
        """A polars frame, one row per record; what is not a number or a text is written out.

        It needs the extra `headwise[frames]`; `records` are the same rows without it.
        """
        with extra("frames", "frames (.table; .records() has the same rows)"):
            import polars

        rows = [{name: _cell(value) for name, value in record.items()} for record in self.records()]
        return polars.DataFrame(rows, infer_schema_length=None, strict=False)

    def to_json(self, indent: int | None = 2) -> str:
        """JSON has no infinities and no NaN, so they become null."""
        return json.dumps(finite(self.as_dict()), indent=indent, allow_nan=False)

    def _repr_html_(self) -> str:
        from html import escape

        rows = self.records()
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines = [[_written(row.get(name)) for name in names] for row in rows[:MOST_SHOWN]]
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
        above = f"<p>{escape(self.headline)}</p>" if self.headline else ""
        more = f"<p>{len(rows) - MOST_SHOWN:,} more rows</p>" if len(rows) > MOST_SHOWN else ""
        return f"{above}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _written(value: Any) -> str:
    """A value of a table in a page."""
    told = _cell(value)
    if told is None:
        return ""
    return (
        f"{told:,}"
        if isinstance(told, int) and abs(told) >= 10_000
        else f"{told:.4g}"
        if isinstance(told, float)
        else str(told)
    )


def _cell(value: Any) -> Any:
    """A value of a table: lists, and sizes that differ from layer to layer, as text."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else value


def finite(value: Any) -> Any:
    """The same data with None in place of every number that JSON cannot say."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
