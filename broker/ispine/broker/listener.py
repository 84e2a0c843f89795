"""TCP: sockets to connections, with deadlines and limits per address.

TCP_NODELAY is set by the event loop itself on every socket that it accepts; a test reads it back.
"""

import asyncio
import errno
import logging
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from ispine.broker.access import is_loopback
from ispine.broker.connection import Connection
from ispine.broker.core import BrokerCore
from ispine.broker.intake import Memory
from ispine.protocol.errors import ConfigError

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTED_AT_ONCE = 64
_OTHER_FILES = 256
_TICK_S = 0.5
_FINISH_S = 2.0
_BURST_S = 3.0
_LOOPBACK_FACTOR = 10
_MAX_ADDRESSES = 4096
_FAIR_BYTES = 256 * 1024
_SMALL_BYTES = 8 * 1024


class Rate:
    """New connections per address: a token bucket each, for a bounded number of addresses.

    Args:
        per_s: for one address; ten times as many for loopback, which all local programs share.
    """

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, address: str, now_s: float) -> bool:
        """Whether one more connection of `address` may be taken now."""
        per_s = self._per_s * (_LOOPBACK_FACTOR if is_loopback(address) else 1)
        burst = per_s * _BURST_S
        tokens, since_s = self._buckets.pop(address, (burst, now_s))
        tokens = min(burst, tokens + (now_s - since_s) * per_s)
        is_allowed = tokens >= 1
        self._buckets[address] = (tokens - is_allowed, now_s)
        if len(self._buckets) > _MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        return is_allowed


class Gate:
    """Admits sockets within the limits, and ends those that stay silent.

    Args:
        core: limits, counters and sessions.
    """

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._rate = Rate(core.limits.connects_per_s)
        self._waiting: OrderedDict[Connection, float] = OrderedDict()
        self._heard: dict[Connection, float] = {}
        self._per_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._emptied.set()
        self.memory = Memory(core.limits.unfinished_bytes)
        self.backlog_bytes = 0
        self.is_gathering = False
        self.gathering: list[TcpPeer] = []

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While one connection has its turn, small packets to each client are gathered."""
        self.is_gathering = True
        try:
            yield
        finally:
            self.is_gathering = False
            gathering, self.gathering = self.gathering, []
            for peer in gathering:
                peer.send_gathered()

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._waiting) + len(self._heard)

    def refusal(self, address: str, now_s: float) -> str | None:
        """Why a new connection may not be taken; None when it may."""
        limits = self._core.limits
        is_crowded = self._per_address[address] >= limits.connections_per_address
        if is_crowded and not is_loopback(address):
            return "too many connections of one address"
        if not self._rate.allows(address, now_s):
            return "connects too often"
        if len(self._heard) >= limits.connections:
            return "too many connections"
        return None

    def opened(self, connection: Connection, now_s: float) -> None:
        """A connection was taken; where too many wait for their CONNECT, the oldest goes."""
        limits = self._core.limits
        self._emptied.clear()
        self._waiting[connection] = now_s
        self._per_address[connection.address] += 1
        if len(self._waiting) > limits.waiting_connects:
            oldest = next(iter(self._waiting))
            self.closed(oldest)
            oldest.fail("no CONNECT while others wait")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def heard(self, connection: Connection, now_s: float) -> None:
        """Bytes came."""
        if connection.session is not None:
            self._waiting.pop(connection, None)
            self._heard[connection] = now_s

    def closed(self, connection: Connection) -> None:
        """It is gone; idempotent."""
        was_waiting = self._waiting.pop(connection, None) is not None
        if self._heard.pop(connection, None) is not None or was_waiting:
            self._per_address[connection.address] -= 1
            if not self._per_address[connection.address]:
                del self._per_address[connection.address]
        if not self.count:
            self._emptied.set()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._timer = loop.call_later(_TICK_S, self._tick) if self.count else None
        for connection, since_s in list(self._waiting.items()):
            if now_s - since_s > self._core.limits.connect_s:
                connection.fail("no CONNECT in time")
        for connection, heard_s in list(self._heard.items()):
            if connection.keepalive_s and now_s - heard_s > connection.keepalive_s:
                connection.fail("silent")

    async def stop(self) -> None:
        """End every connection, within a moment."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in [*self._waiting, *self._heard]:
            connection.retire()
        try:
            async with asyncio.timeout(_FINISH_S):
                await self._emptied.wait()
        except TimeoutError:
            log.warning("connections left open", extra={"count": self.count})


class TcpPeer(asyncio.BufferedProtocol):
    """One accepted socket."""

    def __init__(self, core: BrokerCore, gate: Gate) -> None:
        self._core, self._gate = core, gate
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._transport: asyncio.Transport
        self._unread: deque[bytes | bytearray] = deque()
        self._unread_bytes = 0
        self._unheeded_bytes = 0
        self._gathered: list[bytes | bytearray] = []
        self._is_paused = False
        self._is_finishing = False

    # -- what a connection writes to ---------------------------------------------------------------

    @property
    def is_slow(self) -> bool:
        """See `Wire.is_slow`; where all together leave too much, a fair share is the limit."""
        unread = self._unread_bytes
        if unread <= _FAIR_BYTES:
            return False
        limits = self._core.limits
        return unread > limits.queue_bytes or self._gate.backlog_bytes > limits.backlog_bytes

    def write(self, data: bytes | bytearray) -> None:
        """See `Wire.write`."""
        if self._transport.is_closing():
            return
        if self._gate.is_gathering and len(data) <= _SMALL_BYTES:
            if not self._gathered:
                self._gate.gathering.append(self)
            self._gathered.append(data)
        else:
            self.send_gathered()
            self._send(data)

    def send_gathered(self) -> None:
        """Send the small packets of one turn with one call."""
        if self._gathered and not self._transport.is_closing():
            gathered, self._gathered = self._gathered, []
            self._send(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def _send(self, data: bytes | bytearray) -> None:
        if self._is_paused:
            # A queue of our own, because the transport would copy what it cannot send.
            self._count_unheeded(len(data))
            self._unread.append(data)
            self._add_unread(len(data))
        else:
            self._transport.write(memoryview(data))

    def _count_unheeded(self, size: int) -> None:
        """A slow client is sent only answers; one that goes on asking without reading is ended."""
        if not self.is_slow:
            self._unheeded_bytes = 0
            return
        self._unheeded_bytes += size
        if self._unheeded_bytes > self._core.limits.queue_bytes and self._connection is not None:
            self._loop.call_soon(self._connection.fail, "does not read answers")

    def _add_unread(self, size: int) -> None:
        self._unread_bytes += size
        self._gate.backlog_bytes += size

    def take_turns(self) -> None:
        """See `Wire.take_turns`."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        connection = self._connection
        if connection is None or connection.is_closed:
            return
        with self._gate.turn():
            connection.go_on()
        if not connection.has_more and not self._transport.is_closing():
            self._transport.resume_reading()

    def finish(self) -> None:
        """See `Wire.finish`."""
        self._is_finishing = True
        self.send_gathered()
        if not self._unread:
            self._transport.close()
        self._loop.call_later(_FINISH_S, self._transport.abort)

    def abort(self) -> None:
        """See `Wire.abort`."""
        self._transport.abort()

    # -- what the event loop calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket, or close it where a limit is reached."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_FAIR_BYTES, low=_FAIR_BYTES // 4)
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        now_s = self._loop.time()
        refusal = self._gate.refusal(address, now_s)
        if refusal is not None:
            self._core.counters.count(self._core.counters.refused, refusal)
            self._transport.abort()
            return
        self._connection = self._take(address)
        self._gate.opened(self._connection, now_s)

    def _take(self, address: str) -> Connection:
        return Connection(self._core, self, address, self._gate.memory)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._connection is None or self._connection.is_closed:
            return memoryview(self._gate.memory.scratch)
        return self._connection.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        connection = self._connection
        if connection is not None and not connection.is_closed:
            with self._gate.turn():
                connection.wrote(nbytes)
            self._gate.heard(connection, self._loop.time())

    def pause_writing(self) -> None:
        """The peer does not take more now."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The peer took what was waiting: send what is unread, then from its queue."""
        self._is_paused = False
        while self._unread and not self._is_paused:
            data = self._unread.popleft()
            self._add_unread(-len(data))
            self._transport.write(memoryview(data))
        if self._is_finishing and not self._unread:
            self._transport.close()
        elif self._connection is not None and self._connection.session is not None:
            self._connection.session.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._add_unread(-self._unread_bytes)
        self._unread.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._gate.closed(connection)
            if not connection.is_closed:
                connection.lost()


def allow_open_files(sockets: int) -> None:
    """Raise this process's own limit of open files, where it has one, for so many sockets."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + _OTHER_FILES
    if soft < wanted:
        able = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, able), hard))
        if able < wanted:
            log.warning("fewer connections than configured", extra={"open_files": able})


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the address cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"expected an address of this machine; {host!r}: {error.strerror};"
            " choose another --host"
        ) from error
    try:
        if family == socket.AF_INET6 and host not in ("", "::"):
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise _not_bound(host, port, error) from error
    return listening


def _not_bound(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        who = " (a system mosquitto, or another hub)" if port == 1883 else ""
        return ConfigError(
            f"expected port {port} on {host} to be free; somebody{who} listens there already;"
            " stop it, choose another --port, or use it with --engine external"
        )
    return ConfigError(
        f"expected to listen on {host}:{port}; {error.strerror};"
        " choose an address of this machine and a port you may use"
    )
