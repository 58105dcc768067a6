"""What the fuzzers attack: each target takes one case, and either works or says in one sentence why not.

A case is plain JSON, so that those that were found stay in `corpus/`. `find` makes new ones from a corpus.
"""

import json
import os
import random
import string
import struct
from functools import cache
from pathlib import Path

import polars as pl
import torch
from safetensors.torch import save_file

from headwise.checkpoints import open_checkpoint
from headwise.checkpoints.configuration import price, suggest
from headwise.checkpoints.files import open_weights
from headwise.comparison.answer import compare_table
from headwise.data.tables import table_rows
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.store.store import Store
from headwise.training.run import Run
from helpers.commands import headwise
from helpers.runs import make_result, make_run

CORPUS = Path(__file__).parent / "corpus"
HUGE, LONG = 10**400, "9" * 5000
ODD = [None, True, -1, 0, 1, 3, 2**31, 2**63, HUGE, 1.5, 1e308, "", "1", "[/]", "\0", "é", [], [1], {}, {"a": {}}]


def shapes(case, folder):
    shape = ModelShape.parse(case)
    assert ModelShape.parse(str(shape)) == shape


def specs(case, folder):
    run = Run(**case)
    assert Run(**json.loads(json.dumps(run.model_dump()))).key == run.key


def configs(case, folder):
    (folder / "config.json").write_text(case if isinstance(case, str) else json.dumps(case))
    price(folder)


def advice(case, folder):
    """A configuration, and what advice is asked for."""
    (folder / "config.json").write_text(json.dumps(case["config"]))
    with Store(":memory:") as store:
        suggest(folder, store=store, **{name: value for name, value in case.items() if name != "config"}).as_dict()


def checkpoints(case, folder):
    """A configuration, the names and sizes of tensors, and where an index says they are."""
    (folder / "config.json").write_text(json.dumps(case["config"]))
    try:
        save_file({name: torch.zeros(size) for name, size in case["tensors"].items()}, folder / "model.safetensors")
    except (TypeError, RuntimeError, AttributeError):  # no file can say that
        return
    if "weight_map" in case:
        (folder / "model.safetensors").rename(folder / "one.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": case["weight_map"]}))
    opened = open_checkpoint(folder)
    for number in range(min(len(opened.layers), 3)):
        opened.heads(number)


def texts(case, folder):
    """A published table of labelled texts."""
    (folder / "train.tsv").write_bytes(case.encode("latin-1", "replace"))
    list(table_rows(folder / "train.tsv"))


def tables(case, folder):
    (folder / "runs.csv").write_bytes(case.encode("latin-1", "replace"))
    compare_table(folder / "runs.csv").as_dict()


def safetensors(case, folder):
    """A header, and how many bytes follow it."""
    header = case["header"] if isinstance(case["header"], str) else json.dumps(case["header"])
    length = case.get("length", len(header.encode()))
    data = struct.pack("<Q", length) + header.encode() + bytes(case.get("bytes", 0))
    (folder / "model.safetensors").write_bytes(data)
    weights = open_weights(folder)
    for name in weights:
        weights.stored(name)


def parquet(case, folder):
    """Changes of the columns of one exported row."""
    file = folder / "runs.parquet"
    with Store(":memory:") as store:
        store.add(make_run(), make_result(make_run()))
        store.export(file)
    row = pl.read_parquet(file).to_dicts()[0]
    try:
        pl.DataFrame([row | case], strict=False).write_parquet(file)
    except pl.exceptions.PolarsError:  # no file can say that
        return
    with Store.from_files(file) as read:
        list(read.runs())
        read.frame()


def commands(case, folder):
    """Words of a command line; FOLDER stands for a folder that has nothing but a pipe nobody writes to."""
    os.mkfifo(folder / "pipe")
    words = [word.replace("FOLDER", str(folder)) for word in case]
    words = [word for word in words if "\0" not in word]  # which no system passes on
    done = headwise(*words, check=False, cwd=folder, HEADWISE_STORE=str(folder / "runs.db"))
    assert done.returncode in (0, 1, 2)
    assert done.returncode != 2 or done.stderr.strip()
    assert "Traceback" not in done.stderr + done.stdout


TARGETS = (shapes, specs, configs, advice, checkpoints, tables, texts, safetensors, parquet, commands)
TARGETS = {one.__name__: one for one in TARGETS}


@cache
def corpus(name):
    return json.loads((CORPUS / f"{name}.json").read_text())


def attack(name, case, folder):
    """One sentence is an answer; anything else is a finding."""
    try:
        TARGETS[name](case, folder)
    except SpecError as error:
        if not str(error).strip():
            raise AssertionError("no sentence") from error


def find(name, chance):
    """A new case: one of the corpus with something changed."""
    case = chance.choice(corpus(name))
    if name == "safetensors":
        return case | {"header": _changed(case["header"], chance), "bytes": chance.choice([0, 4, 15, 16, 17])}
    if name == "advice":  # what is asked for are words of Python, which the command line checks
        return case | {"config": _changed(case["config"], chance)}
    if name == "checkpoints":  # its keys are the target's own
        key = chance.choice(sorted(case))
        return case | {key: _changed(case[key], chance)}
    changed = _changed(case, chance)
    return changed if isinstance(changed, type(case)) else case


def _changed(value, chance):
    if isinstance(value, str):
        return _text(value, chance)
    if isinstance(value, dict) and value:
        key = chance.choice(sorted(value))
        change = chance.choice(["drop", "odd", "inside", "inside", "rename"])
        rest = {name: one for name, one in value.items() if name != key}
        if change == "drop":
            return rest
        if change == "rename":
            return rest | {_text(key, chance): value[key]}
        return value | {key: chance.choice(ODD) if change == "odd" else _changed(value[key], chance)}
    if isinstance(value, list) and value:
        at = chance.randrange(len(value))
        return [*value[:at], _changed(value[at], chance), *value[at + 1 :]]
    return chance.choice(ODD)


def _text(text, chance):
    at = chance.randrange(len(text) + 1)
    insert = chance.choice([*string.printable, "é", "\ufeff", "-1", "0", "99999999999", "[/]", ",", "x", "../"])
    change = chance.choice(["insert", "delete", "double", "replace"])
    if change == "delete":
        return text[:at] + text[at + 1 :]
    if change == "double":
        return text[:at] + text[max(0, at - 4) : at] + text[at:]
    return text[:at] + insert + text[at + (change == "replace") :]


def attack_for(name, cases, folder, seed=0):
    """Many new cases; the first finding is raised with its case."""
    chance = random.Random(f"{name} {seed}")
    for number in range(cases):
        case = find(name, chance)
        place = folder / f"{name}-{number}"
        place.mkdir()
        try:
            attack(name, case, place)
        except Exception as error:
            raise AssertionError(f"{name}: {json.dumps(case)[:2000]}") from error
