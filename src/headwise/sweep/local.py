"""Runs in processes of this machine: one per core (or GPU), one thread each, longest run first, while memory lasts."""

import math
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from headwise.sweep.plan import DEATHS, STALLED_SECONDS, ResultStore, Summary, SweepPlan, Watch, memory, record
from headwise.sweep.processes import SERVER_GONE, Worker, start, worker_context
from headwise.sweep.sharing import Sharing
from headwise.training.machine import Awake
from headwise.training.resume import DiskError
from headwise.training.run import Run, RunResult

MEMORY_SHARE = 0.8  # of the machine's, for all runs together
TICK_SECONDS = 0.25
SERVER_DEATHS = 20  # of the server that workers come from, which is no run's fault


@dataclass
class _Place:
    """One of the places that runs are done in at the same time: a worker, and what it works on."""

    worker: Worker
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
    sharing: Sharing | None = None,
) -> Summary:
    """Do every run of the plan; each result is in the store before the next run starts in its place.

    With `sharing`, runs that another driver is at are waited for, and taken over if it dies.
    """
    settings = (str(checkpoints), checkpoint_seconds, str(weights) if weights else None)
    pool = _Pool(plan, store, settings, workers, watch or Watch(), stalled_seconds, sharing or Sharing())
    try:
        return pool.work()
    finally:
        pool.close()


class _Pool:
    def __init__(
        self,
        plan: SweepPlan,
        store: ResultStore,
        settings: tuple[Any, ...],
        workers: int,
        watch: Watch,
        stalled_seconds: float,
        sharing: Sharing,
    ) -> None:
        self.store, self.watch, self.stalled_seconds, self.sharing = store, watch, stalled_seconds, sharing
        self.queue, self.settings = list(plan.todo), settings
        self.summary = Summary(planned=len(plan.todo) + len(plan.found), found=len(plan.found))
        self.deaths: Counter[tuple[str, bool]] = Counter()  # by the run's key, and whether its server died
        self.stopping, self.clock = 0, Awake()
        self.places: list[_Place] = []
        self.count = max(1, min(workers or usable_cores(), len(self.queue)))
        if self.queue:
            worker_context()
            for core in range(self.count):
                self.places.append(_Place(self._start(core), core))

    def work(self) -> Summary:
        self._fill()
        while any(place.run for place in self.places) or (self.queue and not self.stopping):
            self._answer_stop()
            watched = {place.worker.pipe: place for place in self.places} | {
                place.worker.process.sentinel: place for place in self.places
            }
            ready = wait(list(watched), timeout=TICK_SECONDS)
            for place in {id(place): place for place in (watched[one] for one in ready)}.values():
                self._hear(place)
            self._end_stalled()
            self._keep_leases()
            self._fill()
        return self.summary

    def close(self) -> None:
        for place in self.places:
            place.worker.end()

    # ---- scheduling --------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Give every idle worker the longest run that fits the memory left; a run too large waits to be alone."""
        for place in self.places:
            if place.run or self.stopping or not self.queue:
                continue
            busy = [other.run for other in self.places if other.run]
            room = MEMORY_SHARE * total_memory() - sum(memory(run) for run in busy)
            run = self._next(room) or (None if busy else self._next(math.inf))
            if run is None:
                return
            self._give(place, run)

    def _next(self, room: float) -> Run | None:
        return self.sharing.next(self.queue, lambda run: memory(run) <= room, self.summary, self.watch)

    def _give(self, place: _Place, run: Run) -> None:
        place.run, place.heard = run, self.clock()
        self.watch.on_start(run)
        try:
            place.worker.pipe.send(run.model_dump())
        except OSError:
            self._bury(place)

    def _keep_leases(self) -> None:
        """A run that another driver took over (this one had stopped for a while) is left to it."""
        lost = self.sharing.beat()
        for place in self.places:
            if place.run and place.run.key in lost:
                self.queue.insert(0, self._kill(place))

    # ---- messages ----------------------------------------------------------------------------------------------

    def _hear(self, place: _Place) -> None:
        worker = place.worker
        try:
            while place.run and worker.pipe.poll():
                self._take(place, *worker.pipe.recv())
        except (EOFError, OSError):
            pass
        if not worker.process.is_alive():
            self._bury(place)

    def _take(self, place: _Place, kind: str, content: Any) -> None:
        run = place.run
        assert run is not None
        place.heard = self.clock()
        if kind == "step":
            return self.watch.on_step(run, content)
        if kind == "loss":
            return self.watch.on_loss(run, content)
        if kind == "points":
            return self.watch.on_points(run, content)
        place.run = None
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
        self.sharing.release([run])

    def _bury(self, place: _Place) -> None:
        """A worker died: another takes its place and resumes the run from its checkpoint."""
        place.worker.process.join()
        text, server_died = place.worker.exit_text, place.worker.process.exitcode == SERVER_GONE
        run = self._kill(place)
        if run is None:
            return
        self.deaths[run.key, server_died] += 1
        self.summary.restarts += 1
        if self.deaths[run.key, server_died] >= (SERVER_DEATHS if server_died else DEATHS):
            message = f"its process died {self.deaths[run.key, server_died]} times, last with {text}"
            self._record(run, RunResult(run.key, "failed", message=message))
        else:
            self.queue.insert(0, run)

    def _end_stalled(self) -> None:
        for place in self.places:
            if place.run and self.clock() - place.heard > self.stalled_seconds:
                run = self._kill(place)
                message = f"no step in {self.stalled_seconds:g} seconds"
                self._record(run, RunResult(run.key, "failed", message=message))

    def _kill(self, place: _Place) -> Any:
        """End a worker at once, start another in its place, and give the run that it was at, if it was."""
        run, place.run = place.run, None
        place.worker.kill()
        place.worker = self._start(place.core)
        return run

    # ---- stopping ----------------------------------------------------------------------------------------------

    def _answer_stop(self) -> None:
        asked = self.watch.stop_asked()
        if asked > self.stopping:
            self.stopping = asked
            for place in self.places:
                if not place.run:
                    continue
                if asked == 1:
                    with suppress(OSError):  # it died, which is heard later
                        place.worker.pipe.send(None)  # any message stops a run; this one also ends the worker
                else:
                    self.summary.stopped += 1
                    self._kill(place)

    def _start(self, core: int) -> Worker:
        from headwise.sweep.worker import serve

        pinned = core if self.count > 1 and self.count <= (os.cpu_count() or 1) else None
        return start(serve, *self.settings, pinned)


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
