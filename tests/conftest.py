"""Settings for every test: one thread a process, property tests that find the same cases every time."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["HEADWISE_STORE"] = str(Path(tempfile.mkdtemp(prefix="headwise-tests-"), "runs.db"))  # never the user's own

settings.register_profile(
    "headwise",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("headwise")


def pytest_collection_modifyitems(items):
    """Slow tests may take an hour on a loaded machine: what they find must not hang on its speed."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
