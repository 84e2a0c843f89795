"""One client on a byte stream: MQTT packets to the core and back.

The same class serves TCP and WebSocket; the transport gives it bytes with `feed` and a `Wire` to
write to.
"""

from typing import Protocol

from ispine.broker import packets
from ispine.broker.core import BrokerCore, Refusal
from ispine.broker.packets import Malformed
from ispine.broker.session import Outgoing, Session

MAX_CONNECT_BYTES = 128 * 1024


class Wire(Protocol):
    """Where a connection writes."""

    @property
    def backlog(self) -> int:
        """Bytes written and not yet taken by the peer."""

    def write(self, data: bytes) -> None:
        """Send bytes; never waits."""

    def finish(self) -> None:
        """Close after what was written has gone out, within a moment."""

    def abort(self) -> None:
        """Close at once."""


class Memory:
    """Bytes of unfinished packets, all connections together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


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
        self._address = address
        self._memory = memory
        self._buffer = bytearray()
        self._wanted = 0
        self.session: Session | None = None
        self.keepalive_s = 0.0
        self.is_closed = False

    @property
    def backlog(self) -> int:
        """See `Peer.backlog`."""
        return self._wire.backlog

    def send(self, message: Outgoing, qos: int, mid: int, *, dup: bool = False) -> None:
        """See `Peer.send`."""
        if qos == 0:
            self._wire.write(message.at_qos_0())
            return
        packet = packets.publish_bytes(
            message.topic, message.payload, 1, mid=mid, retain=message.retain, dup=dup
        )
        self._wire.write(packet)

    def close(self, reason: str) -> None:
        """See `Peer.close`: the session is already somebody else's."""
        self.session = None
        self.is_closed = True
        self._release()
        self._wire.abort()

    def feed(self, data: bytes) -> None:
        """Take bytes as they arrive; everything that breaks the protocol ends the connection."""
        try:
            self._consume(data)
        except Malformed as error:
            self.fail(error.reason)

    def fail(self, reason: str) -> None:
        """End the connection because of the peer; its will is published."""
        if self.is_closed:
            return
        self._core.counters.count(self._core.counters.closed, reason)
        self.lost()
        self._wire.abort()

    def lost(self) -> None:
        """The connection is gone without a goodbye."""
        self.is_closed = True
        self._release()
        session, self.session = self.session, None
        if session is not None:
            self._core.disconnect(session, is_clean=False)

    def _release(self) -> None:
        self._memory.used -= len(self._buffer)
        self._buffer = bytearray()

    def _consume(self, data: bytes) -> None:
        if not self._buffer:
            self._keep(data, self._take_packets(memoryview(data)))
            return
        self._buffer += data
        self._memory.used += len(data)
        if len(self._buffer) >= self._wanted:
            whole, self._buffer = self._buffer, bytearray()
            self._memory.used -= len(whole)
            self._keep(whole, self._take_packets(memoryview(whole)))
        self._check_memory()

    def _keep(self, data: bytes | bytearray, used: int) -> None:
        if used < len(data) and not self.is_closed:
            self._buffer = bytearray(memoryview(data)[used:])
            self._memory.used += len(self._buffer)
            self._check_memory()

    def _check_memory(self) -> None:
        if self._memory.used > self._memory.limit and self._buffer:
            raise Malformed("too many unfinished packets")

    def _take_packets(self, view: memoryview) -> int:
        start = 0
        self._wanted = 0
        while not self.is_closed:
            limit = self._core.limits.packet_bytes if self.session else MAX_CONNECT_BYTES
            found = packets.split(view[start:], limit)
            if found is None:
                break
            first, body, end = found
            if start + end > len(view):
                self._wanted = end
                break
            self._handle(first, view[start : start + end], body)
            start += end
        return start

    def _handle(self, first: int, packet: memoryview, body: int) -> None:
        kind = first >> 4
        if self.session is None:
            if kind != packets.CONNECT or first & 0x0F:
                raise Malformed("no CONNECT")
            self._on_connect(bytes(packet))
            return
        if kind == packets.PUBLISH:
            self._on_publish(self.session, first, packet[body:])
        elif kind == packets.PUBACK:
            self.session.acknowledge(packets.read_mid(packet[body:]))
        elif kind == packets.PINGREQ:
            self._wire.write(packets.PINGRESP_BYTES)
        else:
            self._handle_rare(self.session, kind, packet, body)

    def _handle_rare(self, session: Session, kind: int, packet: memoryview, body: int) -> None:
        if kind == packets.SUBSCRIBE:
            self._on_subscribe(session, bytes(packet))
        elif kind == packets.UNSUBSCRIBE:
            mid, filters = packets.read_unsubscribe(bytes(packet))
            self._core.unsubscribe(session, filters)
            self._wire.write(packets.ack_bytes(packets.UNSUBACK, mid))
        elif kind == packets.PUBREL and packet[0] & 0x0F == 2:
            mid = packets.read_mid(packet[body:])
            session.received_qos2.discard(mid)
            self._wire.write(packets.ack_bytes(packets.PUBCOMP, mid))
        elif kind == packets.DISCONNECT:
            self.session = None
            self.is_closed = True
            self._release()
            self._core.disconnect(session, is_clean=True)
            self._wire.finish()
        else:
            raise Malformed("unexpected packet")

    def _on_connect(self, packet: bytes) -> None:
        request = packets.read_connect(packet)
        answer = self._core.connect(request, self, self._address)
        if isinstance(answer, Refusal):
            self._wire.write(packets.connack_bytes(answer.code))
            self.is_closed = True
            self._wire.finish()
            return
        session, is_present = answer
        self.session = session
        self.keepalive_s = request.keepalive_s * 1.5
        self._wire.write(packets.connack_bytes(packets.ACCEPTED, is_present=is_present))
        self._core.resume(session)

    def _on_publish(self, session: Session, first: int, body: memoryview) -> None:
        message = packets.read_publish(first, body)
        if message.qos == 2:
            is_new = message.mid not in session.received_qos2
            if is_new and len(session.received_qos2) >= self._core.limits.inflight:
                raise Malformed("too many at QoS 2")
            session.received_qos2.add(message.mid)
            if is_new:
                self._publish(session, message)
            self._wire.write(packets.ack_bytes(packets.PUBREC, message.mid))
            return
        self._publish(session, message)
        if message.qos == 1:
            self._wire.write(packets.ack_bytes(packets.PUBACK, message.mid))

    def _publish(self, session: Session, message: packets.Publish) -> None:
        self._core.publish(
            session, message.topic, message.payload, message.qos, retain=message.retain
        )

    def _on_subscribe(self, session: Session, packet: bytes) -> None:
        mid, wanted = packets.read_subscribe(packet)
        codes = self._core.subscribe(session, wanted)
        self._wire.write(packets.suback_bytes(mid, codes))
        for (topic_filter, _), code in zip(wanted, codes, strict=True):
            if code <= 1:
                self._core.send_retained(session, topic_filter)
