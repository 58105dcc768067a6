"""A run and its result as one flat record of numbers, text and JSON: what the store writes, exports and reads back."""

import json
import math
import re
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import PurePath
from typing import Any, get_args

from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.training.run import NUMERICS, Run, RunResult, Status

CurvePoint = tuple[int, str, float]
Pair = tuple[Run, RunResult]
Record = dict[str, Any]  # one row of `runs`; where it is whole, also its "curve" and "probes", as JSON

FINISHED = ("done", "diverged")  # what needs no further run
HERE = "here"  # the provenance of what was not merged from another file
POINTS = {"curves": "curve", "probes": "probes"}  # tables, and their fields of a result
KEY = re.compile("[0-9a-f]{16}")
FIELDS = tuple(field.name for field in fields(RunResult))
LATER = {"latency": 0.0, "numerics": 2, "registration": ""}  # columns that older files lack
RUN_COLUMNS = (*(name for name in FIELDS if name not in POINTS.values()), "spec", "created", "provenance", "numerics")


class StoreError(SpecError):
    """One sentence: what cannot be stored or read, and why."""


def to_record(run: Run, result: RunResult, provenance: str) -> Record:
    try:
        spec = json.dumps(run.model_dump(), allow_nan=False)
        survives = Run(**json.loads(spec)).key == run.key
    except ValueError:
        survives = False
    if not survives:
        raise StoreError(f"run {run.key} cannot be stored: its spec is not plain data, so it could not be run again")
    return result.as_dict() | {
        "message": result.message.encode("utf-8", "backslashreplace").decode(),  # a traceback may quote any bytes
        "spec": spec,
        "metrics": json.dumps({name: _to_json(value) for name, value in result.metrics.items()}),
        "environment": json.dumps(result.environment),
        "flops": str(result.flops),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "provenance": provenance,
        "numerics": NUMERICS,
        **{field: points_to_json(getattr(result, field)) for field in POINTS.values()},
    }


def blank() -> Record:
    """What a record looks like, for names and types of columns."""
    run = Run(task={"name": ""}, shape="w1-h1", steps=1)
    return to_record(run, RunResult(run.key, "failed"), HERE)


@lru_cache(maxsize=16384)
def _run(spec: str) -> Run:
    """Read once: a ledger asks every study for every run, and to check a spec takes longer than to read it."""
    return Run(**json.loads(spec))


def from_record(record: Record) -> Pair:
    """The run and its result. The stored key stays the key, also where this version would give the spec another."""
    try:
        if record["key"] is None:
            raise ValueError("it has no key")
        if record["status"] not in get_args(Status):
            raise ValueError(f"its status is {record['status']!r}")
        values = {name: record.get(name, "[]") for name in FIELDS}
        values |= {"environment": json.loads(record["environment"]), "flops": int(record["flops"])}
        float(values["flops"])  # which a table shows, and larger numbers are no floats
        values["metrics"] = {name: float(value) for name, value in json.loads(record["metrics"]).items()}
        for field in POINTS.values():
            values[field] = [(int(step), str(name), float(value)) for step, name, value in json.loads(values[field])]
        return _run(record["spec"]), RunResult(**values)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise StoreError(
            f"run {record['key']} cannot be read by this version of headwise: {error}; "
            "headwise runs remove --unreadable takes such rows out of a store"
        ) from None


def check_key(record: Record, file: str) -> RunResult:
    """A record's result; its key is trusted only where it cannot be computed: in rows of other numerics."""
    key = record["key"]
    if not isinstance(key, str) or not KEY.fullmatch(key):
        raise StoreError(f"nothing was merged: {file} holds a run whose key is {key!r}, and not 16 hexadecimal digits")
    run, result = from_record(record)
    if record["numerics"] == NUMERICS and run.key != key:
        raise StoreError(
            f"nothing was merged: {file} holds a run under the key {key}, but by its spec it is run {run.key}"
        )
    return result


def for_others(record: Record) -> Record:
    """As it is exported: data that its hash identifies is named, and where it lay on this machine is left out."""
    spec = json.loads(record["spec"])
    for task in (spec["task"], spec.get("begin", {}).get("run", {}).get("task", {})):
        place = PurePath(task.get("source") or "")
        if task.get("content") and place.is_absolute():
            task["source"] = place.name
    return record | {"spec": json.dumps(spec, allow_nan=False)}


def flat(record: Record) -> Record:
    """A row of the data frame."""
    spec = json.loads(record["spec"])
    row = {"key": record["key"], "status": record["status"], "task": spec["task"].pop("name"), "shape": spec["shape"]}
    row |= _sizes(spec["shape"]) | {"steps": spec["steps"], "seed": spec["seed"]}
    row |= {"learning_rate": spec["recipe"].pop("learning_rate")}
    row |= {"steps_done": record["steps"], "flops": float(record["flops"])}
    row |= {name: record[name] for name in RUN_COLUMNS if name not in (*row, "spec", "metrics", "environment")}
    for part in ("task", "options", "recipe", "execution"):
        for name, value in spec[part].items():
            row[f"{part}.{name}"] = json.dumps(value) if isinstance(value, list | dict) else value
    metrics = json.loads(record["metrics"]).items()
    return row | {f"metric.{name}" if name in row else name: float(value) for name, value in metrics}


@lru_cache(maxsize=10_000)
def _sizes(shape: str) -> dict[str, int | str]:
    """Every field of a shape; where layers differ, as it may be written in a shape."""
    sizes = ModelShape.parse(shape).model_dump()
    return {name: size if isinstance(size, int) else ",".join(map(str, size)) for name, size in sizes.items()}


def _to_json(value: float) -> float | str:
    """JSON has neither NaN nor infinity: they become text, which float() reads back."""
    return float(value) if math.isfinite(value) else str(float(value))


def points_to_json(points: list[CurvePoint]) -> str:
    return json.dumps([(int(step), str(name), _to_json(value)) for step, name, value in points])


def fate_of(existing: list[Record], record: Record) -> str:
    """What merging does with a record: added, known, replaced or conflict."""
    if not existing:
        return "added"
    if record["status"] not in FINISHED or existing[0]["status"] not in FINISHED:
        return "replaced" if record["status"] in FINISHED else "known"
    ours, theirs = ((one["status"], json.loads(one["metrics"])) for one in (existing[0], record))
    return "known" if ours == theirs else "conflict"


def listed(keys: list[str], most: int = 10) -> str:
    return ", ".join(keys[:most]) + (f" and {len(keys) - most} more" if len(keys) > most else "")
