"""The soak itself: whatever its time, each kind of work is begun, and what it has done is in its table."""

import json
import os
import subprocess
import sys

import pytest

from soak.table import WORKS


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_a_short_soak_loses_nothing(tmp_path):
    pytest.importorskip("transformers")
    works = [work for work in WORKS if "ray" not in work]
    words = ["--minutes", "1", "--folder", str(tmp_path), "--works", ",".join(works)]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-m", "soak", *words], env=os.environ | path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads((tmp_path / "table.json").read_text())
    assert all(number == 0 for number in table["outcome"].values())
    assert "SIGKILL to a worker" in done.stdout
