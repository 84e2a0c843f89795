"""One socket's protocol on a transport that never sends."""

import asyncio
from typing import Any, cast

from ispine.broker import BrokerConfig, Limits
from ispine.broker.core import BrokerCore
from ispine.broker.listener import Gate, TcpPeer
from ispine.broker.rawclient import connect_packet, packet, publish_packet, text


class StuckTransport:
    """Takes what is written until it is full, and then no more."""

    def __init__(self) -> None:
        self.protocol: TcpPeer | None = None
        self.written = 0
        self.is_gone = False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def write(self, data: memoryview) -> None:
        self.written += len(data)
        if self.written > self.high and self.protocol is not None:
            self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return self.is_gone

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.is_gone = True

    abort = close


def arrives(peer: TcpPeer, data: bytes) -> None:
    view = memoryview(data)
    while view:
        room = peer.get_buffer(-1)
        count = min(len(room), len(view))
        room[:count] = view[:count]
        peer.buffer_updated(count)
        view = view[count:]


def connected(core: BrokerCore, gate: Gate) -> tuple[TcpPeer, StuckTransport]:
    peer, transport = TcpPeer(core, gate), StuckTransport()
    transport.protocol = peer
    peer.connection_made(cast(asyncio.BaseTransport, transport))
    arrives(peer, connect_packet())
    return peer, transport


async def test_answers_that_nobody_reads_end_the_connection() -> None:
    core = BrokerCore(BrokerConfig(limits=Limits(queue_bytes=10_000)))
    gate = Gate(core)
    peer, transport = connected(core, gate)
    publishes = publish_packet("a", b"", 1) * 500
    for _ in range(2000):
        if transport.is_gone:
            break
        arrives(peer, publishes)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert transport.is_gone
    assert core.counters.closed == {"does not read answers": 1}
    peer.connection_lost(None)
    assert (gate.backlog_bytes, gate.count, core.sessions) == (0, 0, {})


async def test_messages_that_nobody_reads_are_dropped_at_the_bound() -> None:
    core = BrokerCore(BrokerConfig(limits=Limits(queue_bytes=1_000_000)))
    gate = Gate(core)
    peer, transport = connected(core, gate)
    arrives(peer, packet(0x82, b"\x00\x01" + text("a") + b"\x00"))
    writer, _ = connected(core, gate)
    for _ in range(40):
        arrives(writer, publish_packet("a", bytes(100_000)))
    assert 1_000_000 < gate.backlog_bytes < 1_200_000
    assert core.counters.dropped["slow client"] > 20
    assert not transport.is_gone
    for each in (peer, writer):
        each.connection_lost(None)
    assert gate.backlog_bytes == 0


async def test_packets_of_one_turn_leave_together() -> None:
    core = BrokerCore(BrokerConfig())
    gate = Gate(core)
    reader, transport = connected(core, gate)
    arrives(reader, packet(0x82, b"\x00\x01" + text("a") + b"\x00"))
    writes: list[int] = []
    write = transport.write

    def counted(data: memoryview) -> None:
        writes.append(len(data))
        write(data)

    transport.write = counted  # type: ignore[method-assign]
    writer, _ = connected(core, gate)
    arrives(writer, publish_packet("a", b"1") * 100)
    assert writes == [100 * len(publish_packet("a", b"1"))]
    for each in (reader, writer):
        each.connection_lost(None)
