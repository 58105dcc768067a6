"""Tables of finished runs, as people keep them."""

import json
import math

import pandas as pd
import polars as pl
import pytest

import headwise as hw
from headwise.comparison.judge import rank_variants
from headwise.comparison.tables import read_table
from headwise.spec import SpecError
from helpers.commands import as_json, headwise

RECORDS = [
    {"Model": name, "Seed": seed, "Val Loss": loss + 0.01 * seed + 0.003 * (seed * len(name) % 3), "KV cache": cache}
    for name, loss, cache in (("wide", 1.0, 512), ("thinner", 0.8, 128))
    for seed in range(3)
]


def written(folder, text, name="runs.csv"):
    (folder / name).write_text(text)
    return folder / name


def as_text(separator):
    lines = [separator.join(map(str, record.values())) for record in RECORDS]
    return "\n".join([separator.join(RECORDS[0]), *lines, ""])


def test_all_formats_say_the_same(tmp_path):
    lines = "\n".join(json.dumps(record) for record in RECORDS)
    files = [written(tmp_path, as_text(",")), written(tmp_path, as_text("\t"), "runs.tsv")]
    files += [
        written(tmp_path, "\ufeff" + as_text(";"), "semicolons.csv"),
        written(tmp_path, as_text("\t"), "tabs.txt"),
    ]
    files += [written(tmp_path, lines, "runs.jsonl"), written(tmp_path, json.dumps(RECORDS), "runs.json")]
    pl.DataFrame(RECORDS).write_parquet(tmp_path / "runs.parquet")
    first = hw.compare_table(files[0])
    assert (first.winner, first.decided, first.metric) == ("thinner", True, "Val Loss")
    assert (first.extra_columns, first.ranking.seeds, first.notices) == (["KV cache"], (0, 1, 2), [])
    assert [variant["KV cache"] for variant in first.variants] == [512, 128]
    for source in (*files, tmp_path / "runs.parquet", pl.DataFrame(RECORDS), pd.DataFrame(RECORDS)):
        assert hw.compare_table(source).as_dict() == first.as_dict()


def test_any_columns_can_name_a_variant(tmp_path):
    lines = [
        f"{heads},{share},{seed},{1 / heads + share + 0.1 * seed}"
        for heads in (2, 4)
        for share in (1, 2)
        for seed in (0, 1)
    ]
    file = written(tmp_path, "\n".join(["Heads,KV heads,seed,bpb", *lines]))
    with pytest.raises(
        SpecError, match=r"Heads, KV heads, seed, bpb: name one or more with --arm-columns.*Heads,KV heads"
    ):
        read_table(file)
    table = read_table(file, arm_columns=["heads", "kv_heads"])
    assert table.arms == ["Heads", "KV heads"]
    assert table.variants == [f"Heads={heads} KV_heads={share}" for heads in (2, 4) for share in (1, 2)]
    assert table.variant("4,1") == table.variant("Heads=4, KV_heads=1") == table.variants[2]
    assert table.variant("") == table.variants[0]
    with pytest.raises(SpecError, match="the variants are Heads=2"):
        table.variant("8,1")
    said = as_json("compare", "--from", str(file), "--arm-columns", "heads,kv_heads", "--base", "2,2", cwd=tmp_path)
    assert (said["base"], said["winner"]) == ("Heads=2 KV_heads=2", "Heads=4 KV_heads=1")
    with pytest.raises(SpecError, match="no column 'depth'; it has Heads"):
        read_table(file, arm_columns=["depth"])


def test_without_seeds_runs_are_not_paired(tmp_path):
    table = read_table(written(tmp_path, "variant,loss\na,1\na,2\nb,3\nb,4\nb,5\n"))
    assert not table.paired
    assert [row.seed for row in table.rows] == [0, 1, 0, 1, 2]
    table = read_table(written(tmp_path, "arm,run,loss\na,x1,1\na,x2,2\nb,x3,3\nb,x4,4\n"))
    assert (table.paired, len(table.notices)) == (False, 1)
    assert "no two variants have the same run" in table.notices[0]
    table = read_table(written(tmp_path, "arm,run,loss\na,first,1\na,second,2\nb,second,3\nb,first,4\n"))
    assert (table.paired, [row.seed for row in table.rows]) == (True, [0, 1, 1, 0])


@pytest.mark.parametrize(
    ("header", "metric"),
    [
        ("train_loss,val_loss", "val_loss"),
        ("steps,valLoss", "valLoss"),
        ("params,Test accuracy (%)", "Test accuracy (%)"),
        ("metric,loss", "metric"),
        ("notes,quality", "quality"),
    ],
)
def test_the_only_column_that_can_be_meant_is_judged(tmp_path, header, metric):
    one, other = ("x", "3") if header.startswith("notes") else ("1", "3")
    file = written(tmp_path, f"arm,seed,{header}\na,0,{one},{other}\n")
    assert read_table(file).metric == metric


@pytest.mark.parametrize(
    ("column", "numbers"),
    [
        (["71.3%", "70 %"], [71.3, 70.0]),
        (["1,234,567", "2,000"], [1234567.0, 2000.0]),
        (["1,234.5", "900.5"], [1234.5, 900.5]),
        (["0,31", "3,142"], [0.31, 3.142]),
        (["1 234", "12_000"], [1234.0, 12000.0]),
        (["1e-3", ".5"], [0.001, 0.5]),
        (["inf", "-NaN".lstrip("-")], [math.inf, math.inf]),
    ],
)
def test_numbers_as_people_write_them(tmp_path, column, numbers):
    file = written(tmp_path, "arm;seed;loss\n" + "".join(f"a;{seed};{text}\n" for seed, text in enumerate(column)))
    assert [row.metrics["error"] for row in read_table(file).rows] == numbers


def test_what_is_wrong_with_a_line_is_said_with_its_number(tmp_path):
    text = "arm,seed,loss,cache\n\na,0,1.0,5\na,1,1.1,\nb,0,nan,7\nb,1,,8\nb,2,OOM,8\n,3,1.0,8\na,,1.0,8\n"
    table = read_table(written(tmp_path, text))
    assert table.notices == [
        "line 9: seed is empty: left out",
        "line 5: loss is 'nan': counted as diverged",
        "line 6: loss is empty: left out",
        "line 7: loss is 'OOM', not a number: left out",
        "line 8: arm is empty: left out",
    ]
    assert [row.metrics for row in table.rows] == [
        {"error": 1.0, "cache": 5.0},
        {"error": 1.1},
        {"error": math.inf, "cache": 7.0},
    ]
    assert rank_variants(table.rows, "a").arms[1].note == "diverged with seed 0"
    file = str(tmp_path / "runs.csv")
    assert as_json("compare", "--from", file, cwd=tmp_path)["notices"] == table.notices
    shown = headwise("compare", "--from", file, cwd=tmp_path).stdout
    assert shown.index("line 5: loss is 'nan'") < shown.index("P(best)")
    assert "cache" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no runs"),
        ("arm,seed,loss\n", "has no runs"),
        ("x,y\n1,2\n", "has x, y: name one or more with --arm-columns"),
        ("heads,kv heads,loss\n1,2,3\n", "as in --arm-columns 'heads,kv heads'"),
        ("arm,seed,val_loss,accuracy\na,0,1,2\n", "name it with --metric: val_loss, accuracy"),
        ("arm,seed,loss\na,0,high\n", "no line has a number as loss"),
        ("arm,seed,loss\na,0,1.0\nb,0,1.0\na,0,2.0\n", "line 2 and line 4 are the same run twice, a with seed 0"),
        ("arm,seed,lr,loss\na,0,1,1.0\na,0,2,2.0\n", "tells them apart: --arm-columns arm,lr"),
        ("arm,seed,loss\na,0,1,234\n", "line 2 of .* has 4 values and the first line 3 names; put quotes"),
        ("arm,loss,loss\na,0,1\n", "two columns with the name 'loss'"),
        ('arm;seed;loss\na;0;"1,234"\n', "line 2: '1,234' may be 1.234 or 1234"),
        ("arm,seed,acc\na,0,71%\na,1,0.7\n", "line 2 has '71%' and line 3 '0.7'"),
        ('{"arm": "a", "loss": 1}\n{"arm": \n', "line 2 is not JSON"),
        ('[{"arm": "a", "loss": 1}, 3]', "entry 2 is not an object"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, text, said):
    with pytest.raises(SpecError, match=said):
        read_table(written(tmp_path, text))


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and no more")
    for name, said in (("binary.csv", "not text"), ("half.parquet", "cannot read runs"), ("none.csv", "cannot read")):
        with pytest.raises(SpecError, match=said):
            read_table(tmp_path / name)
    with pytest.raises(SpecError, match="no column 'bleu'; it has loss"):
        read_table(written(tmp_path, "arm,seed,loss\na,0,1\n"), "bleu")
