"""One client on a byte stream: MQTT packets to the core and back.

The same class serves TCP and WebSocket; the transport gives it bytes and a `Wire` to write to. A
client that sends many packets at once is served in turns, so that nobody waits for it.
"""

from typing import Protocol

from ispine.broker import packets
from ispine.broker.core import BrokerCore, Refusal
from ispine.broker.intake import Intake, Memory
from ispine.broker.packets import Malformed
from ispine.broker.session import Outgoing, Session

TURN = 512


class Wire(Protocol):
    """Where a connection writes."""

    @property
    def is_slow(self) -> bool:
        """Whether the peer leaves more unread than it may."""

    def write(self, data: bytes | bytearray) -> None:
        """Send bytes; never waits. They are not changed afterwards."""

    def take_turns(self) -> None:
        """Stop reading; call `Connection.go_on` when the others have been served."""

    def finish(self) -> None:
        """Close after what was written has gone out, within a moment."""

    def abort(self) -> None:
        """Close at once."""


class Connection:
    """Reads packets, answers them, sends messages.

    Args:
        core: where sessions and routing live.
        wire: where to write.
        address: of the peer, for access by loopback.
        memory: shared by all connections.
    """

    def __init__(self, core: BrokerCore, wire: Wire, address: str, memory: Memory) -> None:
        self._core = core
        self._wire = wire
        self.address = address
        self._intake = Intake(memory, self, self._limit_of, self._on_packet)
        self._spent = 0
        self._to_send_retained: dict[str, None] = {}
        self.session: Session | None = None
        self.keepalive_s = 0.0
        self.is_closed = False

    @property
    def is_slow(self) -> bool:
        """See `Peer.is_slow`."""
        return self._wire.is_slow

    def send(self, message: Outgoing, qos: int, mid: int, *, dup: bool = False) -> None:
        """See `Peer.send`."""
        self._wire.write(message.numbered(qos, mid, dup=dup) if qos else message.at_qos_0())

    def release(self, mid: int) -> None:
        """See `Peer.release`."""
        self._wire.write(packets.ack_bytes(packets.PUBREL, mid))

    def close(self, reason: str) -> None:
        """See `Peer.close`: the session is already somebody else's."""
        self.session = None
        self._end()
        self._wire.abort()

    def _end(self) -> None:
        self.is_closed = True
        self._to_send_retained.clear()
        self._intake.drop()

    def fail(self, reason: str) -> None:
        """End the connection because of the peer; its will is published."""
        if self.is_closed:
            return
        self._core.counters.count(self._core.counters.closed, reason)
        self.lost()
        self._wire.abort()

    def lost(self) -> None:
        """The connection is gone without a goodbye."""
        self._end()
        session, self.session = self.session, None
        if session is not None:
            self._core.disconnect(session, is_clean=False)

    def retire(self) -> None:
        """The broker stops: what was written still goes out."""
        self.lost()
        self._wire.finish()

    def room(self) -> memoryview:
        """Where the transport writes the next bytes of the stream."""
        return self._intake.room()

    def wrote(self, count: int) -> None:
        """Bytes came; whatever breaks the protocol ends the connection."""
        self._spent = 0
        try:
            self._intake.wrote(count)
            self._continue()
        except Malformed as error:
            self.fail(error.reason)

    def feed(self, data: memoryview) -> int:
        """Take bytes that came in another buffer; how many, fewer where a turn ended."""
        used = 0
        while used < len(data) and not self.is_closed and not self.has_more:
            room = self.room()
            count = min(len(room), len(data) - used)
            room[:count] = data[used : used + count]
            used += count
            self.wrote(count)
        return used

    def go_on(self) -> None:
        """Take the next turn."""
        self._spent = 0
        try:
            self._send_more_retained()
            if not self.is_closed and not self._to_send_retained and self._intake.has_more:
                self._intake.go_on()
            self._continue()
        except Malformed as error:
            self.fail(error.reason)

    @property
    def has_more(self) -> bool:
        """Whether there is work for another turn."""
        return not self.is_closed and (self._intake.has_more or bool(self._to_send_retained))

    def _continue(self) -> None:
        if self.is_closed:
            self._intake.drop()
        elif self.has_more:
            self._wire.take_turns()

    def _limit_of(self, first: int) -> int:
        if self.session is None and first != packets.CONNECT << 4:
            raise Malformed("no CONNECT")
        is_publish = first >> 4 == packets.PUBLISH
        return self._core.limits.packet_bytes if is_publish else packets.CONTROL_BYTES

    def _on_packet(self, packet: bytes | bytearray, body: int) -> bool:
        self._spent += 1
        kind = packet[0] >> 4
        session = self.session
        if session is None:
            self._on_connect(bytes(packet))
        elif kind == packets.PUBLISH:
            self._on_publish(session, packet, body)
        elif kind == packets.PUBACK:
            session.acknowledge(packets.read_mid(memoryview(packet)))
        elif kind == packets.PINGREQ:
            self._wire.write(packets.PINGRESP_BYTES)
        else:
            self._on_rare(session, kind, bytes(packet))
        return self._spent < TURN and not self.is_closed and not self._to_send_retained

    def _on_rare(self, session: Session, kind: int, packet: bytes) -> None:
        self._spent += len(packet) // 16
        if kind == packets.SUBSCRIBE:
            self._on_subscribe(session, packet)
        elif kind == packets.UNSUBSCRIBE:
            mid, filters = packets.read_unsubscribe(packet)
            self._core.unsubscribe(session, filters)
            self._wire.write(packets.ack_bytes(packets.UNSUBACK, mid))
        elif kind in (packets.PUBREC, packets.PUBREL, packets.PUBCOMP):
            self._on_qos_2(session, kind, packets.read_mid(memoryview(packet)))
        elif kind == packets.DISCONNECT:
            self.session = None
            self._end()
            self._core.disconnect(session, is_clean=True)
            self._wire.finish()
        else:
            raise Malformed("unexpected packet")

    def _on_qos_2(self, session: Session, kind: int, mid: int) -> None:
        if kind == packets.PUBREC:
            session.note_received(mid)
        elif kind == packets.PUBCOMP:
            session.complete(mid)
        else:
            session.received_qos2.discard(mid)
            self._wire.write(packets.ack_bytes(packets.PUBCOMP, mid))

    def _on_connect(self, packet: bytes) -> None:
        request = packets.read_connect(packet)
        answer = self._core.connect(request, self, self.address)
        if isinstance(answer, Refusal):
            self._wire.write(packets.connack_bytes(answer.code))
            self._end()
            self._wire.finish()
            return
        session, is_present = answer
        self.session = session
        self.keepalive_s = request.keepalive_s * 1.5
        self._wire.write(packets.connack_bytes(packets.ACCEPTED, is_present=is_present))
        self._core.resume(session)

    def _on_publish(self, session: Session, packet: bytes | bytearray, body: int) -> None:
        published = packets.read_publish(packet, body)
        message = Outgoing(
            published.topic,
            published.payload,
            packet=packet if published.is_plain else None,
        )
        qos = published.qos
        if qos < 2 or self._is_first_of(session, published.mid):
            self._core.publish(session, message, qos, retain=published.retain)
        if qos:
            kind = packets.PUBACK if qos == 1 else packets.PUBREC
            self._wire.write(packets.ack_bytes(kind, published.mid))

    def _is_first_of(self, session: Session, mid: int) -> bool:
        if mid in session.received_qos2:
            return False
        if len(session.received_qos2) >= self._core.limits.inflight:
            raise Malformed("too many at QoS 2")
        session.received_qos2.add(mid)
        return True

    def _on_subscribe(self, session: Session, packet: bytes) -> None:
        mid, wanted = packets.read_subscribe(packet)
        codes = self._core.subscribe(session, wanted)
        self._wire.write(packets.suback_bytes(mid, codes))
        for (topic_filter, _), code in zip(wanted, codes, strict=True):
            if code <= 2:
                self._to_send_retained[topic_filter] = None
        self._send_more_retained()

    def _send_more_retained(self) -> None:
        while self._to_send_retained and self.session is not None and self._spent < TURN:
            topic_filter = next(iter(self._to_send_retained))
            del self._to_send_retained[topic_filter]
            self._spent += self._core.send_retained(self.session, topic_filter)
