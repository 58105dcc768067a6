"""What the papers published, as tables: README.md says where each was read off."""

import csv
from importlib.resources import files


def published_rows(name: str) -> list[dict[str, str]]:
    """A published table, row by row."""
    text = files(__name__).joinpath(f"{name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def published_values(name: str) -> list[dict[str, float]]:
    """A published figure's points: a table of numbers alone."""
    return [{column: float(value) for column, value in row.items()} for row in published_rows(name)]
