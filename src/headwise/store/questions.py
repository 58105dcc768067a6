"""Questions to the store in SQL: which rows are wanted, by their status and by fields of their spec."""

import json
from collections.abc import Iterable, Mapping

from headwise.store.records import CurvePoint

Asked = Mapping[str, Iterable[str | int]]  # fields of a spec, as in "task.name", and the values that they may have
ANY_OF = "(SELECT value FROM json_each(?))"  # values that are given as a JSON array: SQL has no lists
POINT = "step, name, ifnull(value, 'nan')"
LAST_SIGN = "\U0010ffff"  # no text that begins the same comes after it


def to_point(step: int, name: str, value: float | str) -> CurvePoint:
    """What `POINT` selects, as a result holds it."""
    return step, name, float(value)


def condition_on(status: str | None, task: str | None, asked: Asked | None = None) -> tuple[str, list[str]]:
    """A condition on rows of `runs`, and the values of its question marks."""
    fields = {**({"task.name": [task]} if task else {}), **(asked or {})}
    terms = [f"json_extract(spec, '$.{name}') IN {ANY_OF}" for name in fields]
    terms += ["status = ?"] if status else []
    values = [json.dumps([*some]) for some in fields.values()]
    return " AND ".join(terms) or "1", values + ([status] if status else [])
