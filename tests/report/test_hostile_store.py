"""A store that was made to break the ledger and the page: no verdict by accident, no markup, bounded memory.

Its rows are those that studies ask for, with numbers that are none, and as many more that only look like them.
"""

import json
import os
import subprocess
import sys

import pytest

from headwise.store.store import Store
from helpers import hostile
from helpers.pages import EVIL

MEMORY = 3 * 2**30  # bytes that a command may have: what a store holds is read a part at a time
ROWS = [pytest.param(600, id="600"), pytest.param(100_000, id="100,000", marks=[pytest.mark.slow])]
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({MEMORY}, {MEMORY})); "
LIMITED += "from headwise.cli.app import main; main()"


def command(store, *words):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "HEADWISE_STORE": str(store), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rows", ROWS)
def test_claims_and_the_page_of_a_hostile_store(tmp_path, rows):
    store = hostile.fill(tmp_path / "runs.db", rows)
    claims = command(store, "claims", "--json")
    assert claims.returncode == ("below what is certified: " in claims.stderr), claims.stderr
    for judged in json.loads(claims.stdout):
        sampled = [one for one in judged["comparisons"] if not one["exact"]]
        assert not (sampled and judged["runs"]) or judged["verdict"] in ("open", "cannot tell", "fails"), judged["id"]
    page = command(store, "report", "--out", str(tmp_path / "page.html"))
    assert page.returncode == 0, page.stderr
    written = (tmp_path / "page.html").read_text()
    assert EVIL not in written
    assert "No chart can be drawn" in written
    exports = [["export", str(tmp_path / f"runs.{kind}")] for kind in ("csv", "parquet")]
    for words in (["runs", "--limit", "40"], ["runs", "--json"], *exports):
        assert command(store, *words).returncode == 0, words
    with Store(store) as kept:
        assert kept.count() == rows
