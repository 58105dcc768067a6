"""Runs in processes of this machine: one per core (or GPU), one thread each, longest run first, while memory lasts."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from headwise.sweep.plan import DEATHS, STALLED_SECONDS, ResultStore, Summary, SweepPlan, Watch, memory, record
from headwise.sweep.processes import worker_context
from headwise.training.resume import DiskError
from headwise.training.run import Run, RunResult

MEMORY_SHARE = 0.8  # of the machine's, for all runs together
TICK_SECONDS = 0.25


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    core: int
    run: Run | None = None
    heard: float = 0.0


def sweep(
    plan: SweepPlan,
    store: ResultStore,
    *,
    checkpoints: Path,
    workers: int = 0,
    weights: Path | None = None,
    watch: Watch | None = None,
    checkpoint_seconds: float = 20.0,
    stalled_seconds: float = STALLED_SECONDS,
) -> Summary:
    """Do every run of the plan; each result is in the store before the next run starts in its place."""
    pool = _Pool(plan, store, checkpoints, workers, weights, watch or Watch(), checkpoint_seconds, stalled_seconds)
    try:
        return pool.work()
    finally:
        pool.close()


class _Pool:
    def __init__(
        self,
        plan: SweepPlan,
        store: ResultStore,
        checkpoints: Path,
        workers: int,
        weights: Path | None,
        watch: Watch,
        checkpoint_seconds: float,
        stalled_seconds: float,
    ) -> None:
        self.store, self.watch, self.stalled_seconds = store, watch, stalled_seconds
        self.queue = list(plan.todo)
        self.arguments = (str(checkpoints), checkpoint_seconds, str(weights) if weights else None)
        self.summary = Summary(planned=len(plan.todo) + len(plan.found), found=len(plan.found))
        self.deaths: dict[str, int] = {}
        self.stopping = 0
        self.context = worker_context()
        self.count = max(1, min(workers or usable_cores(), len(self.queue)))
        self.workers = [self._start(core) for core in range(self.count)] if self.queue else []

    def work(self) -> Summary:
        self._fill()
        while any(worker.run for worker in self.workers):
            self._answer_stop()
            watched = {worker.pipe: worker for worker in self.workers} | {
                worker.process.sentinel: worker for worker in self.workers
            }
            ready = wait(list(watched), timeout=TICK_SECONDS)
            for worker in {id(worker): worker for worker in (watched[one] for one in ready)}.values():
                self._hear(worker)
            self._end_stalled()
            self._fill()
        return self.summary

    def close(self) -> None:
        for worker in self.workers:
            self._end(worker)

    # ---- scheduling --------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Give every idle worker the longest run that fits the memory left; a run too large waits to be alone."""
        for worker in self.workers:
            busy = [other.run for other in self.workers if other.run]
            if worker.run or self.stopping or not self.queue:
                continue
            room = MEMORY_SHARE * total_memory() - sum(memory(run) for run in busy)
            fitting = next((run for run in self.queue if memory(run) <= room), None)
            run = fitting or (None if busy else self.queue[0])
            if run is not None:
                self.queue.remove(run)
                self._give(worker, run)

    def _give(self, worker: _Worker, run: Run) -> None:
        worker.run, worker.heard = run, time.monotonic()
        self.watch.on_start(run)
        try:
            worker.pipe.send(run.model_dump())
        except OSError:
            self._bury(worker)

    # ---- messages ----------------------------------------------------------------------------------------------

    def _hear(self, worker: _Worker) -> None:
        try:
            while worker.run and worker.pipe.poll():
                self._take(worker, *worker.pipe.recv())
        except (EOFError, OSError):
            pass
        if not worker.process.is_alive():
            self._bury(worker)

    def _take(self, worker: _Worker, kind: str, content: Any) -> None:
        run = worker.run
        assert run is not None
        worker.heard = time.monotonic()
        if kind == "step":
            return self.watch.on_step(run, content)
        if kind == "points":
            return self.watch.on_points(run, content)
        worker.run = None
        if kind == "result":
            return self._record(run, RunResult(**content))
        if kind == "disk":
            raise DiskError(content)
        if self.stopping:
            self.summary.stopped += 1
        else:
            self.queue.insert(0, run)

    def _record(self, run: Run, result: RunResult) -> None:
        record(run, result, self.store, self.summary, self.watch)

    def _bury(self, worker: _Worker) -> None:
        """A worker died: another takes its place and resumes the run from its checkpoint."""
        run, worker.run = worker.run, None
        worker.process.join()
        code = worker.process.exitcode
        self.workers[self.workers.index(worker)] = self._start(worker.core)
        if run is None:
            return
        self.deaths[run.key] = self.deaths.get(run.key, 0) + 1
        self.summary.restarts += 1
        if self.deaths[run.key] >= DEATHS:
            message = f"its process died {DEATHS} times, last with {_exit_text(code)}"
            self._record(run, RunResult(run.key, "failed", message=message))
        else:
            self.queue.insert(0, run)

    def _end_stalled(self) -> None:
        for worker in list(self.workers):
            if worker.run and time.monotonic() - worker.heard > self.stalled_seconds:
                run, worker.run = worker.run, None
                worker.process.kill()
                self._bury(worker)
                message = f"no step in {self.stalled_seconds:g} seconds"
                self._record(run, RunResult(run.key, "failed", message=message))

    # ---- stopping ----------------------------------------------------------------------------------------------

    def _answer_stop(self) -> None:
        asked = self.watch.stop_asked()
        if asked > self.stopping:
            self.stopping = asked
            for worker in self.workers:
                if not worker.run:
                    continue
                if asked == 1:
                    worker.pipe.send(None)  # any message stops a run; this one also ends the worker
                else:
                    worker.process.kill()
                    self.summary.stopped += 1
                    worker.run = None

    def _start(self, core: int) -> _Worker:
        from headwise.sweep.worker import serve

        ours, theirs = self.context.Pipe()
        pinned = core if self.count > 1 and self.count <= (os.cpu_count() or 1) else None
        process = self.context.Process(target=serve, args=(theirs, *self.arguments, pinned), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, core)

    def _end(self, worker: _Worker) -> None:
        with suppress(OSError):
            worker.pipe.send(None)
        worker.pipe.close()
        worker.process.join(timeout=2)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def usable_cores() -> int:
    """GPUs where there are some, else the cores this process may use."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 * 2**30


def _exit_text(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
