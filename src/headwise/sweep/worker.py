"""What a worker process does: take runs from a pipe, train them, give results back.

A message during a run means stop: checkpoint, and say so. A worker whose driver was killed ends at once (`processes`).
"""

import os
import signal
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from headwise.training import machine
from headwise.training.loop import Interrupted, train_run
from headwise.training.resume import DiskError, place
from headwise.training.run import Run

torch.zeros(1)  # loaded once, in the process that workers are forked from


def serve(pipe: Connection, folder: str, checkpoint_seconds: float, weights: str | None, core: int | None) -> None:
    """Answer with ("loss", x), ("step", n), ("points", list), ("result", dict), ("stopped", text) or ("disk", text)."""
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: terminated.append(number))
    machine.use_one_core()
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    while True:
        try:
            spec = pipe.recv()
        except (EOFError, OSError):
            return
        if spec is None:
            return
        answer = _train(Run(**spec), pipe, folder, checkpoint_seconds, weights, terminated)
        try:
            pipe.send(answer)
        except OSError:  # the driver is gone; the checkpoint is not
            return


def _train(
    run: Run, pipe: Connection, folder: str, checkpoint_seconds: float, weights: str | None, terminated: list[int]
) -> tuple[str, Any]:
    def report(kind: str, content: Any) -> None:
        try:
            pipe.send((kind, content))
        except OSError:
            terminated.append(0)

    try:
        result = train_run(
            run,
            checkpoints=place(folder),
            checkpoint_seconds=checkpoint_seconds,
            keep_weights=place(weights) if weights else None,
            on_step=partial(report, "step"),
            on_points=partial(report, "points"),
            on_loss=partial(report, "loss"),
            should_stop=lambda: bool(terminated) or pipe.poll(),
        )
    except Interrupted as stopped:
        return "stopped", str(stopped)
    except DiskError as error:
        return "disk", str(error)
    return "result", result.as_dict()
