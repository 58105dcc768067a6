"""How the progress of many runs is shown: not at all, or as a progress bar."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from headwise.sweep.plan import Watch
from headwise.training.run import Run

Watching = Callable[[list[Run], str], AbstractContextManager[Watch]]  # runs to do, and the name of their stage


def unwatched(runs: list[Run], stage: str) -> AbstractContextManager[Watch]:
    """Show nothing."""
    return nullcontext(Watch())
