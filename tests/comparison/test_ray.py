"""A comparison on a real Ray cluster of two nodes, one of which is killed in the middle."""

from contextlib import contextmanager

import pytest

import headwise as hw
from headwise.shown import finite
from headwise.sweep.plan import Watch
from helpers.clusters import local_cluster
from helpers.runs import slow_task

BASE, OTHER = "w8-h2-m16", "w8-h4-m16"
TIMED = ("tokens_per_second", "seconds", "seconds_to_base", "speed_up")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_node_dies_and_the_answer_is_that_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, released = slow_task(tmp_path)
    asked = {"task": "slow.py,dim=8,points=6", "base": BASE, "variants": [OTHER], "steps": 60, "seeds": 3}
    asked |= {"learning_rates": "0.004,0.03", "batch_size": 64, "workers": 2}
    released.touch()
    here = hw.compare(**asked, store="here.db")
    killed = []
    with local_cluster() as cluster:
        node = cluster.add_node(num_cpus=1)

        @contextmanager
        def watching(runs, stage):
            """Finalists are slow until both nodes have one on the way, and one node is gone."""
            steps = {}
            if "finalists" in stage:
                released.unlink()

            def step(run, number):
                steps[run.key] = number
                if not killed and not released.exists() and sum(map(bool, steps.values())) == 2:
                    cluster.remove_node(node, allow_graceful=False)
                    killed.append(stage)
                    released.touch()

            yield Watch(on_step=step)

        there = hw.compare(**asked, store="there.db", ray=cluster.address, watching=watching)
    assert killed
    assert there.summary.restarts >= 1
    assert (there.summary.failed, there.summary.trained) == (0, here.summary.trained)
    assert (there.verdict, there.winner, there.rerun) == (
        here.verdict,
        here.winner,
        here.rerun.replace("here", "there"),
    )
    told = [[finite({**row, **dict.fromkeys(TIMED)}) for row in answer.variants] for answer in (there, here)]
    assert told[0] == told[1]
