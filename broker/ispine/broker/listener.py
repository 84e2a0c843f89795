"""TCP: sockets to connections, with deadlines and limits per address."""

import asyncio
import errno
import socket
from collections import OrderedDict
from typing import cast

from ispine.broker.connection import Connection, Memory
from ispine.broker.core import BrokerCore
from ispine.protocol.errors import ConfigError

_TICK_S = 0.5
_FINISH_S = 2.0
_BURST_S = 3.0
_MAX_ADDRESSES = 4096


class Rate:
    """New connections per address: a token bucket each, for a bounded number of addresses."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, address: str, now_s: float) -> bool:
        """Whether one more connection of `address` may be taken now."""
        burst = self._per_s * _BURST_S
        tokens, since_s = self._buckets.pop(address, (burst, now_s))
        tokens = min(burst, tokens + (now_s - since_s) * self._per_s)
        is_allowed = tokens >= 1
        self._buckets[address] = (tokens - is_allowed, now_s)
        if len(self._buckets) > _MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        return is_allowed


class Watch:
    """Ends connections that stay silent: before CONNECT, and beyond 1.5 keepalives."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._open: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._open)

    def opened(self, connection: Connection, now_s: float) -> None:
        """A connection was taken."""
        self._open[connection] = now_s
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def heard(self, connection: Connection, now_s: float) -> None:
        """Bytes came."""
        if connection.session is not None:
            self._open[connection] = now_s

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        self._open.pop(connection, None)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._timer = loop.call_later(_TICK_S, self._tick) if self._open else None
        for connection, heard_s in list(self._open.items()):
            if connection.session is None:
                if now_s - heard_s > self._core.limits.connect_s:
                    connection.fail("no CONNECT in time")
            elif connection.keepalive_s and now_s - heard_s > connection.keepalive_s:
                connection.fail("silent")

    def stop(self) -> None:
        """End every connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._open):
            connection.fail("broker stops")


class TcpPeer(asyncio.Protocol):
    """One accepted socket."""

    def __init__(self, core: BrokerCore, watch: Watch, memory: Memory, rate: Rate) -> None:
        self._core, self._watch, self._memory, self._rate = core, watch, memory, rate
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._transport: asyncio.Transport

    @property
    def backlog(self) -> int:
        """Bytes written and not yet taken by the peer."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """See `Wire.write`."""
        self._transport.write(data)

    def finish(self) -> None:
        """See `Wire.finish`."""
        self._transport.close()
        self._loop.call_later(_FINISH_S, self._transport.abort)

    def abort(self) -> None:
        """See `Wire.abort`."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket, or close it where a limit is reached."""
        # Not asserted: uvloop's transports are no subclasses of asyncio's.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        now_s = self._loop.time()
        refused = self._core.counters.refused
        if self._watch.count >= self._core.limits.connections:
            self._core.counters.count(refused, "too many connections")
            transport.abort()
        elif not self._rate.allows(address, now_s):
            self._core.counters.count(refused, "connects too often")
            transport.abort()
        else:
            sock: socket.socket | None = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = Connection(self._core, self, address, self._memory)
            self._watch.opened(self._connection, now_s)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        connection = self._connection
        if connection is not None and not connection.is_closed:
            connection.feed(data)
            self._watch.heard(connection, self._loop.time())

    def resume_writing(self) -> None:
        """The peer took what was waiting: send from its queue."""
        if self._connection is not None and self._connection.session is not None:
            self._connection.session.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._watch.closed(connection)
            if not connection.is_closed:
                connection.lost()


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
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(512)
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
