"""Somebody's own trainer: what it is told, what comes of runs that fail, and tables of finished ones."""

import math
import sys

import pytest

from headwise.comparison import external
from headwise.comparison.judge import rank_variants
from headwise.comparison.pace import draw_up
from headwise.spec import SpecError
from helpers.comparisons import BASE, OTHER, question


def foreign_run(command="run --heads {heads} --seed {seed} --lr {lr}", file="out-{key}.json", steps=10):
    task = external.command_task(command, file, "metric")
    asked = question(task=task, tokens=0, held_out=(0, 0), steps=steps, seeds=3, arms=(OTHER,))
    plan = draw_up(asked, 1, lambda runs: [0.0] * len(runs))
    return plan.final(plan.arms[0], 0.002, 1)


def test_a_command_is_told_of_the_arm():
    run = foreign_run()
    assert external.filled_in("{shape} {heads} {qk_rank} {depth} {lr} {seed} {steps} ${HOME} {key}", run) == (
        f"{BASE} 4 4 2 0.002 1 10 ${{HOME}} {run.key}"
    )
    for command, file, said in (
        ("run --heads {heads}", "f", "no {seed}"),
        ("run --seed {seed}", "f", "all variants would be the same"),
        ("run {heads} {seed} {dropout}", "f", "{dropout}"),
        ("run {heads} {seed}", "", "--metric-json"),
    ):
        with pytest.raises(SpecError, match=said):
            external.command_task(command, file, "metric")


def test_a_command_that_fails_is_a_row_that_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python = f'"{sys.executable}" -c '
    broken = foreign_run(python + "'print({seed}); raise OSError({heads})'")
    assert external.execute(broken).status == "failed"
    assert "OSError: 4" in external.execute(broken).message
    (tmp_path / "old.json").write_text('{"metric": 1.0}')
    stale = external.execute(foreign_run("true {heads} {seed}", "old.json"))
    assert (stale.status, "wrote no old.json" in stale.message) == ("failed", True)
    wrong = external.execute(foreign_run("echo '[1]' > w.json; true {heads} {seed}", "w.json"))
    assert wrong.status == "failed"
    unnamed = external.execute(foreign_run("echo '{ \"loss\": 1 }' > u.json; true {heads} {seed}", "u.json"))
    assert "no 'metric'" in unnamed.message
    wild = external.execute(foreign_run("echo '{ \"metric\": NaN }' > n.json; true {heads} {seed}", "n.json"))
    assert wild.status == "diverged"


def test_tables_of_finished_runs(tmp_path):
    good = tmp_path / "good.csv"
    good.write_text("arm,seed,loss,seconds\na,0,1.0,5\na,1,1.1,6\nb,0,,7\nb,1,0.5,8\n")
    rows = external.read_rows(good, "loss")
    assert [row.metrics["error"] for row in rows] == [1.0, 1.1, math.inf, 0.5]
    assert rank_variants(rows, "a").arms[1].note == "diverged with seed 0"
    for text, said in (
        ("arm,seed\na,0\n", "no column 'loss'"),
        ("arm,seed,loss\na,0,high\n", "a number as loss"),
        ("arm,seed,loss\na,0,1.0\na,0,2.0\n", "two lines"),
        ("arm,seed,loss\n", "in every line"),
        ("", "cannot read"),
    ):
        bad = tmp_path / "bad.csv"
        bad.write_text(text)
        with pytest.raises(SpecError, match=said):
            external.read_rows(bad, "loss")
    with pytest.raises(SpecError, match="cannot read"):
        external.read_rows(tmp_path / "none.csv", "loss")
