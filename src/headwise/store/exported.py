"""Runs in files for others: lines of JSON (.jsonl.xz) and Parquet hold everything, CSV is a table of them."""

import csv
import json
import lzma
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headwise.extras import extra
from headwise.store.records import LATER, Record, StoreError, blank, flat

LINES, PARQUET, CSV = ".jsonl.xz", ".parquet", ".csv"
ASK = "its name must end with .jsonl.xz, .parquet or .csv"


def exported_in(folder: Path) -> list[Path]:
    """Files of runs in a folder, in the order of their names."""
    return sorted(file for file in folder.glob("*") if file.name.endswith((LINES, PARQUET)))


def write_file(path: Path, whole: Iterable[Record], select: Callable[[], list[Record]]) -> Path:
    """`whole` records are written to .jsonl.xz or .parquet, what `select` gives as a table to .csv."""
    if not path.name.endswith((LINES, PARQUET, CSV)):
        raise StoreError(f"cannot export to {path}: {ASK}")
    partial = path.with_name(f".{path.name}.partial")  # so that the name only ever stands for a whole file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write = _write_lines if path.name.endswith(LINES) else _write_parquet
        _write_csv(partial, select()) if path.suffix == CSV else write(partial, whole)
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error}") from None
    return path


def table_rows(records: list[Record]) -> tuple[list[str], list[Record]]:
    """Names of columns and rows of the data frame; an empty store has columns too."""
    rows = [flat(record) for record in records or [blank()]]
    return list(dict.fromkeys(name for row in rows for name in row)), rows[: len(records)]


def _write_csv(path: Path, records: list[Record]) -> None:
    names, rows = table_rows(records)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(names)
        table.writerows([_csv_cell(row.get(name)) for name in names] for row in rows)


def _csv_cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _write_lines(path: Path, records: Iterable[Record]) -> None:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record, allow_nan=False) + "\n" for record in records)


def read_lines(path: Path) -> list[Record]:
    """The records of an exported file; columns that it is too old for get what they stand for."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            records = [LATER | json.loads(line) for line in file]
    except (OSError, lzma.LZMAError, EOFError, ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"cannot read {path}: {error}") from None
    wanted = {name: type(value) for name, value in blank().items()}
    if any({name: type(value) for name, value in record.items()} != wanted for record in records):
        raise StoreError(_other_columns(path))
    return records


def _other_columns(path: Path) -> str:
    return f"{path} does not have the columns that this version of headwise exports"


def _write_parquet(path: Path, records: Iterable[Record]) -> None:
    with extra("frames", "Parquet files"):
        import polars as pl

    try:
        pl.DataFrame(list(records), pl.DataFrame([blank()]).schema).write_parquet(path)
    except pl.exceptions.PolarsError as error:
        raise OSError(error) from None


def read_parquet(path: Path) -> list[Record]:
    """The same of a Parquet file."""
    with extra("frames", "Parquet files"):
        import polars as pl

    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise StoreError(f"cannot read {path}: {error}") from None
    wanted = pl.DataFrame([blank()]).schema
    later = {name: value for name, value in LATER.items() if name not in frame.columns}
    frame = frame.with_columns(pl.lit(value, wanted[name]).alias(name) for name, value in later.items())
    if dict(frame.schema) != dict(wanted):
        raise StoreError(_other_columns(path))
    return frame.to_dicts()
