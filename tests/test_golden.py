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


def test_every_preset_asks_for_the_runs_it_asked_for():
    assert golden.keys() == golden.read("keys.json")


def test_committed_rows_have_the_keys_of_their_specs():
    with Store.from_parquet(golden.RESULTS) as store:
        pairs = list(store.runs())
    assert len(pairs) > 1000
    assert [run.key for run, _ in pairs] == [result.key for _, result in pairs]
