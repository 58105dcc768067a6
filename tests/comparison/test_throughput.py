"""Speeds measured in turns, apart from training, with what other processes did meanwhile; clocks and loads invented."""

import itertools
import json
import math

import pytest

from headwise.comparison import throughput as module
from headwise.comparison.throughput import Load, Throughput, in_turns, load, measure, throughput, used_by_others
from helpers.runs import small_run

TWO = [small_run(shape="w8-h2-m16"), small_run(shape="w8-h4-m16")]


def test_variants_take_turns_and_what_happens_meanwhile_meets_all_of_them():
    """A machine that is ten times slower for a while, and a first step after each change that is slower still."""
    now, order = [0.0], []

    def step(name, seconds):
        def one():
            slow = 10 if 40 < len(order) < 60 else 1
            first = not order or order[-1] != name
            order.append(name)
            now[0] += seconds * slow * (3 if first else 1)

        return one

    times = in_turns({"a": step("a", 1.0), "b": step("b", 1.5)}, 100.0, lambda: now[0])
    assert times == {"a": 1.0, "b": 1.5}
    turns = [name for name, _ in itertools.groupby(order)]
    assert turns == ["a", "b"] * (len(turns) // 2)
    assert len(turns) > 2 * module.TURNS


def test_few_turns_are_enough_where_steps_are_long():
    done = []
    in_turns({"a": lambda: done.append("a")}, 0.0)
    assert len(done) == module.TURNS * module.STEPS


def test_the_load_of_others_is_what_this_process_did_not_use():
    before, after = Load(100.0, 10.0, 50.0), Load(109.0, 13.0, 54.0)
    assert used_by_others(before, after, cores=2) == pytest.approx((9 - 3) / (2 * 4))
    assert used_by_others(before, Load(102.0, 13.0, 54.0), cores=2) == 0  # clocks of different grain


def test_the_systems_own_count_is_read(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 9999 8888 1 2 40 5 6\ncpu0 1 2 3\n")
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    assert load(stat).busy == pytest.approx((100 + 20 + 30 + 1 + 2 + 40) / 100)
    unknown = load(tmp_path / "none")
    assert math.isnan(unknown.busy)
    monkeypatch.setattr("os.getloadavg", lambda: (5.0, 0.0, 0.0), raising=False)
    assert used_by_others(unknown, unknown, cores=8) == 0.5


def test_a_noisy_measurement_is_made_again_and_a_quiet_one_kept(tmp_path, monkeypatch):
    measured = iter([0.4, 0.02])
    calls = []

    def apart(runs):
        calls.append([run.shape for run in runs])
        return Throughput(step_seconds={run.shape: 0.1 for run in runs}, others=next(measured))

    monkeypatch.setattr(module, "_measure_apart", apart)
    noisy = throughput(TWO, tmp_path)
    assert not noisy.quiet
    assert "other processes used 40% of the cores" in noisy.in_words("headwise compare --task x")
    assert "headwise compare --task x" in noisy.in_words("headwise compare --task x")
    quiet = throughput(TWO, tmp_path)
    assert quiet.quiet
    longer = [run.replace(steps=999, seed=3, recipe=run.recipe.replace(learning_rate=0.5)) for run in TWO]
    assert throughput(longer[::-1], tmp_path) == quiet  # neither changes how long a step takes
    assert calls == [["w8-h2-m16", "w8-h4-m16"]] * 2
    (file,) = (tmp_path / "compare").iterdir()
    assert json.loads(file.read_text())["others"] == 0.02


def test_steps_of_real_runs_and_what_cannot_be_run():
    found = measure([run.replace(steps=10**9) for run in TWO], 0.0)
    assert set(found.step_seconds) == {"w8-h2-m16", "w8-h4-m16"}
    assert all(seconds > 0 for seconds in found.step_seconds.values())
    astray = measure([TWO[0].replace(shape="w9-h3")], 0.0)
    assert not astray.quiet
    assert "it could not be measured here (" in astray.in_words("")
