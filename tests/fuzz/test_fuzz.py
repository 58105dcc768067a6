"""Fuzzers: whatever a user or a stranger's file says, the answer is a result or one sentence.

Each target has a corpus: cases that were found to break something, or that are near to those. `make soak` looks for
more; what it finds is added to `corpus/` with its fix.
"""

import json

import pytest

from fuzz.targets import TARGETS, attack, attack_for, corpus

CASES = [
    pytest.param(name, case, id=f"{name}-{number}-{json.dumps(case)[:40]}")
    for name in TARGETS
    for number, case in enumerate(corpus(name))
]
NEW = {"shapes": 600, "specs": 300, "configs": 150, "advice": 15, "checkpoints": 60, "tables": 50, "texts": 100}
NEW |= {"safetensors": 150, "parquet": 30, "commands": 0}


@pytest.mark.parametrize(("name", "case"), CASES)
def test_what_was_found_is_answered_in_a_sentence(name, case, tmp_path):
    attack(name, case, tmp_path)


@pytest.mark.parametrize("name", [name for name, cases in NEW.items() if cases])
def test_new_cases_near_those_are_answered_in_a_sentence(name, tmp_path):
    attack_for(name, NEW[name], tmp_path)
