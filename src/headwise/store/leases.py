"""Who does which run, where several drivers share a store: each run is leased to one driver at a time.

    leases = Leases(store)
    if leases.take(key) == "ours":   # else "theirs", or "ended"
        ...                          # leases.beat() now and then, while it goes on
        store.add(run, result)       # ends the lease

A driver that was killed on this machine is known to be gone at once. One elsewhere, or one that is stopped, has lost
its leases when its beat has not changed for a while *by the clock of the driver that looks*: no two clocks are ever
compared, so that they may differ or jump, and time in which the looker itself was stopped does not count. The one that
comes back finds what it lost in what `beat` gives. A lease saves work and protects no result: those are protected by
`Store.add`, which keeps the first. No torch here.
"""

import os
from collections.abc import Callable
from typing import Literal
from uuid import uuid4

from headwise.store.records import FINISHED
from headwise.store.store import Store
from headwise.training.machine import Awake, is_gone, process_name

BEAT_SECONDS = 5.0
LOST_SECONDS = 45.0  # without a beat
LOOK_SECONDS = 1.0  # between two looks at what others hold


class Leases:
    """One driver's leases on runs of a store."""

    def __init__(self, store: Store, clock: Callable[[], float] | None = None) -> None:
        self.store, self.clock = store, clock or Awake()
        self.owner = f"{process_name(os.getpid())}.{uuid4().hex[:8]}"
        self.ours: set[str] = set()
        self._seen: dict[str, tuple[str, int, float]] = {}  # of others: owner, beat, and since when it is that
        self._beaten = self._looked = -float("inf")
        failed = store._query("SELECT key, created FROM runs WHERE status = 'failed'")
        self._failed = dict(failed)  # before this driver began: those it is to try again
        self._others: list[tuple[str, str, int]] = []

    def take(self, key: str) -> Literal["ours", "theirs", "ended"]:
        """Lease a run, unless it has ended or another driver is at it. A failure of today's counts as an end."""
        with self.store.transaction():
            if self._has_ended(key):
                return "ended"
            held = self.store._query("SELECT owner, beat FROM leases WHERE key = ?", key)
            if held and held[0][0] != self.owner and not self._lost(key, *held[0]):
                return "theirs"
            self.store._query("INSERT OR REPLACE INTO leases VALUES (?, ?, 0)", key, self.owner)
        self.ours.add(key)
        return "ours"

    def theirs(self) -> set[str]:
        """What other drivers are at."""
        now = self.clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._others = self.store._query("SELECT key, owner, beat FROM leases WHERE owner != ?", self.owner)
        return {key for key, owner, beat in self._others if not self._lost(key, owner, beat)}

    def beat(self) -> set[str]:
        """Say that this driver is alive, every few seconds; gives the keys of leases that another has taken over."""
        if self.clock() - self._beaten < BEAT_SECONDS or not self.ours:
            return set()
        self._beaten = self.clock()
        with self.store.transaction():
            self.store._query("UPDATE leases SET beat = beat + 1 WHERE owner = ?", self.owner)
            held = {key for (key,) in self.store._query("SELECT key FROM leases WHERE owner = ?", self.owner)}
        lost, self.ours = self.ours - held, self.ours & held
        return lost

    def release(self, key: str) -> None:
        """Give a run back: it has ended, or is not done here now."""
        if key in self.ours:
            self.ours.discard(key)
            self.store._query("DELETE FROM leases WHERE key = ? AND owner = ?", key, self.owner)

    def close(self) -> None:
        for key in list(self.ours):
            self.release(key)

    def _lost(self, key: str, owner: str, beat: int) -> bool:
        if is_gone(owner.partition(".")[0]):
            return True
        before = self._seen.get(key)
        if before is None or before[:2] != (owner, beat):
            self._seen[key] = owner, beat, self.clock()
            return False
        return self.clock() - before[2] > LOST_SECONDS

    def _has_ended(self, key: str) -> bool:
        rows = self.store._query("SELECT status, created FROM runs WHERE key = ?", key)
        return any(status in FINISHED or self._failed.get(key) != created for status, created in rows)
