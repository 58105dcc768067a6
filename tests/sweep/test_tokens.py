"""A run's tokens, asked for without torch: what was said once is read again, and nothing else is believed."""

import os
import subprocess
import sys

import pytest

from headwise.sweep.tokens import _read

ASK = """
import sys
from headwise.options import preset
from headwise.sweep.tokens import sample_tokens
from headwise.training.run import Run

text = Run(task={"name": "text", "context": 48}, shape="w8-h2", options=preset("gpt2", vocab=256, context=48), steps=1)
points = Run(task={"name": "nearest-neighbor", "points": 11}, shape="w8-h2", steps=1)
print(sample_tokens(text), sample_tokens(points), "torch" in sys.modules)
"""


def asked(cache):
    """What a new process says, and whether it loaded torch for that."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HEADWISE_CACHE": str(cache)},
    )
    return done.stdout.split()


def test_a_task_is_asked_once(tmp_path):
    """Eleven points, and the one that is asked about is among them."""
    assert asked(tmp_path) == ["48", "11", "True"]
    assert asked(tmp_path) == ["48", "11", "False"]


def test_a_folder_that_cannot_be_written_to_only_means_asking_again(tmp_path):
    (tmp_path / "taken").write_text("")
    assert asked(tmp_path / "taken") == ["48", "11", "True"]


@pytest.mark.parametrize("damage", ["", "[1", "null", '"text"', "[" * 100_000, '{"a": -1, "b": true, "c": "1"}'])
def test_a_damaged_memory_says_nothing(tmp_path, damage):
    (tmp_path / "tokens.json").write_text(damage)
    assert _read(tmp_path / "tokens.json") == {}
