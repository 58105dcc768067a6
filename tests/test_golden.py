"""What was published stays: every verdict of the committed rows, and the key of every run that a study asks for."""

import pytest

from headwise.store.store import Store
from helpers import golden


def test_every_verdict_is_what_was_committed():
    found, wanted = golden.ledger(), golden.read("ledger.json")
    assert list(found) == list(wanted)
    for claim, pinned in wanted.items():
        for name, value in pinned.items():
            same = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            assert found[claim][name] == same, f"{claim}: {name}"


QUOTING = [golden.ROOT / "README.md", *sorted((golden.ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", QUOTING, ids=lambda path: path.name)
def test_what_docs_quote_is_what_the_ledger_says(path):
    assert golden.misquoted(path.read_text(), golden.claims()) == []


def test_quotes_that_differ_are_found():
    one = {"metric": "test error", "unit": "ratio", "direction": "lower", "margin": 0.03, "exact": False}
    numbers = {"difference": {"estimate": 0.033, "low": 0.026, "high": 0.04}, "verdict": "fails"}
    ledger = [{"id": "L6", "verdict": "fails", "comparisons": [one | numbers]}]
    right = "+3.3 % [+2.6 %,\n+4.0 %]<!-- L6 -->, or +3.3 %<!-- L6 -->: it fails<!-- L6 -->, L6 fails and L6 is tested"
    assert golden.misquoted(right, ledger) == []
    for wrong in (
        "+3.4 %<!-- L6 -->",
        "13.3 %<!-- L6 -->",
        "+3.3 %<!-- L7 -->",
        "holds<!-- L6 -->",
        "L6 holds",
        "L6 is open",
    ):
        assert golden.misquoted(wrong, ledger), wrong


def test_every_preset_asks_for_the_runs_it_asked_for():
    assert golden.keys() == golden.read("keys.json")


def test_committed_rows_have_the_keys_of_their_specs():
    with Store.from_files(golden.RESULTS) as store:
        pairs = list(store.runs())
    assert len(pairs) > 1000
    assert [run.key for run, _ in pairs] == [result.key for _, result in pairs]
