"""One kind of process for all work beside this one: it is quick to start, and it ends with the process that started it.

    worker = start(serve, ...)             # serve(pipe, ...) there; worker.pipe is the other end
    each(measure_step, runs, workers=2)    # a function of each item, as `map` does

On Linux processes come from a server that has torch loaded. Elsewhere (`start_method`) each loads it itself, which
takes some seconds more at the start of every stage. A process holds one end of a lifeline, and nobody but its parent
the other: when the parent is gone, however it went, the line ends and so does the process. A server that was killed is
started again by the next `start`. Only scripts that can be imported again may start processes.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, TypeVar

from headwise.spec import SpecError, one_line

UNGUARDED = 97  # exit code of a process that found the script starting processes again
SERVER_GONE = 255  # what multiprocessing says of a process whose server was killed; it may be alive
ATTEMPTS, PAUSE_SECONDS = 100, 0.1  # to start a process: one that was killed may be there for a moment yet
DEATHS = 3  # of the process that works on one item
LOADED = ["headwise.sweep.worker", "torch._dynamo"]  # by the server: an optimiser needs the last, which takes a second

Item = TypeVar("Item")
Value = TypeVar("Value")


def start_method(system: str = sys.platform) -> Literal["forkserver", "spawn"]:
    """Linux has a server to fork from; Windows has none, and Apple's numerical libraries do not survive a fork."""
    return "forkserver" if system.startswith("linux") else "spawn"


@cache
def worker_context() -> Any:
    """Where workers come from. Call this before anything is started: it refuses a script without a guard.

    A new process imports the script that started it. Where that script starts processes as it is imported, the new one
    comes here again, and ends; so one process is tried first.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)
    context: Any = multiprocessing.get_context(start_method())
    if start_method() == "forkserver":  # what training loads is loaded there, and nothing runs: safe to fork
        context.set_forkserver_preload(LOADED)
    process = context.Process(target=_nothing, daemon=True)
    process.start()
    process.join()
    if process.exitcode == UNGUARDED:
        raise SpecError(
            "this script starts processes, which import it again: put what it does under if __name__ == '__main__':"
        )
    return context


@dataclass
class Worker:
    """A process, a pipe to it, and the end of its lifeline that keeps it alive."""

    process: Any
    pipe: Connection
    lifeline: Connection

    @property
    def exit_text(self) -> str:
        code = self.process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """At once. Where its server is gone, only the end of its lifeline can do that."""
        self.lifeline.close()
        with suppress(OSError):
            self.process.kill()
        self.process.join()
        self.pipe.close()

    def end(self, seconds: float = 2.0) -> None:
        """Tell it that there is no more work; kill it if it does not end."""
        with suppress(OSError):
            self.pipe.send(None)
        self.process.join(timeout=seconds)
        self.kill()


def start(target: Callable[..., None], *arguments: Any) -> Worker:
    """A process that runs target(pipe, *arguments) and ends with this one."""
    context = worker_context()
    for attempt in range(1, ATTEMPTS + 1):
        ours, theirs = context.Pipe()
        line, lifeline = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(line, target, theirs, *arguments), daemon=True)
        try:
            process.start()
        except (OSError, EOFError) as error:  # the server died just now
            ours.close()
            lifeline.close()
            if attempt == ATTEMPTS:
                raise SpecError(f"no process can be started here ({one_line(error)})") from None
            time.sleep(PAUSE_SECONDS)
        else:
            return Worker(process, ours, lifeline)
        finally:
            theirs.close()
            line.close()
    raise AssertionError  # the last attempt has returned or raised


def _serve(line: Connection, target: Callable[..., None], *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    threading.Thread(target=_end_with_parent, args=(line,), daemon=True).start()
    target(*arguments)


def _end_with_parent(line: Connection) -> None:
    """Nothing is ever sent: the line ends when the parent does. What was not saved by then is done again by others."""
    with suppress(OSError, EOFError):
        line.recv_bytes()
    os._exit(1)


def each(function: Callable[[Item], Value], items: Sequence[Item], workers: int) -> list[Value]:
    """What a function gives for each item, in so many processes. One that dies is replaced, its item tried again."""
    todo = list(enumerate(items))[::-1]
    busy: dict[Connection, tuple[Worker, int]] = {}
    values: dict[int, Value] = {}
    deaths = dict.fromkeys(range(len(items)), 0)

    def give(worker: Worker) -> None:
        number, item = todo.pop()
        busy[worker.pipe] = worker, number
        with suppress(OSError):  # it died: that is heard below
            worker.pipe.send(item)

    try:
        for _ in range(min(workers, len(items))):
            give(start(_answer, function))
        while busy:
            for pipe in wait(list(busy)):
                worker, number = busy[pipe]  # type: ignore[index]
                try:
                    worked, value = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.kill()
                    deaths[number] += 1
                    if deaths[number] == DEATHS:
                        raise SpecError(f"a process died {DEATHS} times, last with {worker.exit_text}") from None
                    todo.append((number, items[number]))
                    del busy[worker.pipe]
                    give(start(_answer, function))
                    continue
                del busy[worker.pipe]
                if not worked:
                    worker.kill()
                    raise value
                values[number] = value
                give(worker) if todo else worker.end()
    finally:
        for worker, _ in busy.values():
            worker.kill()
    return [values[number] for number in range(len(items))]


def _answer(pipe: Connection, function: Callable[[Any], Any]) -> None:
    """Give (True, value) or (False, error) for each item, until there is None."""
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        if item is None:
            return
        try:
            answer = True, function(item)
        except SpecError as error:
            answer = False, SpecError(str(error))
        except Exception as error:
            answer = False, RuntimeError(one_line(error))
        pipe.send(answer)


def _nothing() -> None:
    pass
