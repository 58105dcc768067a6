"""Rounds on a Ray cluster of this machine's processes: its workers, nodes and head are killed while a study runs."""

import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from helpers.clusters import local_cluster
from soak.faults import TO_DRIVER, kill
from soak.processes import send
from soak.rounds import STUDY, Round, end_all

NAME = "study run --ray"
WORKER, NODE, HEAD = "SIGKILL to a Ray worker", "SIGKILL to a Ray node", "SIGKILL to a Ray head"
FAULTS = {WORKER: 4, NODE: 2, TO_DRIVER: 1}  # and how often one is made of seven; each cluster ends with its head
FAULTS_A_CLUSTER = (3, 8)
LOOKS, LOOK_SECONDS = 600, 0.2


class RayRound(Round):
    """One driver on a cluster; where the head dies, the same command goes on without."""

    def __init__(self, expected, folder, chance, address):
        self.address = address
        super().__init__("study run", expected, folder, 1, chance)

    def words(self, work=""):
        return (*STUDY, "--ray", self.address)

    def on_cluster(self, cluster):
        node = _added(cluster)
        for _ in range(self.chance.randint(*FAULTS_A_CLUSTER)):
            if node is None or not self._wait_for_task():
                return
            (fault,) = self.chance.choices(list(FAULTS), list(FAULTS.values()))
            time.sleep(self.chance.uniform(0.0, 2.0))
            if fault == WORKER:
                self.counts[fault] += self._kill_worker()
            elif fault == NODE:
                cluster.remove_node(node, allow_graceful=False)
                node = _added(cluster)
                self.counts[fault] += 1
            else:
                self.counts[fault] += kill("driver")(self.drivers, self.chance)
            self._look()
        if self._wait_for_task():
            cluster.head_node.kill_gcs_server()
            self.counts[HEAD] += 1
            time.sleep(self.chance.uniform(0.0, 2.0))

    def _kill_worker(self):
        workers = _ray_workers()
        return bool(workers) and send(self.chance.choice(workers), signal.SIGKILL)

    def _wait_for_task(self):
        for _ in range(LOOKS):
            self.drivers.restart()
            if not self.drivers.running or _ray_workers():
                return bool(self.drivers.running)
            time.sleep(LOOK_SECONDS)
        return False


def _added(cluster):
    """Another node; None where the machine is too busy for one to start: the rest is done without the cluster."""
    with suppress(Exception):  # Ray's own
        return cluster.add_node(num_cpus=1)
    return None


def one_round(table, expected, folder, chance):
    try:
        import ray  # noqa: F401
    except ImportError:
        return table.not_made("kills of Ray workers, nodes and head", "Ray is not installed")
    one = None
    try:
        with ExitStack() as stack:
            try:
                cluster = stack.enter_context(local_cluster())
            except Exception as error:  # Ray's own, where the machine is too busy or the soak was stopped
                return table.say(f"no Ray cluster this time: {str(error)[:200]}")
            one = RayRound(expected, folder, chance, cluster.address)
            one.on_cluster(cluster)
        one.drivers.end()
        one.drivers.words = list(map(str, STUDY))  # the rest without a cluster
        one.drivers.running = [one.drivers.start()]
        one._wait_until_ended()
        return table.add(NAME, one.counts, one.verdict(), len(expected))
    finally:
        if one is not None:
            end_all(one)


def _ray_workers():
    """Ray names a worker process after the task it does."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"run " in (words := (folder / "cmdline").read_bytes()) and words.startswith(b"ray::"):
                found.append(int(folder.name))
    return found
