"""A real Ray cluster in this machine's processes, with nodes that can be added and killed."""

import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager

import pytest


@contextmanager
def local_cluster():
    """With a head node of one core; skipped where Ray is not installed."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="hw", dir="/tmp")  # short: sockets lie in it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "250")  # a busy machine takes its time
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        handler = signal.getsignal(signal.SIGTERM)
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            yield started
        finally:
            sys.modules["ray"].shutdown()
            started.shutdown()
            signal.signal(signal.SIGTERM, handler)
            shutil.rmtree(folder, ignore_errors=True)
