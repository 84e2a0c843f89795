"""What the broker keeps for one client.

A session outlives its connection when the client asked for that. What waits for a client is
bounded in messages and bytes, whether it is away or only slow, and so is what waits for all
together. Messages leave in the order in which they came, whatever their QoS: while something
waits, what follows waits behind it.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Protocol

from ispine.broker.access import Identity
from ispine.broker.config import Limits
from ispine.broker.packets import publish_bytes
from ispine.protocol.link import Will


class Outgoing:
    """One message on its way to any number of clients; encoded once for all at QoS 0.

    Args:
        topic: concrete.
        payload: bytes, or a view of `packet`; not copied.
        retain: the flag to deliver it with.
        packet: the message as it came, when it can be sent on as it is.
    """

    __slots__ = ("_packet", "_payload", "retain", "size", "topic")

    def __init__(
        self,
        topic: str,
        payload: bytes | memoryview,
        retain: bool = False,
        packet: bytes | bytearray | None = None,
    ) -> None:
        self.topic = topic
        self.retain = retain
        self.size = len(topic) + len(payload)
        self._payload = payload
        self._packet = packet

    @property
    def payload(self) -> bytes:
        """The payload as bytes; a view is copied at most once."""
        if not isinstance(self._payload, bytes):
            self._payload = bytes(self._payload)
        return self._payload

    def at_qos_0(self) -> bytes | bytearray:
        """The packet, the same bytes for every receiver."""
        if self._packet is None:
            self._packet = publish_bytes(self.topic, self._payload, retain=self.retain)
        return self._packet

    def numbered(self, qos: int, mid: int, *, dup: bool) -> bytes:
        """The packet for one receiver at QoS 1 or 2."""
        return publish_bytes(self.topic, self._payload, qos, mid=mid, retain=self.retain, dup=dup)


class Peer(Protocol):
    """The connected end of a session: a socket or a link in this process."""

    @property
    def is_slow(self) -> bool:
        """Whether more was sent than may wait unread."""

    def send(self, message: Outgoing, qos: int, mid: int, *, dup: bool = False) -> None:
        """Send one message; never waits."""

    def release(self, mid: int) -> None:
        """Send the second half of a delivery at QoS 2."""

    def close(self, reason: str) -> None:
        """End the connection."""


@dataclass(slots=True)
class Flight:
    """A message that was sent and is not settled.

    Attributes:
        message: None once the client has it (QoS 2) and only the end of the exchange is missing.
        qos: 1 or 2.
    """

    message: Outgoing | None
    qos: int


@dataclass(slots=True)
class Counters:
    """What happened, for the doctor. Names of the maps are short reasons.

    Attributes:
        queued_bytes: what waits or is unacknowledged now, in all sessions together.
    """

    connections_total: int = 0
    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    wills_sent: int = 0
    queued_bytes: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)

    def count(self, table: dict[str, int], reason: str) -> None:
        """Add one to a reason."""
        table[reason] = table.get(reason, 0) + 1


class Session:
    """Subscriptions, unacknowledged messages and the queue of one client.

    Args:
        client_id: MQTT client id.
        identity: who owns it; nobody else can take it over.
        is_clean: forget it when the connection ends.
        limits: bounds of the queue.
        counters: where drops are counted.
    """

    __slots__ = (
        "_counters",
        "_limits",
        "_next_mid",
        "client_id",
        "held_bytes",
        "identity",
        "inflight",
        "is_clean",
        "peer",
        "queue",
        "received_qos2",
        "subscriptions",
        "will",
        "will_qos",
        "will_retain",
    )

    def __init__(
        self,
        client_id: str,
        identity: Identity,
        *,
        is_clean: bool,
        limits: Limits,
        counters: Counters,
    ) -> None:
        self.client_id = client_id
        self.identity = identity
        self.is_clean = is_clean
        self.peer: Peer | None = None
        self.subscriptions: dict[str, int] = {}
        self.inflight: OrderedDict[int, Flight] = OrderedDict()
        self.queue: deque[tuple[Outgoing, int]] = deque()
        self.held_bytes = 0
        self.received_qos2: set[int] = set()
        self.will: Will | None = None
        self.will_qos = 0
        self.will_retain = False
        self._limits = limits
        self._counters = counters
        self._next_mid = 0

    def deliver(self, message: Outgoing, qos: int) -> None:
        """Send, queue or drop one message."""
        peer = self.peer
        if peer is None:
            self._deliver_later(message, qos)
        elif self.queue:
            self._enqueue(message, qos)
        elif qos:
            self._deliver_surely(peer, message, qos)
        elif peer.is_slow:
            self._drop("slow client")
        else:
            self._send(peer, message)

    def _deliver_later(self, message: Outgoing, qos: int) -> None:
        if qos and not self.is_clean:
            self._enqueue(message, qos)

    def _deliver_surely(self, peer: Peer, message: Outgoing, qos: int) -> None:
        if len(self.inflight) >= self._limits.inflight or peer.is_slow:
            self._enqueue(message, qos)
        elif self._hold(message):
            self._send_new(peer, message, qos)

    def _drop(self, reason: str) -> None:
        self._counters.count(self._counters.dropped, reason)

    def _send(self, peer: Peer, message: Outgoing) -> None:
        peer.send(message, 0, 0)
        self._note_sent(message)

    def _note_sent(self, message: Outgoing) -> None:
        self._counters.messages_out += 1
        self._counters.bytes_out += message.size

    def _enqueue(self, message: Outgoing, qos: int) -> None:
        if len(self.queue) >= self._limits.queue_messages:
            self._drop("queue full")
        elif self._hold(message):
            self.queue.append((message, qos))

    def _hold(self, message: Outgoing) -> bool:
        if self.held_bytes + message.size > self._limits.queue_bytes:
            self._drop("queue full")
            return False
        if self._counters.queued_bytes + message.size > self._limits.queues_bytes:
            self._drop("all queues full")
            return False
        self.held_bytes += message.size
        self._counters.queued_bytes += message.size
        return True

    def _release(self, message: Outgoing) -> None:
        self.held_bytes -= message.size
        self._counters.queued_bytes -= message.size

    def _send_new(self, peer: Peer, message: Outgoing, qos: int) -> None:
        mid = self._take_mid()
        self.inflight[mid] = Flight(message, qos)
        peer.send(message, qos, mid)
        self._note_sent(message)

    def _take_mid(self) -> int:
        while True:
            self._next_mid = self._next_mid % 65535 + 1
            if self._next_mid not in self.inflight:
                return self._next_mid

    def acknowledge(self, mid: int) -> None:
        """PUBACK: the client has one message at QoS 1; the next may follow."""
        self._settle(mid, 1)

    def note_received(self, mid: int) -> None:
        """PUBREC: the client has one message at QoS 2."""
        flight = self.inflight.get(mid)
        if flight is not None and flight.qos == 2 and flight.message is not None:
            self._release(flight.message)
            flight.message = None
        if self.peer is not None:
            self.peer.release(mid)

    def complete(self, mid: int) -> None:
        """PUBCOMP: a delivery at QoS 2 is over; the next may follow."""
        self._settle(mid, 2)

    def _settle(self, mid: int, qos: int) -> None:
        flight = self.inflight.get(mid)
        if flight is None or flight.qos != qos:
            return
        del self.inflight[mid]
        if flight.message is not None:
            self._release(flight.message)
        self.pump()

    def pump(self) -> None:
        """Send from the queue while there is room."""
        peer = self.peer
        while peer is not None and self.queue and not peer.is_slow:
            message, qos = self.queue[0]
            if qos and len(self.inflight) >= self._limits.inflight:
                return
            self.queue.popleft()
            if qos:
                self._send_new(peer, message, qos)
            else:
                self._release(message)
                self._send(peer, message)

    def resume(self, peer: Peer) -> None:
        """A connection came back: what was not acknowledged is sent again, then the queue."""
        self.peer = peer
        for mid, flight in list(self.inflight.items()):
            if flight.message is None:
                peer.release(mid)
            else:
                peer.send(flight.message, flight.qos, mid, dup=True)
        self.pump()

    def part(self) -> None:
        """The connection ended: what was to arrive at most once no longer does."""
        self.peer = None
        kept = deque((message, qos) for message, qos in self.queue if qos)
        for message, qos in self.queue:
            if not qos:
                self._release(message)
        self.queue = kept

    def clear(self) -> None:
        """Forget everything that waits."""
        for message in self._held():
            self._release(message)
        self.inflight.clear()
        self.queue.clear()
        self.received_qos2.clear()

    def _held(self) -> list[Outgoing]:
        flying = [each.message for each in self.inflight.values() if each.message is not None]
        return flying + [message for message, _ in self.queue]

    def check_invariants(self) -> None:
        """What must hold after every event.

        Raises:
            AssertionError: it does not.
        """
        held = sum(message.size for message in self._held())
        assert self.held_bytes == held <= self._limits.queue_bytes
        assert len(self.inflight) <= self._limits.inflight
        assert len(self.queue) <= self._limits.queue_messages
        assert self.peer is not None or not self.is_clean
        assert self.peer is not None or all(qos for _, qos in self.queue)
