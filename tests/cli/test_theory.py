"""The theory commands as they are typed, in a terminal of 80 columns."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headwise as hw
from headwise.cli.theory import theory_app
from headwise.report.theory import bound_text, count_text, read_counts
from headwise.spec import SpecError
from headwise.theory.bounds import certified_heads, free_bound, scalar_bound
from helpers.commands import as_json, headwise

SMALL = {
    "bound": ["--dim", "8", "--rank", "2", "--heads", "1..4"],
    "heads-needed": ["--dim", "8", "--rank", "1..4", "--error", "0.1"],
    "conditioning": ["--tokens", "16", "--heads", "1..8", "--head-size", "8", "--seeds", "2"],
}


def theory(*words):
    """One of the commands, in this process."""
    return CliRunner().invoke(theory_app, words, env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})


def rows_of(*words):
    done = theory(*words, "--json")
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


def test_the_command_as_it_is_typed():
    found = as_json("theory", "bound", "--dim", "64", "--rank", "8", "--heads", "64")
    assert found["scalar_values"] == pytest.approx(scalar_bound(64, 8, 64))
    wrong = headwise("theory", "heads-needed", "--dim", "8", "--rank", "9", "--error", "0.1", check=False)
    assert wrong.returncode == 2
    assert wrong.stderr == "headwise: rank is 9; it must be between 1 and 8\n"


@pytest.mark.parametrize("command", SMALL)
def test_help_fits_and_shows_an_example(command):
    shown = theory(command, "--help").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert f"Example: headwise theory {command}" in shown


@pytest.mark.parametrize("command", SMALL)
def test_tables_fit_and_say_what_they_assume(command):
    shown = theory(command, *SMALL[command]).stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    said = " ".join(shown.split())
    assert ("independent Gaussian" if command == "conditioning" else "two orthonormal points") in said


def test_bound():
    found = rows_of("bound", "--dim", "64", "--rank", "8", "--heads", "64")
    assert found["scalar_values"] == pytest.approx(scalar_bound(64, 8, 64))
    assert found["free_values"] == pytest.approx(free_bound(64, 8, 64))
    assert "multiple of the identity" in found["hypotheses"]
    rows = rows_of("bound", "--dim", "8", "--rank", "1,4", "--heads", "1..6", "--skip")
    assert [(row["rank"], row["heads"]) for row in rows] == [(r, h) for r in (1, 4) for h in (1, 2, 4, 6)]
    assert rows[-1]["free_values"] == pytest.approx(free_bound(8, 4, 6, skip=True))
    assert "0.1699" in theory("bound", "--dim", "64", "--rank", "8", "--heads", "64").stdout


def test_heads_needed():
    found = rows_of("heads-needed", "--dim", "64", "--rank", "8", "--error", "0.1")
    assert found["scalar_values"] == certified_heads(64, 8, "0.1")
    assert found["free_values"] == certified_heads(64, 8, "0.1", values="free")
    assert isinstance(found["scalar_values"], int)
    shown = theory("heads-needed", "--dim", "64", "--rank", "1", "--error", "0.1").stdout
    assert "23,219,957" in shown
    assert "3,380,656" in shown


def test_numbers_too_long_for_a_table_are_whole_in_json():
    words = ["heads-needed", "--dim", "128", "--rank", "1", "--error", "0.02"]
    assert "2.60 × 10^63" in theory(*words).stdout
    assert rows_of(*words)["scalar_values"] == certified_heads(128, 1, "0.02") > 10**63


def test_conditioning():
    rows = rows_of("conditioning", *SMALL["conditioning"])
    assert [row["columns"] for row in rows] == [8, 16, 32, 64]
    assert rows[1]["predicted"] is None  # as many columns as tokens
    assert rows[3]["predicted"] == pytest.approx(3.0)  # (8 + 4) / (8 - 4)
    assert all(row["low"] <= row["simulated"] <= row["high"] for row in rows)
    assert rows[3]["simulated"] == pytest.approx(3.0, rel=0.35)


@pytest.mark.parametrize("command", SMALL)
def test_charts(command, tmp_path):
    words = [command, *SMALL[command], "--chart", str(tmp_path / "here")]
    rows = rows_of(*words)
    assert sorted(path.suffix for path in (tmp_path / "here").iterdir()) == [".html", ".pdf", ".png", ".svg"]
    assert Path(rows[0]["chart"]).exists()
    svg = (tmp_path / "here" / f"theory-{command}.svg").read_text()
    assert ("Gaussian" if command == "conditioning" else "orthonormal") in svg


def test_ranges():
    assert read_counts("heads", "8") == [8]
    assert read_counts("heads", "1..64") == [1, 2, 4, 8, 16, 32, 64]
    assert read_counts("heads", "3..20") == [3, 6, 12, 20]
    assert read_counts("heads", "16,1..4,1") == [1, 2, 4, 16]
    for wrong in ("", "x", "0", "4..2", "1..", "-1", "1.5", "1,,2"):
        with pytest.raises(SpecError, match="cannot read --heads"):
            read_counts("heads", wrong)


def test_long_numbers():
    assert count_text(1234567) == "1,234,567"
    assert count_text(10**15) == "1.00 × 10^15"
    assert count_text(2 * 10**5000) == "2.00 × 10^5000"
    assert count_text(999_999 * 10**20) == "9.99 × 10^25"  # certified numbers round down


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bound", "--dim", "1", "--rank", "1", "--heads", "1"], "dim is 1"),
        (["bound", "--dim", "8", "--rank", "9", "--heads", "1"], "rank is 9; it must be between 1 and 8"),
        (["bound", "--dim", "8", "--rank", "2", "--heads", "0"], "cannot read --heads '0'"),
        (["heads-needed", "--dim", "8", "--rank", "2", "--error", "-0.1"], "not negative"),
        (["heads-needed", "--dim", "8", "--rank", "2", "--error", "nan"], "must be a number"),
        (["heads-needed", "--dim", "8", "--rank", "2", "--error", "0"], "no number of heads"),
        (["conditioning", "--tokens", "1"], "tokens is 1"),
        (["conditioning", "--seeds", "0"], "seeds is 0"),
        (["conditioning", "--head-size", "0"], "head size is 0"),
        (["bound", "--dim", "8", "--rank", "2", "--heads", f"1{'0' * 301}", "--chart", "x"], "10^300 heads"),
    ],
)
def test_bad_input_is_one_sentence(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = theory(*words)
    assert isinstance(done.exception, SpecError)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_from_python():
    """The same rows as the commands', as a table; numbers that no column can hold are text."""
    result = hw.bound(8, [1, 4], "1..6", skip=True)
    assert result.as_dict() == rows_of("bound", "--dim", "8", "--rank", "1,4", "--heads", "1..6", "--skip")
    assert result.table["heads"].to_list() == [1, 2, 4, 6] * 2
    needed = hw.heads_needed(128, 1, "0.02")
    assert needed.table["scalar_values"].to_list() == ["2.60 × 10^63"]
    assert json.loads(needed.to_json())["scalar_values"] == certified_heads(128, 1, "0.02")
    found = hw.conditioning(16, (1, 8), 8, seeds=2)
    assert found.table["columns"].to_list() == [8, 64]
    assert "<table" in found._repr_html_()
    assert found.chart().to_dict()


@settings(max_examples=300, deadline=None)
@given(st.floats(0.0, 0.5))
@example(0.299)
def test_a_printed_bound_is_a_bound(value):
    assert Decimal(value) - Decimal("0.0001") < Decimal(bound_text(value)) <= Decimal(value)
