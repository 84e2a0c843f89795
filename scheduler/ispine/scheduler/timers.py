"""What is due when.

Entries are never taken out; whoever is woken checks whether it still matters.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Subject = TypeVar("Subject")


class Due(IntEnum):
    """What a timer is for."""

    DEADLINE = 0
    ACCEPT = 1
    HEDGE = 2
    LEASE = 3
    WATCH = 4
    SUSPICION = 5
    SILENCE = 6
    QUARANTINE = 7
    GRACE = 8
    DISPATCH = 9
    LEDGER = 10
    TELEMETRY = 11


class Timers(Generic[Subject]):
    """A heap of (time, what for, subject).

    Args:
        is_alive: whether an entry could still matter; one that cannot is never waited for, and
            all of them are swept when the heap has grown to twice what the last sweep left.
    """

    def __init__(self, is_alive: Callable[[Due, Subject], bool]) -> None:
        self._heap: list[tuple[int, int, Due, Subject]] = []
        self._seq = 0
        self._is_alive = is_alive
        self._sweep_at = 4096

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ns(self) -> int | None:
        """When the earliest entry that matters is due, None when there is none."""
        heap = self._heap
        while heap and not self._is_alive(heap[0][2], heap[0][3]):
            heappop(heap)
        return heap[0][0] if heap else None

    def add(self, when_ns: int, due: Due, subject: Subject) -> None:
        """Wake `subject` at `when_ns`."""
        self._seq += 1
        heappush(self._heap, (when_ns, self._seq, due, subject))
        if len(self._heap) > self._sweep_at:
            self._sweep()

    def pop_due(self, now_ns: int) -> Iterator[tuple[int, Due, Subject]]:
        """Entries that are due, earliest first, including those added meanwhile."""
        while self._heap and self._heap[0][0] <= now_ns:
            when, _, due, subject = heappop(self._heap)
            yield when, due, subject

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if self._is_alive(entry[2], entry[3])]
        heapify(self._heap)
        self._sweep_at = max(4096, 2 * len(self._heap))
