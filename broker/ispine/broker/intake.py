"""Bytes of a stream into whole packets, within a bounded memory.

Small packets are cut out of one scratch buffer that all connections share, because a connection
never keeps bytes in it between two calls. A packet that does not fit is received straight into a
buffer of its own, which grows with what has really come.
"""

from collections.abc import Callable
from typing import Protocol

from ispine.broker.packets import split

SCRATCH_BYTES = 64 * 1024
FIRST_BYTES = 512 * 1024


class Holder(Protocol):
    """Whoever has unfinished packets."""

    def fail(self, reason: str) -> None:
        """Give up."""


class Memory:
    """Bytes of unfinished packets, all connections together.

    Args:
        limit: beyond it the holder of most is given up.
    """

    def __init__(self, limit: int) -> None:
        self.scratch = bytearray(SCRATCH_BYTES)
        self.used = 0
        self._limit = limit
        self._held: dict[Holder, int] = {}

    def hold(self, holder: Holder, size: int) -> None:
        """Note how much `holder` has unfinished now; 0 when nothing."""
        self.used += size - self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
        while self.used > self._limit:
            largest = max(self._held, key=self._held.__getitem__)
            self.used -= self._held.pop(largest)
            largest.fail("too many unfinished packets")


class Intake:
    """Cuts the stream of one connection into packets.

    Args:
        memory: shared by all connections.
        holder: who fails when memory runs out.
        limit_of: the largest packet with this first byte that is allowed now.
        on_packet: called with each whole packet, which it may keep, and the size of its fixed
            header; returns whether the next one may follow at once.
    """

    def __init__(
        self,
        memory: Memory,
        holder: Holder,
        limit_of: Callable[[int], int],
        on_packet: Callable[[bytes | bytearray, int], bool],
    ) -> None:
        self._memory = memory
        self._holder = holder
        self._limit_of = limit_of
        self._on_packet = on_packet
        self._head = b""
        self._packet: bytearray | None = None
        self._body = self._total = self._filled = 0
        self._rest = b""

    @property
    def has_more(self) -> bool:
        """Whether `go_on` must be called before more bytes are taken."""
        return bool(self._rest)

    def room(self) -> memoryview:
        """Where the next bytes of the stream are to be written; use it at once."""
        if self._packet is not None:
            return memoryview(self._packet)[self._filled :]
        return memoryview(self._memory.scratch)[len(self._head) :]

    def wrote(self, count: int) -> None:
        """So many bytes were written to `room`.

        Raises:
            Malformed: they break MQTT 3.1.1, or a limit.
        """
        if self._packet is None:
            size = len(self._head)
            self._memory.scratch[:size] = self._head
            self._head = b""
            self._cut(memoryview(self._memory.scratch)[: size + count])
            return
        self._filled += count
        if self._filled == self._total:
            whole, self._packet = self._packet, None
            self._memory.hold(self._holder, 0)
            self._on_packet(whole, self._body)
            return
        if self._filled == len(self._packet):
            self._packet = self._packet.ljust(min(self._total, 2 * self._filled), b"\0")
        self._memory.hold(self._holder, self._filled)

    def go_on(self) -> None:
        """Take the packets that had to wait.

        Raises:
            Malformed: they break MQTT 3.1.1, or a limit.
        """
        rest, self._rest = self._rest, b""
        self._memory.hold(self._holder, 0)
        self._cut(memoryview(rest))

    def drop(self) -> None:
        """Forget what is unfinished."""
        self._head = self._rest = b""
        self._packet = None
        self._memory.hold(self._holder, 0)

    def _cut(self, view: memoryview) -> None:
        start = 0
        goes_on = True
        while goes_on:
            found = split(view, start, self._limit_of)
            if found is None:
                self._head = bytes(view[start:])
                return
            _, body, size = found
            if start + size > len(view):
                self._begin(view[start:], body, size)
                return
            packet = bytes(view[start : start + size])
            start += size
            goes_on = self._on_packet(packet, body)
        self._rest = bytes(view[start:])
        if self._rest:
            self._memory.hold(self._holder, len(self._rest))

    def _begin(self, have: memoryview, body: int, size: int) -> None:
        self._packet = bytearray(min(size, max(FIRST_BYTES, 2 * len(have))))
        self._packet[: len(have)] = have
        self._body, self._total, self._filled = body, size, len(have)
        self._memory.hold(self._holder, self._filled)
