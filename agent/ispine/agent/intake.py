"""Packets from the hub to messages: chunks joined, delays read, what is malformed counted."""

import logging
from collections.abc import Callable
from hashlib import blake2b

from ispine.protocol.chunks import Reassembler
from ispine.protocol.clock import DelayGauge
from ispine.protocol.codec import decode
from ispine.protocol.errors import ProtocolError
from ispine.protocol.link import Message
from ispine.protocol.messages import AnyMessage, Assignment, Chunk, Head

log = logging.getLogger(__name__)

_MOST_SENDERS = 8
_LONGEST_DELAY_MS = 1e6


class Intake:
    """Reads what arrives on the queues and on the control topic.

    Args:
        clock: returns `boot_ns`.

    Attributes:
        malformed: messages that were dropped.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._reassembler = Reassembler()
        self._gauges: dict[tuple[str, int], DelayGauge] = {}
        self._complaints: set[str] = set()
        self.malformed = 0

    @property
    def is_waiting(self) -> bool:
        """Whether chunks are missing, so that `expire` must be called."""
        return not self._reassembler.is_empty

    def read(self, message: Message) -> tuple[Head, AnyMessage] | None:
        """The message in a packet, or None while chunks are missing or where it is malformed."""
        try:
            head, body = decode(message.payload)
            if isinstance(body, Chunk):
                whole = self._reassembler.add(head, body, self._clock())
                return None if whole is None else decode(whole)
        except ProtocolError as error:
            self.complain(message.topic, error.code, str(error))
            return None
        return head, body

    def complain(self, topic: str, code: str, why: str) -> None:
        """Count a message that cannot be used; say so once per kind."""
        self.malformed += 1
        if code not in self._complaints:
            self._complaints.add(code)
            log.warning("malformed message", extra={"topic": topic, "why": why})

    def expire(self) -> None:
        """Forget messages whose chunks stay away.

        Nothing is asked for: without the first chunk there is no lease to ask with, and the
        scheduler sends the whole attempt again when it hears no `accepted`.
        """
        for lack in self._reassembler.expire(self._clock()):
            log.debug("chunks missing", extra={"task_id": lack.task_id})

    def link_ms(self, head: Head, now_ns: int) -> float:
        """Delay of a message on its way above the smallest seen from its sender."""
        if not head.sent_ns:
            return 0.0
        sender = (head.sender, head.boot)
        gauge = self._gauges.get(sender)
        if gauge is None:
            if len(self._gauges) >= _MOST_SENDERS:
                del self._gauges[next(iter(self._gauges))]
            gauge = self._gauges[sender] = DelayGauge()
        return min(gauge.delay_ms(head.sent_ns, now_ns), _LONGEST_DELAY_MS)


def group_of(assignment: Assignment) -> str:
    """Tasks with the same answer may share a run: capability, variant and options are the same."""
    name = f"{assignment.capability}/{assignment.variant}"
    if not assignment.options:
        return name
    told = repr(sorted(assignment.options.items())).encode("utf-8", "surrogatepass")
    return f"{name}/{blake2b(told, digest_size=16).hexdigest()}"
