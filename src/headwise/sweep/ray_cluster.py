"""The same plan as tasks of a Ray cluster, with the interface of `local`: `sweep(plan, store, address="auto", ...)`.

Each run is one task, and asks for its threads, GPUs and memory. The driver alone writes the store. It hands out twice
as many runs as the cluster has cores, longest first, so that nodes never wait and an autoscaler sees what is wanted. A
run whose worker or node dies goes on from its checkpoint elsewhere, if all nodes reach the same `checkpoints`: a folder
they share, or a URL that fsspec knows. Tasks and driver talk over a small actor, the board: tasks write how far they
are, with new points of their curves, and read whether to stop. The board lives and dies with the driver; without it a
task checkpoints and ends.

Ray is imported inside functions only: nothing else needs it installed.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.spec import SpecError
from headwise.sweep.plan import DEATHS, STALLED_SECONDS, ResultStore, Summary, SweepPlan, Watch, memory, record
from headwise.sweep.sharing import Sharing
from headwise.training.machine import Awake
from headwise.training.run import Point, Run, RunResult

NODE_DEATHS = 20  # nodes come and go; a run that outlives no node for so long has failed all the same
TICK_SECONDS = 0.25
ASK_SECONDS = 1.0  # between two looks of a task at the board
ANSWER_SECONDS = 10.0
PLACE_SECONDS = 600.0  # how long an autoscaler may take to bring a node that a run fits on


def sweep(
    plan: SweepPlan,
    store: ResultStore,
    *,
    address: str,
    checkpoints: Path | str,
    weights: Path | str | None = None,
    watch: Watch | None = None,
    checkpoint_seconds: float = 20.0,
    stalled_seconds: float = STALLED_SECONDS,
    place_seconds: float = PLACE_SECONDS,
    sharing: Sharing | None = None,
) -> Summary:
    """Do every run of the plan on the cluster at `address`, or on the one this process is connected to already."""
    if not plan.todo:
        return Summary(planned=len(plan.found), found=len(plan.found))
    settings = (_everywhere(checkpoints), checkpoint_seconds, _everywhere(weights) if weights else None)
    with _connected(address):
        seconds = stalled_seconds, place_seconds
        driver = _Driver(plan, store, settings, watch or Watch(), seconds, sharing or Sharing())
        try:
            return driver.work()
        finally:
            driver.close()


def _everywhere(folder: Path | str) -> str:
    """A name that means the same in a task, which starts in another folder."""
    return str(folder) if "://" in str(folder) else str(Path(folder).absolute())


# ---- in the driver -------------------------------------------------------------------------------------------------


@dataclass
class _Flight:
    """A run handed out. `number` tells it from an earlier flight of the same run, whose messages may arrive late."""

    run: Run
    number: int
    step: int = -1  # the last reported; before the first, it may be waiting for a place
    moved: float = 0.0  # when it was reported


class _Driver:
    def __init__(
        self,
        plan: SweepPlan,
        store: ResultStore,
        settings: tuple[Any, ...],
        watch: Watch,
        seconds: tuple[float, float],
        sharing: Sharing,
    ) -> None:
        import ray

        self.ray: Any = ray
        self.store, self.watch, self.sharing = store, watch, sharing
        self.stalled_seconds, self.place_seconds = seconds
        self.queue = list(plan.todo)
        self.flying: dict[Any, _Flight] = {}  # by the reference to what it will give
        self.flights = 0
        self.deaths: Counter[tuple[str, str]] = Counter()
        self.summary = Summary(planned=len(plan.todo) + len(plan.found), found=len(plan.found))
        self.stopping = 0
        self.clock = Awake()
        self.busy = self.clock()
        self.settings = (*settings, _pin_up(ray))
        self.task: Any = ray.remote(max_retries=0)(_train)  # the driver knows better what to do about a death

    def work(self) -> Summary:
        self._fill()
        while self.flying or (self.queue and not self.stopping):
            self._answer_stop()
            self._read_board()
            waiting = list(self.flying)
            if not waiting:  # other drivers are at all that is left
                time.sleep(TICK_SECONDS)
            for reference in (
                self.ray.wait(waiting, num_returns=len(waiting), timeout=TICK_SECONDS)[0] if waiting else ()
            ):
                self._land(reference)
            self._end_stalled()
            self._keep_leases()
            self._check_places()
            self._fill()
        return self.summary

    def close(self) -> None:
        with suppress(self.ray.exceptions.RayError):
            for reference in self.flying:
                self.ray.cancel(reference, force=True)
            self.ray.kill(self.settings[-1])

    # ---- scheduling --------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        if self.stopping or not self.queue:
            return
        room = 2 + 2 * int(self.ray.cluster_resources().get("CPU", 0)) - len(self.flying)
        while room > 0:
            run = self.sharing.next(self.queue, lambda run: True, self.summary, self.watch)
            if run is None:
                return
            room -= 1
            self.flights += 1
            task = self.task.options(**_resources(run), name=f"run {run.key}")
            reference = task.remote(run.model_dump(), run.key, self.flights, *self.settings)
            self.flying[reference] = _Flight(run, self.flights)

    def _landed(self) -> list[Any]:
        """What has ended within a moment; there may be nothing to wait for but other drivers."""
        waiting = list(self.flying)
        if waiting:
            return list(self.ray.wait(waiting, num_returns=len(waiting), timeout=TICK_SECONDS)[0])
        time.sleep(TICK_SECONDS)
        return []

    def _keep_leases(self) -> None:
        """A run that another driver took over (this one had stopped for a while) is left to it."""
        lost = self.sharing.beat()
        for reference, flight in list(self.flying.items()):
            if flight.run.key in lost:
                self._drop(reference)
                self.queue.insert(0, flight.run)

    def _check_places(self) -> None:
        """A run that fits on no node would wait forever; it gets the time that a new node may need."""
        if any(flight.step >= 0 for flight in self.flying.values()):
            self.busy = self.clock()
        elif self.clock() - self.busy > self.place_seconds:
            nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            for run in (flight.run for flight in self.flying.values()):
                needs = _needs(run)
                if not any(all(node.get(what, 0) >= n for what, n in needs.items()) for node in nodes):
                    wanted = ", ".join(f"{n} of {what}" for what, n in needs.items())
                    raise SpecError(f"no node of the cluster has what run {run.key} needs: {wanted}")

    # ---- messages ----------------------------------------------------------------------------------------------

    def _read_board(self) -> None:
        """Say whether to stop, read how far runs are; a board that is being restarted is read next time."""
        news: dict[int, tuple[int, list[Point]]] = {}
        with suppress(self.ray.exceptions.RayError):
            news = self.ray.get(self.settings[-1].read.remote(self.stopping > 0), timeout=ANSWER_SECONDS)
        for flight in self.flying.values():
            step, points = news.get(flight.number, (flight.step, []))
            if step != flight.step:
                if flight.step < 0:
                    self.watch.on_start(flight.run)
                flight.step, flight.moved = step, self.clock()
                self.watch.on_step(flight.run, step)
            if points:
                self.watch.on_points(flight.run, points)

    def _land(self, reference: Any) -> None:
        """A task ended, one way or another."""
        run = self.flying.pop(reference).run
        try:
            data = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SpecError):  # a full disk, another version: it concerns the whole sweep
                raise error.cause from None
            return self._record(run, RunResult(run.key, "failed", message=str(error)))
        except self.ray.exceptions.RayError as error:
            return self._bury(run, error)
        if data is not None:
            self._record(run, RunResult(**data))
        elif self.stopping:
            self.summary.stopped += 1
        else:
            self._bury(run, ConnectionError("it lost touch with the driver"))

    def _record(self, run: Run, result: RunResult) -> None:
        record(run, result, self.store, self.summary, self.watch)
        self.sharing.release([run])

    def _bury(self, run: Run, error: Exception) -> None:
        """A worker or its node died: the run goes on from its checkpoint in another, before all that wait."""
        kind = type(error).__name__
        self.deaths[run.key, kind] += 1
        self.summary.restarts += 1
        if self.stopping:
            self.summary.stopped += 1
        elif self.deaths[run.key, kind] >= (NODE_DEATHS if kind == "NodeDiedError" else DEATHS):
            message = f"its process died {self.deaths[run.key, kind]} times, last with {kind}: {error}"
            self._record(run, RunResult(run.key, "failed", message=message))
        else:
            self.queue.insert(0, run)

    def _end_stalled(self) -> None:
        for reference, flight in list(self.flying.items()):
            if flight.step >= 0 and self.clock() - flight.moved > self.stalled_seconds:
                self._drop(reference)
                message = f"no step in {self.stalled_seconds:g} seconds"
                self._record(flight.run, RunResult(flight.run.key, "failed", message=message))

    # ---- stopping ----------------------------------------------------------------------------------------------

    def _answer_stop(self) -> None:
        """The board asks those that run to checkpoint; those that wait, and all at the second asking, just end."""
        asked = self.watch.stop_asked()
        if asked > self.stopping:
            self.stopping = asked
            for reference, flight in list(self.flying.items()):
                if asked > 1 or flight.step < 0:
                    self._drop(reference)
                    self.summary.stopped += 1

    def _drop(self, reference: Any) -> None:
        del self.flying[reference]
        self.ray.cancel(reference, force=True)


def _needs(run: Run) -> dict[str, int]:
    """What a run asks of a node, in Ray's words; memory is that of the device."""
    execution = run.execution
    needs = {"CPU": execution.threads * execution.devices}
    return needs | ({"GPU": execution.devices} if execution.device == "cuda" else {"memory": memory(run)})


def _resources(run: Run) -> dict[str, int]:
    words = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    return {words[what]: n for what, n in _needs(run).items()}


# ---- in a task -----------------------------------------------------------------------------------------------------


def _train(
    spec: dict[str, Any],
    key: str,
    number: int,
    folder: str,
    checkpoint_seconds: float,
    weights: str | None,
    board: Any,
) -> dict[str, Any] | None:
    """A run's result as plain data; None where it was asked to stop."""
    from headwise.training import machine
    from headwise.training.loop import Interrupted, train_run
    from headwise.training.resume import place

    machine.use_one_core()
    run = Run(**spec)
    if run.key != key:
        node = socket.gethostname()
        raise SpecError(f"node {node} has another version of headwise, which calls run {key} {run.key}: install yours")
    with _Line(board, number) as line, suppress(Interrupted):
        result = train_run(
            run,
            checkpoints=place(folder),
            checkpoint_seconds=checkpoint_seconds,
            keep_weights=place(weights) if weights else None,
            on_step=line.tell,
            on_points=line.points.extend,
            should_stop=line.stop.is_set,
        )
        return result.as_dict()
    return None


class _Line:
    """A task's line to the board, used once a second.

    By a thread of its own: a task that waits for an answer itself lends its core to another task meanwhile.
    """

    def __init__(self, board: Any, number: int) -> None:
        self.board, self.number, self.step = board, number, 0
        self.points: list[Point] = []  # that the board has not heard of
        self.stop, self.ended = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._talk, daemon=True)

    def __enter__(self) -> "_Line":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def tell(self, step: int) -> None:
        self.step = step

    def _talk(self) -> None:
        while not self.stop.is_set():
            if self._stop_asked():
                self.stop.set()
            if self.ended.wait(ASK_SECONDS):
                return

    def _stop_asked(self) -> bool:
        import ray

        points = self.points.copy()
        try:
            stop = bool(ray.get(self.board.write.remote(self.number, self.step, points), timeout=ANSWER_SECONDS))
            del self.points[: len(points)]
            return stop
        except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
            return False  # a busy network; ask again
        except ray.exceptions.RayError:
            return True  # the driver is gone: nobody waits for this run


class _Board:
    """Where tasks write their steps and points, and the driver whether to stop."""

    def __init__(self) -> None:
        self.stop = False
        self.news: dict[int, tuple[int, list[Point]]] = {}  # since it was last read, by a flight's number

    def write(self, number: int, step: int, points: list[Point]) -> bool:
        self.news[number] = step, [*self.news.get(number, (0, []))[1], *points]
        return self.stop

    def read(self, stop: bool) -> dict[int, tuple[int, list[Point]]]:
        news, self.news, self.stop = self.news, {}, stop
        return news


def _pin_up(ray: Any) -> Any:
    """A board on the driver's own node, so that no other node takes it along when it dies."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, max_restarts=-1)(_Board).options(scheduling_strategy=here).remote()


# ---- the cluster ---------------------------------------------------------------------------------------------------


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connected to the cluster; a connection that was there before is used, and stays."""
    try:
        import ray
    except ImportError:
        raise SpecError("Ray is not installed; a cluster needs it: pip install 'headwise[cluster]'") from None
    if ray.is_initialized():
        yield
        return
    _knock(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    with redirect_stdout(sys.stderr):  # Ray tells of dead nodes where documents for scripts are written
        try:
            with _signals_kept():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise _unreachable(address, str(error).strip().partition("\n")[0]) from None
        try:
            yield
        finally:
            ray.shutdown()


def _knock(address: str) -> None:
    """Fail early: where no cluster answers, Ray tries for minutes and prints many lines."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if colon and port.isdecimal() and len(port) < 6:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, str(error)) from None


def _unreachable(address: str, reason: str) -> SpecError:
    return SpecError(f"no Ray cluster answers at '{address}' ({reason}); ray start --head starts one")


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it connects; here it means checkpoint and stop."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(ValueError, TypeError):  # not the main thread, or not Python's handler
            signal.signal(signal.SIGTERM, before)
