"""How processes are started: from a server that has torch loaded, and only by scripts that can be imported again."""

import multiprocessing
import os
import signal
from functools import cache
from multiprocessing.context import ForkServerContext

from headwise.spec import SpecError

UNGUARDED = 97  # exit code of a process that found the script starting processes again


@cache
def worker_context() -> ForkServerContext:
    """Where workers come from. Call this before anything is started: it refuses a script without a guard.

    A new process imports the script that started it. Where that script starts processes as it is imported, the new one
    comes here again, and ends; so one process is tried first.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headwise.sweep.worker"])  # quick to start, and nothing runs there: safe to fork
    process = context.Process(target=_nothing, daemon=True)
    process.start()
    process.join()
    if process.exitcode == UNGUARDED:
        raise SpecError(
            "this script starts processes, which import it again: put what it does under if __name__ == '__main__':"
        )
    return context


def undisturbed() -> None:
    """For a process of a pool, as it starts: Ctrl-C is the driver's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _nothing() -> None:
    pass
