"""The store: what goes in comes out, whatever happens to the process, the disk or the file."""

import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.spec import SpecError
from headwise.store import network
from headwise.store import store as store_module
from headwise.store.network import on_network
from headwise.store.questions import condition_on
from headwise.store.records import LATER
from headwise.store.rows import Cell, results_of
from headwise.store.store import (
    APPLICATION,
    MIGRATIONS,
    RUN_COLUMNS,
    SCHEMA,
    Store,
    StoreError,
    default_path,
)
from headwise.training.run import NUMERICS, Run
from helpers.runs import make_result, make_run
from helpers.strategies import pairs

NAN, INF = math.nan, math.inf


def filled(path, seeds, **fields):
    """A closed store with a run for each seed."""
    with Store(path) as store:
        for seed in seeds:
            run = make_run(seed)
            store.add(run, make_result(run, **fields))
    return path


def same(one, other):
    """Equal, where a number that is not one equals itself."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


def same_rows(one, other):
    """Two stores hold the same runs and whole results."""
    pairs = [{run.key: store.get(run.key) for run, _ in store.runs()} for store in (one, other)]
    return pairs[0].keys() == pairs[1].keys() and all(
        run == pairs[1][key][0] and same(result.as_dict(), pairs[1][key][1].as_dict())
        for key, (run, result) in pairs[0].items()
    )


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "headwise.db") as opened:
        yield opened


# ---- generated runs ------------------------------------------------------------------------------------------------


@given(pairs())
@settings(max_examples=100)
def test_what_goes_in_comes_out(pair):
    run, result = pair
    with Store(":memory:") as store:
        assert store.add(run, result)
        found_run, found = store.get(run.key)
        assert found_run == run
        assert found_run.key == run.key
        assert same(found.as_dict(), result.as_dict())
        assert same(store.curve(run.key), result.curve)
        [(listed_run, listed)] = store.runs()
        assert listed_run == run
        assert same(listed.as_dict(), replace(result, curve=[], probes=[]).as_dict())


@given(st.lists(pairs(), max_size=4))
@settings(max_examples=25)
def test_parquet_gives_everything_back(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("exported") / "runs.parquet"
    with Store(":memory:") as store, Store(":memory:") as other:
        for run, result in found:
            store.add(run, result)
        store.export(path)
        other.merge([path])
        assert same_rows(store, other)
        assert store.frame().drop("provenance").equals(other.frame().drop("provenance"), null_equal=True)


@given(st.lists(pairs(), max_size=4))
@settings(max_examples=25)
def test_any_store_is_a_data_frame(found):
    with Store(":memory:") as store:
        for run, result in found:
            store.add(run, result)
        frame = store.frame()
        assert frame.height == len({run.key for run, _ in found})
        assert {"key", "task", "heads", "learning_rate", "flops"} <= set(frame.columns)
        assert store.curves_frame().height + store.curves_frame("probes").height == sum(
            len(result.curve) + len(result.probes) for run, result in (store.get(key) for key in frame["key"])
        )


def test_numbers_that_are_not_finite_leave_valid_json(store, tmp_path):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    run = make_run()
    metrics = {"nan": NAN, "up": INF, "down": -INF, "plain": 0.1}
    store.add(run, make_result(run, "diverged", metrics=metrics, curve=[(1, "loss", NAN), (2, "loss", INF)]))
    for text in sqlite3.connect(store.path).execute("SELECT spec, metrics, environment FROM runs").fetchone():
        json.loads(text, parse_constant=refuse)
    assert same(store.get(run.key)[1].metrics, metrics)
    assert same(store.curves_frame()["value"].to_list(), [NAN, INF])
    assert same(store.frame().select("nan", "up", "down").row(0), (NAN, INF, -INF))
    row = pl.read_parquet(store.export(tmp_path / "runs.parquet")).row(0, named=True)
    json.loads(row["curve"], parse_constant=refuse)


def test_a_traceback_may_quote_any_bytes(store):
    run = make_run()
    store.add(run, make_result(run, "failed", message="cannot read \udcff\x00"))
    assert "\\udcff" in store.get(run.key)[1].message


def test_a_spec_that_would_not_come_back_is_refused(store):
    run = make_run().replace(task={"name": "toy", "scale": INF})
    with pytest.raises(StoreError, match="not plain data"):
        store.add(run, make_result(run))
    assert list(store.runs()) == []


# ---- adding and finding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["done", "diverged"])
def test_a_finished_row_never_changes(store, status):
    run = make_run()
    assert store.add(run, make_result(run, status, error=0.1))
    for later in ("done", "diverged", "failed"):
        assert not store.add(run, make_result(run, later, error=0.2))
    assert store.get(run.key)[1] == make_result(run, status, error=0.1)


def test_a_failed_row_gives_way(store):
    run = make_run()
    assert store.add(run, make_result(run, "failed", metrics={}, probes=[(1, "rank", 2.0)], message="first"))
    assert store.add(run, make_result(run, "failed", metrics={}, curve=[], message="second"))
    assert store.get(run.key)[1].message == "second"
    assert store.curve(run.key) == store.get(run.key)[1].probes == []
    assert store.add(run, make_result(run))
    assert store.get(run.key)[1] == make_result(run)


def test_a_result_belongs_to_its_run(store):
    with pytest.raises(StoreError, match=f"{make_run(1).key} cannot be stored under run {make_run(0).key}"):
        store.add(make_run(0), make_result(make_run(1)))
    assert list(store.runs()) == []


def test_a_key_is_found_by_its_first_digits(store):
    for seed in range(40):
        store.add(make_run(seed), make_result(make_run(seed)))
    key = make_run(7).key
    assert store.get(key)[0].seed == store.get(key[:12])[0].seed == 7
    assert len(store.curve(key[:12])) == 2
    assert store.get("x") is store.get("") is store.get(key + "0") is None
    assert store.curve("x") == []
    keys = sorted(make_run(seed).key for seed in range(40))
    shared = next(one[0] for one, other in pairwise(keys) if one[0] == other[0])
    with pytest.raises(SpecError, match="give more digits") as caught:
        store.get(shared)
    assert all(k in str(caught.value) for k in keys if k.startswith(shared))
    assert store.get("%") is store.get("*") is store.get("_") is None


def test_failed_is_not_finished(store):
    for seed, status in enumerate(["done", "diverged", "failed"]):
        store.add(make_run(seed), make_result(make_run(seed), status))
    keys = [make_run(seed).key for seed in range(4)]
    assert store.finished(keys) == set(keys[:2])
    assert store.finished(iter(keys[1:])) == {keys[1]}
    assert store.finished([]) == set()


def test_runs_are_listed_and_chosen(store):
    for seed, status in enumerate(["done", "failed", "done"]):
        run = make_run(seed, task="toy" if seed else "other")
        store.add(run, make_result(run, status))
    assert [run.seed for run, _ in store.runs()] == [0, 1, 2]
    assert [run.seed for run, _ in store.runs(status="done", task="toy")] == [2]
    assert [run.seed for run, _ in store.runs(where=lambda run, result: result.status == "failed")] == [1]
    assert all(result.curve == [] for _, result in store.runs())


# ---- data frames ---------------------------------------------------------------------------------------------------


def test_the_data_frame_has_a_row_a_run(store):
    run = make_run(3, shape="w8-h2-r3-L2", recipe={"learning_rate": 0.25})
    store.add(run, make_result(run, tokens=7, parameters=11))
    other = make_run(4, task="other")
    store.add(other, make_result(other, metrics={"accuracy": NAN, "seconds": 2.0}))
    frame = store.frame()
    first, second = frame.to_dicts()
    assert list(first)[:4] == ["key", "status", "task", "shape"]
    sizes = {"width": 8, "depth": 2, "heads": 2, "qk_rank": 3, "v_rank": 3, "kv_heads": 2, "mlp": 32}
    spec = {"task": "toy", "shape": "w8-h2-r3-L2", "steps": 10, "seed": 3, "learning_rate": 0.25, "task.dim": 4}
    cost = {"steps_done": 10, "seconds": 1.5, "tokens": 7, "parameters": 11, "flops": 1e20, "recipe.batch": 128}
    assert sizes.items() | spec.items() | cost.items() <= first.items()
    assert (first["error"], first["accuracy"]) == (0.5, None)
    assert second["error"] is None
    assert math.isnan(second["accuracy"])
    assert (second["seconds"], second["metric.seconds"]) == (1.5, 2.0)
    assert {name: frame.schema[name] for name in sizes} == dict.fromkeys(sizes, pl.Int64)


def test_layers_that_differ_make_a_column_of_text(store):
    for shape in ("w8-h2-L3", "w8-h4,4,2"):
        run = make_run(shape=shape)
        store.add(run, make_result(run))
    assert store.frame()["heads"].to_list() == ["2", "4,4,2"]
    assert store.frame()["width"].to_list() == [8, 8]


def test_an_empty_store_has_columns(store, tmp_path):
    empty = store.frame()
    assert empty.height == store.curves_frame().height == 0
    store.add(make_run(), make_result(make_run()))
    full = store.frame()
    assert all(full.schema[name] == kind for name, kind in empty.schema.items())


def test_csv_is_the_data_frame(store, tmp_path):
    store.add(make_run(), make_result(make_run()))
    read = pl.read_csv(store.export(tmp_path / "new" / "runs.csv"))
    assert read.columns == store.frame().columns
    assert read["error"].to_list() == [0.5]


# ---- joining stores ------------------------------------------------------------------------------------------------


def test_stores_are_merged_by_key(tmp_path):
    ours = filled(tmp_path / "ours.db", [0, 1])
    filled(ours, [5, 6], status="failed", metrics={})
    theirs = filled(filled(tmp_path / "theirs.db", [1, 2, 5]), [0, 6, 7], status="failed")
    with Store(ours) as store:
        merged = store.merge([theirs])
        assert vars(merged) == {"added": 2, "known": 3, "replaced": 1}
        assert store.get(make_run(5).key)[1] == make_result(make_run(5))
        assert store.get(make_run(0).key)[1].status == "done"
        assert vars(store.merge([theirs, ours])) == {"added": 0, "known": 12, "replaced": 0}
        origin = dict(store.frame().select("seed", "provenance").rows())
        assert origin == {0: "here", 1: "here", 2: "theirs.db", 5: "theirs.db", 6: "here", 7: "theirs.db"}


def test_a_folder_of_exports_is_merged(tmp_path):
    for seed in range(3):
        with Store(filled(tmp_path / f"{seed}.db", [seed])) as part:
            part.export(tmp_path / "exported" / f"{seed}.parquet")
    with Store(tmp_path / "all.db") as store:
        assert store.merge([tmp_path / "exported"]).added == 3
        assert store.merge([str(tmp_path / "exported" / "0.parquet")]).known == 1
    with Store.from_files(tmp_path / "exported") as read, Store(tmp_path / "all.db") as store:
        assert same_rows(read, store)


def test_a_conflict_is_named_and_nothing_is_written(tmp_path):
    ours, theirs = filled(tmp_path / "ours.db", [0]), filled(tmp_path / "theirs.db", [0, 1], error=0.25)
    with Store(ours) as store:
        with pytest.raises(SpecError, match=f"disagree on the metrics of {make_run(0).key}"):
            store.merge([theirs])
        assert [run.seed for run, _ in store.runs()] == [0]
    with Store(tmp_path / "new.db") as store:
        with pytest.raises(SpecError, match="disagree"):
            store.merge([ours, theirs])
        assert list(store.runs()) == []


@pytest.mark.parametrize("value", [NAN, INF, 0.1 + 0.2])
def test_equal_metrics_are_no_conflict(tmp_path, value):
    ours, theirs = (filled(tmp_path / name, [0], error=value) for name in ("ours.db", "theirs.db"))
    with Store(ours) as store:
        assert store.merge([theirs]).known == 1


def test_merging_leaves_the_other_file_alone(tmp_path):
    other = tmp_path / "shared" / "other.db"
    other.parent.mkdir()
    old_store(other)
    before = other.read_bytes()
    with Store(tmp_path / "ours.db") as store:
        assert store.merge([other]).added == 1
    assert other.read_bytes() == before
    assert list(other.parent.iterdir()) == [other]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs users as Unix has them")
def test_a_store_in_a_folder_one_cannot_write_to_can_be_read():
    code = """
if os.geteuid() == 0:
    os.setuid(65534)  # nothing is locked for root
with Store.from_files(sys.argv[2]) as store:
    print(store.get(make_run(0).key) == (make_run(0), make_result(make_run(0))))
"""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        path = filled(Path(folder) / "other.db", [0])
        os.chmod(folder, 0o555)
        told, _ = child(code, path).communicate()
        left = os.listdir(folder)
        os.chmod(folder, 0o755)
    assert (told.strip(), left) == ("True", ["other.db"])


def test_a_store_that_is_being_written_can_be_merged(tmp_path):
    with Store(tmp_path / "theirs.db") as theirs, Store(tmp_path / "ours.db") as ours:
        theirs.add(make_run(), make_result(make_run()))
        assert ours.merge([theirs.path]).added == 1


def test_what_was_read_from_files_cannot_be_written(tmp_path):
    with Store.from_files(filled(tmp_path / "a.db", [0])) as store, pytest.raises(StoreError, match="read-only"):
        store.add(make_run(1), make_result(make_run(1)))


def exported(tmp_path, **changes):
    """A Parquet file of two runs, and what somebody made of the first of them."""
    with Store(filled(tmp_path / "theirs.db", [0, 1])) as store:
        store.export(tmp_path / "theirs.parquet")
    rows = pl.read_parquet(tmp_path / "theirs.parquet")
    (first, second), schema = rows.to_dicts(), rows.schema
    pl.DataFrame([first | changes, second], schema).write_parquet(tmp_path / "theirs.parquet")
    return tmp_path / "theirs.parquet"


@pytest.mark.parametrize("key", [make_run(7).key, None, "", "x" * 16, "0" * 15])
def test_a_row_under_another_runs_key_is_refused_by_name(tmp_path, store, key):
    """Else anybody's file could say that a run nobody did has no error."""
    with pytest.raises(StoreError, match=r"nothing was merged: theirs.parquet holds a run") as refused:
        store.merge([exported(tmp_path, key=key)])
    assert str(key) in str(refused.value)
    assert list(store.runs()) == []
    with pytest.raises(StoreError, match="nothing was merged"):
        Store.from_files(tmp_path)


def test_the_key_of_other_numerics_is_taken_as_it_is(tmp_path, store):
    key = "0123456789abcdef"
    assert store.merge([exported(tmp_path, key=key, numerics=NUMERICS - 1)]).added == 2
    assert store.get(key)[1].key == key
    store.export(tmp_path / "again.parquet")
    rows = pl.read_parquet(tmp_path / "again.parquet")
    assert dict(zip(rows["key"], rows["numerics"], strict=True)) == {key: NUMERICS - 1, make_run(1).key: NUMERICS}


def test_rows_are_removed_and_those_that_cannot_be_read_too(tmp_path, store):
    for seed in range(4):
        store.add(make_run(seed), make_result(make_run(seed)))
    keys = [make_run(seed).key for seed in range(4)]
    store._query("UPDATE runs SET key = NULL WHERE key = ?", keys[0])
    store._query("UPDATE runs SET status = 'nonsense' WHERE key = ?", keys[1])
    with pytest.raises(StoreError, match="headwise runs remove --unreadable"):
        list(store.runs())
    with Store(tmp_path / "ours.db") as ours, pytest.raises(StoreError, match="key is None"):
        ours.merge([store.path])
    with pytest.raises(StoreError, match="no run 0000 in this store; nothing was removed"):
        store.remove([keys[2], "0000"])
    assert set(store.remove([keys[2][:8]], unreadable=True)) == {keys[2], keys[1], None}
    assert [result.key for _, result in store.runs()] == [keys[3]]
    assert not {keys[1], keys[2]} & {key for (key,) in store._query("SELECT key FROM curves")}
    assert store.remove(unreadable=True) == []


def test_what_cannot_be_merged_is_a_sentence(tmp_path, store):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no parquet")
    pl.DataFrame({"key": ["a"], "status": ["done"]}).write_parquet(tmp_path / "alien.parquet")
    with Store(filled(tmp_path / "a.db", [0])) as other:
        good = pl.read_parquet(other.export(tmp_path / "good.parquet"))
    for column, value in (("spec", "{"), ("spec", "[]"), ("metrics", "3"), ("status", "odd"), ("curve", "[1]")):
        good.with_columns(pl.lit(value).alias(column)).write_parquet(tmp_path / f"{column}-{len(value)}.parquet")
    wrong = ["missing.db", "missing.parquet", "empty", "text.parquet", "alien.parquet", "spec-1.parquet"]
    wrong += ["spec-2.parquet", "metrics-1.parquet", "status-3.parquet", "curve-3.parquet"]
    for name in wrong:
        with pytest.raises(StoreError) as caught:
            store.merge([tmp_path / "good.parquet", tmp_path / name])
        assert "\n" not in str(caught.value), name
        assert list(store.runs()) == []


def test_export_refuses_in_a_sentence(store, tmp_path):
    (tmp_path / "file").touch()
    for path in ("runs.xlsx", "runs", "file/runs.parquet"):
        with pytest.raises(StoreError, match="cannot"):
            store.export(tmp_path / path)


# ---- the file ------------------------------------------------------------------------------------------------------


def old_store(path):
    """A file as version 1 of the schema left it."""
    connection = sqlite3.connect(path)
    for statement in MIGRATIONS[0].split(";"):
        connection.execute(statement)
    connection.execute("PRAGMA user_version = 1")
    record = store_module.to_record(make_run(), make_result(make_run()), "here")
    names = [name for name in RUN_COLUMNS if name not in ("provenance", *LATER)]
    places = ", ".join("?" * len(names))
    connection.execute(f"INSERT INTO runs ({', '.join(names)}) VALUES ({places})", [record[name] for name in names])
    points = [(make_run().key, *point) for point in make_result(make_run()).curve]
    connection.executemany("INSERT INTO curves (key, step, name, value) VALUES (?, ?, ?, ?)", points)
    connection.commit()
    connection.close()


def test_an_older_file_is_brought_up_to_date(tmp_path):
    old_store(tmp_path / "old.db")
    with Store(tmp_path / "old.db") as store:
        assert store.get(make_run().key) == (make_run(), make_result(make_run()))
        assert store.add(make_run(1), make_result(make_run(1), probes=[(1, "rank", 2.0)]))
        assert store.frame()["provenance"].to_list() == ["here", "here"]
        assert store.frame()["numerics"].to_list() == [2, NUMERICS]
    assert sqlite3.connect(tmp_path / "old.db").execute("PRAGMA user_version").fetchone() == (SCHEMA,)


def test_an_export_names_data_without_saying_where_it_lay(tmp_path):
    reading = {"name": "text", "content": "abc", "source": "/home/me/letters.txt"}
    runs = [
        Run(task=reading, shape="w8-h2", steps=1),
        Run(task={"name": "glue", "source": "nyu-mll/glue"}, shape="w8-h2", steps=1, begin={"run": {"task": reading}}),
    ]
    with Store(tmp_path / "mine.db") as store:
        for run in runs:
            store.add(run, make_result(run))
        store.export(tmp_path / "mine.parquet")
    assert not any("/home/me" in spec for spec in pl.read_parquet(tmp_path / "mine.parquet")["spec"].to_list())
    with Store.from_files(tmp_path / "mine.parquet") as theirs:
        read = {result.key: run for run, result in theirs.runs()}
    assert [read[run.key].key for run in runs] == [run.key for run in runs]
    assert read[runs[0].key].task["source"] == "letters.txt"
    assert read[runs[1].key].task["source"] == "nyu-mll/glue"


def test_an_older_export_lacks_later_columns(tmp_path):
    with Store(filled(tmp_path / "new.db", [0])) as store:
        store.export(tmp_path / "new.parquet")
    pl.read_parquet(tmp_path / "new.parquet").drop(*LATER).write_parquet(tmp_path / "old.parquet")
    with Store.from_files(tmp_path / "old.parquet") as old:
        assert [result.latency for _, result in old.runs()] == [0.0]


def test_an_upgrade_that_fails_changes_nothing(tmp_path, monkeypatch):
    old_store(tmp_path / "old.db")
    monkeypatch.setattr(store_module, "MIGRATIONS", (MIGRATIONS[0], MIGRATIONS[1] + "; CREATE NONSENSE"))
    with pytest.raises(StoreError, match="NONSENSE"):
        Store(tmp_path / "old.db")
    monkeypatch.undo()
    connection = sqlite3.connect(tmp_path / "old.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert "provenance" not in str(connection.execute("SELECT sql FROM sqlite_master").fetchall())
    connection.close()
    with Store(tmp_path / "old.db") as store:
        assert store.get(make_run().key) is not None


def damage(path, kind):
    """Make the file something that is no store, or no longer a sound one."""
    if kind == "newer":
        connection = sqlite3.connect(filled(path, [0]))
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        connection.close()
    elif kind == "another program's":
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE bookmarks (url)")
        connection.close()
    elif kind == "text":
        path.write_text("my notes, which nobody may overwrite\n" * 100)
    else:
        content = bytearray(filled(path, range(60)).read_bytes())
        if kind == "truncated":
            del content[len(content) // 2 :]
        else:
            content[4096 * 3 : 4096 * 6] = random.Random(0).randbytes(4096 * 3)
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("newer", "newer headwise"),
        ("another program's", "another program"),
        ("text", "not a headwise store"),
        ("truncated", "damaged"),
        ("scrambled", "damaged"),
    ],
)
def test_a_file_that_is_no_sound_store_is_refused_and_kept(tmp_path, store, kind, told):
    path = tmp_path / "other" / "file.db"
    path.parent.mkdir()
    damage(path, kind)
    before = path.read_bytes()
    for attempt in (lambda: Store(path), lambda: store.merge([path])):
        with pytest.raises(SpecError, match=told) as caught:
            attempt()
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    assert list(store.runs()) == []


def test_folders_are_made(tmp_path):
    assert filled(tmp_path / "a" / "b" / "c.db", [0]).exists()


def test_an_empty_file_becomes_a_store(tmp_path):
    (tmp_path / "empty.db").touch()
    with Store(filled(tmp_path / "empty.db", [0])) as store:
        assert len(list(store.runs())) == 1


@pytest.mark.parametrize("path", [".", "file/headwise.db"])
def test_a_path_that_cannot_be_a_file_is_a_sentence(tmp_path, path):
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot"):
        Store(tmp_path / path)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs users as Unix has them")
def test_a_folder_one_cannot_write_to_is_a_sentence(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    user = os.geteuid()
    try:
        if user == 0:  # nothing is locked for root, so be nobody for a moment
            os.seteuid(65534)
        for path in (locked / "headwise.db", locked / "new" / "headwise.db"):
            with pytest.raises(SpecError, match="cannot"):
                Store(path)
    finally:
        if user == 0:
            os.seteuid(0)
    assert list(locked.iterdir()) == []


def test_where_results_live(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADWISE_STORE", raising=False)
    assert default_path().name == "headwise.db"
    monkeypatch.setenv("HEADWISE_STORE", str(tmp_path / "mine.db"))
    assert default_path() == tmp_path / "mine.db"
    with Store() as store:
        assert store.path == tmp_path / "mine.db"


def pragma(store, name):
    return store._connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_commit_reaches_the_disk(store):
    assert (pragma(store, "journal_mode"), pragma(store, "synchronous")) == ("wal", 2)
    assert pragma(store, "application_id") == APPLICATION


def test_no_write_ahead_log_on_a_network(tmp_path, monkeypatch):
    path = filled(tmp_path / "headwise.db", [0])  # made elsewhere, then copied to a shared folder
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(network, "MOUNTS", mounts)
    with Store(filled(path, [1])) as store:
        assert (pragma(store, "journal_mode"), pragma(store, "synchronous")) == ("delete", 3)
        assert len(list(store.runs())) == 2


@pytest.mark.parametrize(
    ("path", "networked"),
    [
        ("/home/me/a.db", True),
        ("/home/me/scratch/a.db", False),
        ("/homes/a.db", False),
        ("/my disk/a.db", True),
        ("/my disk/usb/a.db", False),
        ("/both/a.db", True),
        ("/a.db", False),
    ],
)
def test_the_nearest_mount_decides(tmp_path, monkeypatch, path, networked):
    lines = ["/dev/a / ext4", "b /home nfs", "tmpfs /home/me/scratch tmpfs", r"c /my\040disk fuse.sshfs"]
    lines += [r"d /my\040disk/usb vfat", "e /both ext4", "f /both cifs"]
    (tmp_path / "mounts").write_text("".join(f"{line} rw 0 0\n" for line in lines))
    monkeypatch.setattr(network, "MOUNTS", tmp_path / "mounts")
    assert on_network(Path(path)) is networked


def test_without_a_list_of_mounts_nothing_is_networked(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "MOUNTS", tmp_path / "none")
    assert not on_network(tmp_path / "a.db")


# ---- when things go wrong ------------------------------------------------------------------------------------------


def sound(path):
    connection = sqlite3.connect(path)
    return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_full_disk_is_a_sentence_and_the_store_is_intact(tmp_path):
    path = filled(tmp_path / "headwise.db", range(5))
    big = make_run(99)
    with Store(path) as store:
        store._connection.execute(f"PRAGMA max_page_count = {pragma(store, 'page_count') + 2}")
        with pytest.raises(StoreError, match="no space left") as caught:
            store.add(big, make_result(big, message="x" * 100_000))
        assert isinstance(caught.value, SpecError)
        assert [run.seed for run, _ in store.runs()] == list(range(5))
        store._connection.execute("PRAGMA max_page_count = 100000")
        assert store.add(big, make_result(big))  # once there is room again
    assert sound(path)


CHILD = """
import json, os, resource, signal, sys
sys.path.insert(0, sys.argv[1])
from helpers.runs import make_result, make_run
from headwise.store.store import Store, StoreError
"""


def child(code, *arguments):
    command = [sys.executable, "-c", CHILD + code, str(Path(__file__).parents[1]), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_write_that_the_system_refuses_is_a_sentence(tmp_path):
    path = filled(tmp_path / "headwise.db", range(3))
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Store(sys.argv[2]) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        store.add(make_run(99), make_result(make_run(99), message="x" * 1_000_000))
    except StoreError as error:
        print(error)
"""
    told, _ = child(code, path).communicate()
    assert "intact" in told
    with Store(path) as store:
        assert [run.seed for run, _ in store.runs()] == [0, 1, 2]
    assert sound(path)


ADD_UNTIL_KILLED = """
first = int(sys.argv[3])
with Store(sys.argv[2]) as store:
    for seed in range(first, first + 100_000):
        run = make_run(seed)
        store.add(run, make_result(run, curve=[(step, "loss", 1.0) for step in range(50)]))
        print(run.key, flush=True)
"""


def test_what_was_stored_survives_a_kill(tmp_path):
    path = tmp_path / "headwise.db"
    chance = random.Random(0)
    told = []
    for attempt in range(3):
        process = child(ADD_UNTIL_KILLED, path, attempt * 100_000)
        told += [process.stdout.readline().strip() for _ in range(3)]
        time.sleep(chance.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        told += [line for line in rest.splitlines() if len(line) == 16]
    assert len(told) > 8
    with Store(path) as store:
        assert store.finished(told) == set(told)
        assert all(len(store.curve(run.key)) == 50 for run, _ in store.runs())
    assert sound(path)


ADD_SOME = """
added = 0
for seed in range(int(sys.argv[3]), int(sys.argv[3]) + 30):
    with Store(sys.argv[2]) as store:
        added += store.add(make_run(seed), make_result(make_run(seed)))
print(added)
"""


def test_two_drivers_share_a_file(tmp_path):
    path = tmp_path / "new.db"
    drivers = [child(ADD_SOME, path, first) for first in (0, 15)]
    added = [int(driver.communicate()[0]) for driver in drivers]
    assert sum(added) == 45
    with Store(path) as store:
        assert sorted(run.seed for run, _ in store.runs()) == list(range(45))


def lock(path):
    """Lock the file, as another driver's transaction would, until the connection is closed."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_a_driver_waits_for_another(store):
    threading.Timer(0.3, lock(store.path).close).start()
    assert store.add(make_run(), make_result(make_run()))


def test_waiting_too_long_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "PATIENCE", 0.05)
    sentence = pytest.raises(StoreError, match="another process")
    with Store(tmp_path / "headwise.db") as store, closing(lock(store.path)), sentence:
        store.add(make_run(), make_result(make_run()))


def test_an_interruption_leaves_no_half_of_a_run(store, monkeypatch):
    class Interrupting(dict):
        def items(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "POINTS", Interrupting(store_module.POINTS))  # asked between row and curve
    with pytest.raises(KeyboardInterrupt):
        store.add(make_run(), make_result(make_run()))
    monkeypatch.undo()
    assert list(store.runs()) == []
    assert store.add(make_run(), make_result(make_run()))


def test_importing_the_store_is_light():
    loaded = "import sys, headwise.store.store, headwise.report.runs"
    code = f"{loaded}; print({{'polars', 'torch', 'numpy'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


# ---- many rows -----------------------------------------------------------------------------------------------------


def questions(store, ask):
    """The SQL that is executed meanwhile."""
    heard = []
    store._connection.set_trace_callback(heard.append)
    ask()
    store._connection.set_trace_callback(None)
    return heard


def test_results_of_a_grid_take_as_many_questions_however_many_runs_there_are(store):
    counts = []
    for seeds in (range(3), range(3, 40)):
        for seed in seeds:
            run = make_run(seed)
            store.add(run, make_result(run))
        cells = [Cell({}, make_run(seed)) for seed in range(seeds.stop)]
        heard = questions(store, lambda cells=cells: results_of(store, cells))
        assert len(results_of(store, cells)) == seeds.stop
        counts.append(len(heard))
    assert counts[0] == counts[1] <= 3


def test_a_question_about_some_runs_goes_through_an_index(store):
    condition, values = condition_on(None, None, {"task.name": ["toy"], "shape": ["w8-h2"], "steps": [1], "seed": [0]})
    plan = store._query(f"EXPLAIN QUERY PLAN SELECT key FROM runs WHERE {condition}", *values)
    assert "USING INDEX runs_asked (<expr>=? AND <expr>=? AND <expr>=? AND <expr>=?)" in plan[0][-1]


def test_runs_are_found_by_fields_of_their_spec_and_the_newest_apart(store):
    made = [make_run(seed, shape=shape) for seed in range(3) for shape in ("w8-h2-L2", "w8-h4-L2")]
    for run in made:
        store.add(run, make_result(run))
    found = [run for run, _ in store.runs(asked={"shape": ["w8-h4-L2"], "seed": [0, 2]})]
    assert found == [run for run in made if run.shape == "w8-h4-L2" and run.seed != 1]
    assert [run for run, _ in store.runs(newest=2)] == made[-2:]
    assert store.count() == 6
    assert store.count(task="other") == 0


def test_a_large_file_is_read_through_before_the_first_write(tmp_path, monkeypatch):
    path = tmp_path / "file.db"
    damage(path, "scrambled")
    before = path.read_bytes()
    monkeypatch.setattr(store_module, "CHECKED_AT_ONCE", 0)
    run = make_run(1000)
    with pytest.raises(StoreError, match="damaged"), Store(path) as store:
        store.add(run, make_result(run))
    assert path.read_bytes() == before
