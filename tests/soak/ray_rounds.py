"""Rounds on a Ray cluster of this machine's processes: its workers, nodes and head are killed while a study runs."""

import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from helpers.clusters import local_cluster
from soak.processes import send
from soak.rounds import STUDY, Round, end_all

EVERY = 4  # turns: a cluster takes long to start
FAULTS = NODE, HEAD, WORKER = "SIGKILL to a Ray node", "SIGKILL to a Ray head", "SIGKILL to a Ray worker"


class RayRound(Round):
    """One driver on a cluster; where the head dies, the same command goes on upon a new cluster."""

    def __init__(self, expected, folder, chance, address):
        self.address = address
        super().__init__("study run", expected, folder, 1, chance)

    def words(self, work=""):
        return (*STUDY, "--ray", self.address)


def one_round(table, expected, folder, chance):
    try:
        import ray  # noqa: F401
    except ImportError:
        return table.not_made("kills of Ray nodes and head", "Ray is not installed")
    counts, one = Counter(), None
    try:
        for fault in (chance.choice([NODE, WORKER]), HEAD):
            with local_cluster() as cluster:
                node = cluster.add_node(num_cpus=1)
                if one is None:
                    one = RayRound(expected, folder, chance, cluster.address)
                else:
                    one.address = cluster.address
                    one.drivers.words = list(map(str, one.words()))
                _wait_for(lambda one=one: _ray_workers() or not _running(one))
                time.sleep(chance.uniform(0.0, 2.0))
                counts[fault] += _kill(fault, cluster, node, chance)
                if fault == HEAD:
                    time.sleep(1.0)
                else:
                    one._wait_until_ended()
            one.drivers.end()
            one.drivers.running = []
        one.drivers.words = list(map(str, STUDY))  # the rest without a cluster
        one.drivers.running = [one.drivers.start()]
        one._wait_until_ended()
        table.add("study run --ray", counts, one.verdict(), len(expected))
    finally:
        if one is not None:
            end_all(one)


def _running(one):
    return any(driver.poll() is None for driver in one.drivers.running)


def _kill(fault, cluster, node, chance):
    if fault == NODE:
        cluster.remove_node(node, allow_graceful=False)
        return True
    if fault == HEAD:
        cluster.head_node.kill_gcs_server()
        return True
    workers = _ray_workers()
    return bool(workers) and send(chance.choice(workers), signal.SIGKILL)


def _ray_workers():
    """Ray names a worker process after the task it does."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"run " in (words := (folder / "cmdline").read_bytes()) and words.startswith(b"ray::"):
                found.append(int(folder.name))
    return found


def _wait_for(sign):
    while not sign():
        time.sleep(0.2)
