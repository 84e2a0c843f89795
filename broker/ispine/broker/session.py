"""What the broker keeps for one client.

A session outlives its connection when the client asked for that. What waits for a client is
bounded in messages and bytes, whether it is away or only slow.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Protocol

from ispine.broker.access import Identity
from ispine.broker.config import Limits
from ispine.broker.packets import publish_bytes
from ispine.protocol.link import Will


@dataclass(slots=True)
class Outgoing:
    """One message on its way to any number of clients; encoded once for all at QoS 0."""

    topic: str
    payload: bytes
    retain: bool = False
    _encoded: bytes | None = None

    def at_qos_0(self) -> bytes:
        """The packet, the same bytes for every receiver."""
        if self._encoded is None:
            self._encoded = publish_bytes(self.topic, self.payload, retain=self.retain)
        return self._encoded


class Peer(Protocol):
    """The connected end of a session: a socket or a link in this process."""

    @property
    def backlog(self) -> int:
        """Bytes that were sent and not yet taken."""

    def send(self, message: Outgoing, qos: int, mid: int, *, dup: bool = False) -> None:
        """Send one message; never waits."""

    def close(self, reason: str) -> None:
        """End the connection."""


@dataclass(slots=True)
class Counters:
    """What happened, for the doctor. Names of the maps are short reasons."""

    connections_total: int = 0
    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    wills_sent: int = 0
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
        "identity",
        "inflight",
        "is_clean",
        "peer",
        "queue",
        "queued_bytes",
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
        self.inflight: OrderedDict[int, Outgoing] = OrderedDict()
        self.queue: deque[Outgoing] = deque()
        self.queued_bytes = 0
        self.received_qos2: set[int] = set()
        self.will: Will | None = None
        self.will_qos = 0
        self.will_retain = False
        self._limits = limits
        self._counters = counters
        self._next_mid = 0

    def deliver(self, message: Outgoing, qos: int) -> None:
        """Send, queue or drop one message."""
        if qos == 0:
            self._deliver_at_most_once(message)
            return
        has_room = len(self.inflight) < self._limits.inflight and not self.queue
        if self.peer is not None and has_room and self.peer.backlog <= self._limits.queue_bytes:
            self._send_new(self.peer, message)
        elif self.peer is None and self.is_clean:
            self._counters.count(self._counters.dropped, "client away")
        else:
            self._enqueue(message)

    def _deliver_at_most_once(self, message: Outgoing) -> None:
        peer = self.peer
        if peer is None:
            return
        if peer.backlog > self._limits.queue_bytes:
            self._counters.count(self._counters.dropped, "slow client")
            return
        peer.send(message, 0, 0)
        self._note_sent(message)

    def _note_sent(self, message: Outgoing) -> None:
        self._counters.messages_out += 1
        self._counters.bytes_out += len(message.payload)

    def _enqueue(self, message: Outgoing) -> None:
        size = len(message.payload) + len(message.topic)
        is_full = len(self.queue) >= self._limits.queue_messages
        if is_full or self.queued_bytes + size > self._limits.queue_bytes:
            self._counters.count(self._counters.dropped, "queue full")
            return
        # What was retained is news to a client that was away: the flag does not travel with it.
        self.queue.append(Outgoing(message.topic, message.payload))
        self.queued_bytes += size

    def _send_new(self, peer: Peer, message: Outgoing) -> None:
        mid = self._take_mid()
        self.inflight[mid] = message
        peer.send(message, 1, mid)
        self._note_sent(message)

    def _take_mid(self) -> int:
        while True:
            self._next_mid = self._next_mid % 65535 + 1
            if self._next_mid not in self.inflight:
                return self._next_mid

    def acknowledge(self, mid: int) -> None:
        """The client has one message; the next may follow."""
        self.inflight.pop(mid, None)
        self.pump()

    def pump(self) -> None:
        """Send from the queue while there is room."""
        peer = self.peer
        while (
            peer is not None
            and self.queue
            and len(self.inflight) < self._limits.inflight
            and peer.backlog <= self._limits.queue_bytes
        ):
            message = self.queue.popleft()
            self.queued_bytes -= len(message.payload) + len(message.topic)
            self._send_new(peer, message)

    def resume(self, peer: Peer) -> None:
        """A connection came back: what was not acknowledged is sent again, then the queue."""
        self.peer = peer
        for mid, message in list(self.inflight.items()):
            peer.send(message, 1, mid, dup=True)
        self.pump()
