"""The store's runs in a terminal of 80 columns: the table, the card of one run, the command that repeats it."""

import json
import math
import shlex

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from headwise.report.runs import _folded, rerun_command, run_card, runs_table, spark
from headwise.shown import Shown
from headwise.store.listing import RunList, StoredRun
from headwise.training.run import Run, RunResult
from helpers.runs import make_result, make_run
from helpers.strategies import pairs

NAN, INF = math.nan, math.inf


def printed(*parts):
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get()


@given(st.lists(pairs(), max_size=3), st.sampled_from([None, 0, 2]))
@settings(max_examples=25)
def test_a_list_in_pieces_is_the_same_json(stored, indent):
    listed = RunList(tuple(StoredRun(*pair) for pair in stored), len(stored), 6)
    assert listed.to_json(indent) == Shown.to_json(listed, indent)


@given(st.lists(pairs(), max_size=4))
@settings(max_examples=25)
def test_any_runs_print_in_80_columns(results):
    stored = [StoredRun(run, result) for run, result in results]
    lines = printed(runs_table(stored, 16)).splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    for one in stored:
        assert rerun_key(rerun_command(one.run)) == rerun_key(_folded(one.run)) == one.run.key
        assert printed(*run_card(one))


def rerun_key(command):
    program, verb, spec = shlex.split(command)
    assert (program, verb) == ("headwise", "train")
    return Run(**json.loads(spec)).key


def test_runs_make_a_table():
    assert "No runs" in printed(runs_table([], 16))
    done, failed = make_run(0), make_run(1, shape="w1024-h16x4,8x4-c128-p32")
    message = "Traceback\nValueError: odd"
    stored = [StoredRun(done, make_result(done)), StoredRun(failed, RunResult(failed.key, "failed", message=message))]
    text = printed(runs_table(stored, 16))
    assert all(word in text for word in ("key", "status", "shape", "error", "0.5", "ValueError: o", done.key[:6]))
    assert "Traceback" not in text


def test_a_card_tells_all_about_a_run():
    run = make_run(probes=("qk-rank",))
    result = make_result(run, "diverged", message="loss [red] was nan", environment={"torch": "2.6"}, kernel="flash")
    text = printed(*run_card(StoredRun(run, result)))
    for word in (run.key, "diverged", "[red]", "error", "1 → 0.5", "learning_rate 0.01", "qk-rank", "flash", "torch"):
        assert word in text, word
    command = text[text.index("headwise train") :]
    assert rerun_key(command) == run.key


def test_a_card_says_when_the_key_is_of_another_version():
    run = make_run()
    card = run_card(StoredRun(run, RunResult("0" * 16, "done")))
    assert f"another key, {run.key}" in " ".join(printed(*card).split())


def test_a_spark_shows_what_is_not_finite():
    assert spark([0.0, 1.0, NAN, INF]) == "▁█××"
    assert spark([2.0, 2.0]) == "▁▁"
    assert len(spark(range(1000))) == 40
