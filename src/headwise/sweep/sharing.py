"""Which of its runs a driver does itself, where others may be at the same store.

A run that another driver has on lease stays in the queue: it is either found finished later or, where that driver is
lost, taken over with its checkpoint. Without leases (`Sharing()`) everything is this driver's own.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress

from headwise.store.leases import Leases
from headwise.store.records import StoreError
from headwise.store.store import Store
from headwise.sweep.plan import Summary, Watch
from headwise.training.run import Run


class Sharing:
    """A driver's part of runs that several drivers want done."""

    def __init__(self, store: Store | None = None) -> None:
        self.leases = Leases(store) if store is not None else None

    def next(self, queue: list[Run], fits: Callable[[Run], bool], summary: Summary, watch: Watch) -> Run | None:
        """Take the first run of the queue that fits and that nobody else is at; those that have ended leave the queue.

        What another driver has done is `found`, as if it had been there before.
        """
        theirs = self.leases.theirs() if self.leases else set()
        for run in [run for run in queue if run.key not in theirs and fits(run)]:
            taken = self.leases.take(run.key) if self.leases else "ours"
            if taken == "theirs":
                continue
            queue.remove(run)
            if taken == "ours":
                return run
            pair = self.leases.store.get(run.key) if self.leases else None
            assert pair is not None
            summary.found += 1
            summary.failed += pair[1].status == "failed"
            watch.on_end(*pair)
        return None

    def beat(self) -> set[str]:
        """Keep the leases; keys of those that were lost to another driver. A store that is busy is asked again."""
        with suppress(StoreError):
            return self.leases.beat() if self.leases else set()
        return set()

    def release(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if self.leases:
                self.leases.release(run.key)

    def close(self) -> None:
        """Give back what was not done; where the store cannot be written, others see that this driver is gone."""
        with suppress(StoreError):
            if self.leases:
                self.leases.close()
