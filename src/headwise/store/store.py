"""Results in one SQLite file. Plain data goes in, a data frame comes out, and a crash loses nothing that was stored.

    with Store(path) as store:
        store.add(run, result)      # one transaction; False where the run was finished already
        store.finished(keys)        # what a sweep need not do again
        store.get("3fa9")           # (run, result), by the key or by its first digits
        store.frame()               # polars, one row per run
        store.merge(["other.db", "exported/"])

Only driver processes write; workers hand their `RunResult` back to them. Two drivers on one file wait for each other's
transactions, and share runs by `leases`. A run that is done or diverged is finished, and a finished row never changes;
a failed one gives way to a later result.
Everything is stored as numbers, text and JSON: reading a file that others made runs no code of theirs. No torch here.
"""

import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headwise.extras import extra
from headwise.spec import check_file
from headwise.store.exported import LINES, PARQUET, exported_in, read_lines, read_parquet, table_rows, write_file
from headwise.store.network import on_network
from headwise.store.questions import ANY_OF, LAST_SIGN, POINT, Asked, condition_on, to_point
from headwise.store.records import (
    FINISHED,
    HERE,
    POINTS,
    RUN_COLUMNS,
    CurvePoint,
    Pair,
    Record,
    StoreError,
    blank,
    check_key,
    fate_of,
    for_others,
    from_record,
    listed,
    points_to_json,
    to_record,
)
from headwise.training.run import Run, RunResult

if TYPE_CHECKING:
    import polars

Where = Callable[[Run, RunResult], bool]

PATIENCE = 60.0  # seconds to wait for another driver's transaction
CHECKED_AT_ONCE = 64 * 2**20  # bytes; a larger file is read through before the first write, not for every question
APPLICATION = 0x68656164  # "head": tells a store from the databases of other programs

# What takes a file from each version to the next; a new file starts empty and takes them all. Never edit one that was
# released: append. `flops` is text because large runs exceed 64 bits; a value that is NULL was not a number.
MIGRATIONS = (
    f"""PRAGMA application_id = {APPLICATION};
    CREATE TABLE runs (
        key TEXT PRIMARY KEY, status TEXT NOT NULL, spec TEXT NOT NULL, metrics TEXT NOT NULL,
        environment TEXT NOT NULL, steps INTEGER NOT NULL, seconds REAL NOT NULL, tokens INTEGER NOT NULL,
        flops TEXT NOT NULL, parameters INTEGER NOT NULL, peak_bytes INTEGER NOT NULL, kernel TEXT NOT NULL,
        weights TEXT NOT NULL, message TEXT NOT NULL, created TEXT NOT NULL);
    CREATE TABLE curves (id INTEGER PRIMARY KEY, key TEXT, step INTEGER, name TEXT, value REAL);
    CREATE INDEX curves_of_run ON curves (key)""",
    f"""ALTER TABLE runs ADD COLUMN provenance TEXT NOT NULL DEFAULT '{HERE}';
    CREATE TABLE probes (id INTEGER PRIMARY KEY, key TEXT, step INTEGER, name TEXT, value REAL);
    CREATE INDEX probes_of_run ON probes (key)""",
    "ALTER TABLE runs ADD COLUMN latency REAL NOT NULL DEFAULT 0",
    """ALTER TABLE runs ADD COLUMN numerics INTEGER NOT NULL DEFAULT 2;
    CREATE TABLE leases (key TEXT PRIMARY KEY, owner TEXT NOT NULL, beat INTEGER NOT NULL)""",
    """CREATE INDEX runs_asked ON runs (json_extract(spec, '$.task.name'), json_extract(spec, '$.shape'),
        json_extract(spec, '$.steps'), json_extract(spec, '$.seed'));
    CREATE INDEX runs_in_order ON runs (created, key)""",
    "ALTER TABLE runs ADD COLUMN registration TEXT NOT NULL DEFAULT ''",
)
SCHEMA = len(MIGRATIONS)
TROUBLE = {  # by SQLite's name for it
    "SQLITE_FULL": "there is no space left for {path}; nothing was written, and earlier results are intact",
    "SQLITE_IOERR": "the system cannot read or write {path} ({error}); earlier results are intact",
    "SQLITE_BUSY": "another process has been writing to {path} for too long; try again when it has finished",
    "SQLITE_READONLY": "{path} is read-only, so nothing can be stored in it",
    "SQLITE_CANTOPEN": "cannot open or create {path}: a store is a file in a folder that one can write to",
    "SQLITE_NOTADB": "{path} is not a headwise store; it was left as it is, choose another file",
    "SQLITE_CORRUPT": "{path} is damaged; it was left as it is, choose another file",
}


@dataclass(frozen=True)
class Merged:
    """What became of the runs of other stores. A conflict is the same run with other metrics: one file is wrong."""

    added: int
    known: int
    replaced: int  # because they had failed here


def default_path() -> Path:
    """Where results live: HEADWISE_STORE, else the user's data directory."""
    from platformdirs import user_data_dir

    return Path(os.environ.get("HEADWISE_STORE") or Path(user_data_dir("headwise"), "headwise.db"))


class Store(AbstractContextManager["Store"]):
    """Results of runs, by key. The file is created where there is none, and brought up to date where it is older."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = (default_path() if path is None else Path(path)).expanduser()
        self._connection, self._sound = _open(self.path)

    @property
    def files(self) -> Path:
        """The folder beside it: checkpoints, kept weights, plans of comparisons."""
        return self.path.with_suffix(".files")

    @classmethod
    def from_files(cls, *paths: str | Path) -> Self:
        """A read-only store in memory, of whatever `merge` takes."""
        store = cls(":memory:")
        store.merge(paths)
        store._connection.execute("PRAGMA query_only = ON")
        return store

    def close(self) -> None:
        self._connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, run: Run, result: RunResult, *, provenance: str = HERE) -> bool:
        """Store a result, in one transaction. False where the run was finished already: the first result stays."""
        if result.key != run.key:
            raise StoreError(f"a result of run {result.key} cannot be stored under run {run.key}")
        record = to_record(run, result, provenance)
        with self.transaction():
            self._query("DELETE FROM leases WHERE key = ?", run.key)
            if self._keys("key = ? AND status IN (?, ?)", run.key, *FINISHED):
                return False
            self._write(record, result)
        return True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, in a file that is known to be sound; no other process writes meanwhile."""
        with _explained(self.path):
            if not self._sound:
                _read_through(self._connection, self.path)
                self._sound = True
            with _transaction(self._connection):
                yield

    def remove(self, keys: Iterable[str] = (), *, unreadable: bool = False) -> list[str | None]:
        """Take runs out, by their keys or the beginnings of them; with `unreadable`, also rows that cannot be read."""
        found = {key: self._find(key) for key in keys}
        if missing := [key for key, full in found.items() if full is None]:
            raise StoreError(f"no run {listed(missing)} in this store; nothing was removed")
        with self.transaction():
            gone = [*found.values(), *(self._unreadable() if unreadable else ())]
            for table in ("runs", "leases", *POINTS):
                for key in gone:
                    self._query(f"DELETE FROM {table} WHERE key IS ?", key)
        return list(dict.fromkeys(gone))

    def _unreadable(self) -> list[str | None]:
        """Keys of rows that cannot be read; a row may have none."""
        keys: list[str | None] = []
        for record in self._select():
            try:
                from_record(record)
            except StoreError:
                keys.append(record["key"])
        return keys + ([None] if self._query("SELECT 1 FROM runs WHERE key IS NULL") else [])

    def merge(self, paths: Iterable[str | Path]) -> Merged:
        """Take in other stores: SQLite files, exported files, folders of the latter. On a conflict, nothing."""
        incoming = [pair for path in paths for pair in _records_of(Path(path).expanduser())]
        fates: dict[str, list[str]] = {"added": [], "known": [], "replaced": [], "conflict": []}
        with self.transaction():
            for record, result in incoming:
                fate = fate_of(self._select("key = ?", record["key"]), record)
                fates[fate].append(record["key"])
                if fate in ("added", "replaced"):
                    self._write(record, result)
            if conflicts := fates.pop("conflict"):
                raise StoreError(f"nothing was merged: the files disagree on the metrics of {listed(conflicts)}")
        return Merged(**{fate: len(keys) for fate, keys in fates.items()})

    def get(self, key: str) -> Pair | None:
        """A run and its whole result, by the key or by as many of its first digits as tell it from the others."""
        full_key = self._find(key)
        return from_record(self._whole(full_key)) if full_key else None

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that need no further run."""
        return {*self._keys(f"status IN (?, ?) AND key IN {ANY_OF}", *FINISHED, json.dumps([*keys]))}

    def runs(
        self,
        status: str | None = None,
        task: str | None = None,
        where: Where | None = None,
        *,
        asked: Asked | None = None,
        newest: int = 0,
    ) -> Iterator[Pair]:
        """Runs with their results, oldest first, without curves and probes; of these the `newest`, where it is given.

        `asked` are values that fields of the spec may have. A task, shape, steps and seeds are found by an index:
        a question about a few runs takes as long in a store of many.
        """
        condition, values = condition_on(status, task, asked)
        for record in self._select(condition, *values, newest=newest):
            run, result = from_record(record)
            if where is None or where(run, result):
                yield run, result

    def count(self, status: str | None = None, task: str | None = None) -> int:
        """How many runs there are."""
        condition, values = condition_on(status, task)
        return int(self._query(f"SELECT count(*) FROM runs WHERE {condition}", *values)[0][0])

    def keys(self) -> list[str]:
        """Every key, in their own order."""
        return [key for (key,) in self._query("SELECT key FROM runs ORDER BY key")]

    def with_points(self, results: Iterable[RunResult]) -> Iterator[RunResult]:
        """Results of `runs` with their curves and probes."""
        known = list(results)
        keys = json.dumps([result.key for result in known])
        found: dict[str, dict[str, list[CurvePoint]]] = {}
        for table in POINTS:
            points = found.setdefault(table, {})
            for key, *point in self._query(f"SELECT key, {POINT} FROM {table} WHERE key IN {ANY_OF} ORDER BY id", keys):
                points.setdefault(key, []).append(to_point(*point))
        for result in known:
            curve, probes = (found[table].get(result.key, []) for table in POINTS)
            yield replace(result, curve=curve, probes=probes)

    def curve(self, key: str) -> list[CurvePoint]:
        """A run's validation curve: rows of (step, name, value)."""
        return self._points("curves", self._find(key))

    def records(self) -> list[Record]:
        """Every run as one flat record, oldest first, without curves and probes."""
        return self._select()

    def frame(self) -> "polars.DataFrame":
        """One row per run: the spec, the result and every metric as columns.

        Where layers differ, a size is text ('8,8,4'), and so is its whole column. `steps` were planned, `steps_done`
        reached. What else is in the spec has dotted names ('recipe.batch'); a metric whose name is taken becomes
        'metric.<name>'. FLOPs are floats here.
        """
        with extra("frames", "frames"):
            import polars as pl

        records = self._select()
        names, rows = table_rows(records or [blank()])  # an empty store has columns of the same types
        columns = [pl.Series(name, [row.get(name) for row in rows], strict=False) for name in names]
        return pl.DataFrame(columns).head(len(records))

    def curves_frame(self, table: str = "curves") -> "polars.DataFrame":
        """Every point of every curve, or with table="probes" every value of every probe: key, step, name, value."""
        with extra("frames", "frames"):
            import polars as pl

        schema = {"key": str, "step": int, "name": str, "value": float}
        rows = self._query(f"SELECT {', '.join(schema)} FROM {table} ORDER BY id")
        return pl.DataFrame(rows, schema, orient="row").with_columns(pl.col("value").fill_null(math.nan))

    def export(self, path: str | Path) -> Path:
        """Write everything to .jsonl.xz or .parquet, from which `merge` gives it all back, or the frame to .csv."""
        whole = (for_others(self._whole(key)) for key in self._keys())
        return write_file(Path(path).expanduser(), whole, self._select)

    def _query(self, sql: str, *values: Any) -> list[Any]:
        with _explained(self.path):
            return self._connection.execute(sql, values).fetchall()

    def _select(self, condition: str = "1", *values: Any, newest: int = 0) -> list[Record]:
        sql = f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE {condition} ORDER BY created, key"
        if newest:
            last = f"SELECT key FROM runs WHERE {condition} ORDER BY created DESC, key DESC LIMIT {int(newest)}"
            sql = sql.replace(condition, f"key IN ({last})", 1)
        return [dict(zip(RUN_COLUMNS, row, strict=True)) for row in self._query(sql, *values)]

    def _keys(self, condition: str = "1", *values: Any) -> list[str]:
        return [key for (key,) in self._query(f"SELECT key FROM runs WHERE {condition} ORDER BY created, key", *values)]

    def _find(self, start: str) -> str | None:
        """The key that starts with these digits, if there is one."""
        matches = self._keys("key BETWEEN ? AND ?", start, start + LAST_SIGN) if start else []
        if len(matches) > 1:
            raise StoreError(f"'{start}' is the start of {listed(matches)}; give more digits")
        return matches[0] if matches else None

    def _whole(self, key: str) -> Record:
        (record,) = self._select("key = ?", key)
        return record | {field: points_to_json(self._points(table, key)) for table, field in POINTS.items()}

    def _points(self, table: str, key: str | None) -> list[CurvePoint]:
        rows = self._query(f"SELECT {POINT} FROM {table} WHERE key = ? ORDER BY id", key)
        return [to_point(*row) for row in rows]

    def _write(self, record: Record, result: RunResult) -> None:
        """Put a record and its points in the place of whatever the key had. Call it inside a transaction."""
        key, places = record["key"], ", ".join("?" * len(RUN_COLUMNS))
        for table in ("runs", *POINTS):
            self._query(f"DELETE FROM {table} WHERE key = ?", key)
        self._query(
            f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) VALUES ({places})", *(record[name] for name in RUN_COLUMNS)
        )
        for table, field in POINTS.items():
            rows = [(key, *point) for point in getattr(result, field)]
            self._connection.executemany(f"INSERT INTO {table} (key, step, name, value) VALUES (?, ?, ?, ?)", rows)


# ---- the file ------------------------------------------------------------------------------------------------------


def _open(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection to a store that is up to date, on which a commit that returned has reached the disk.

    And whether the whole file was read and found sound: see CHECKED_AT_ONCE.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot keep results in {path}: {error}") from None
    with _explained(path), ExitStack() as on_failure:
        check_file(path, "results")
        connection = on_failure.enter_context(closing(sqlite3.connect(path, PATIENCE, isolation_level=None)))
        small = not path.exists() or path.stat().st_size <= CHECKED_AT_ONCE
        _check(connection, path, whole=small)
        # A write-ahead log needs memory that all its processes share, so one machine. EXTRA syncs the folder too.
        journal, sync = ("DELETE", "EXTRA") if on_network(path) else ("WAL", "FULL")
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute(f"PRAGMA synchronous = {sync}")
        _upgrade(connection)
        on_failure.pop_all()
    return connection, small


def _check(connection: sqlite3.Connection, path: Path, whole: bool = True) -> None:
    """Refuse what is not ours, newer than we are, or damaged. Nothing is written before this has passed."""
    if not _ask(connection, "SELECT count(*) FROM sqlite_master"):
        return
    if _ask(connection, "PRAGMA application_id") != APPLICATION:
        raise StoreError(f"{path} is a database of another program; it was left as it is, choose another file")
    version = _ask(connection, "PRAGMA user_version")
    if version > SCHEMA:
        raise StoreError(f"{path} was made by a newer headwise (version {version}; this one reads {SCHEMA}): update it")
    if whole or version < SCHEMA:
        _read_through(connection, path)


def _read_through(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that is damaged anywhere."""
    if _ask(connection, "PRAGMA quick_check(1)") != "ok":
        raise StoreError(TROUBLE["SQLITE_CORRUPT"].format(path=path))


def _upgrade(connection: sqlite3.Connection) -> None:
    """Bring the file to this version; of two drivers that open a new file at once, the second finds it made."""
    if _ask(connection, "PRAGMA user_version") < SCHEMA:
        with _transaction(connection):
            for step in MIGRATIONS[_ask(connection, "PRAGMA user_version") :]:
                for statement in step.split(";"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _ask(connection: sqlite3.Connection, question: str) -> Any:
    return connection.execute(question).fetchone()[0]


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled it back already
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into sentences; what has no code is a mistake of the program's, such as a closed store."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None)
        if name is None:
            raise
        reason = next((text for code, text in TROUBLE.items() if name.startswith(code)), "{path}: {error}")
        raise StoreError(reason.format(path=path, error=error)) from None


# ---- other stores --------------------------------------------------------------------------------------------------


def _records_of(path: Path) -> Iterator[tuple[Record, RunResult]]:
    """Whole records of another store, each decoded, so that nothing unreadable is taken in."""
    files = exported_in(path) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise StoreError(f"no runs in {path}: a store, a file of headwise export or a folder of these is expected")
    for file in files:
        check_file(file, "runs")
        read = read_lines if file.name.endswith(LINES) else read_parquet if file.suffix == PARQUET else _read_store
        for record in read(file):
            result = check_key(record, file.name)
            origin = file.name if record["provenance"] == HERE else record["provenance"]
            yield record | {"provenance": origin}, result


def _read_store(path: Path) -> list[Record]:
    """Through a copy in memory: the other file may need an upgrade, and it is not ours to change."""
    frozen = not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()
    address = f"{path.resolve().as_uri()}?{'immutable=1' if frozen else 'mode=rw'}"
    with Store(":memory:") as copy, _explained(path):
        with closing(sqlite3.connect(address, PATIENCE, uri=True)) as source:
            _check(source, path)
            source.backup(copy._connection)
        _upgrade(copy._connection)
        if None in (keys := copy._keys()):
            raise StoreError(f"nothing was merged: {path.name} holds a run whose key is None")
        return [copy._whole(key) for key in keys]
