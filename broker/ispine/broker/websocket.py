"""MQTT over WebSocket, for browsers: frames up to the packet limit, no compression.

The frames are read and written by the protocol core of the package `websockets`, which does no
I/O, on the same sockets, limits and deadlines as plain TCP. A page may connect only from this
machine's own addresses or from a listed origin: else any web page that the owner opens could act
as an anonymous client through the browser.
"""

import ipaddress
import logging
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from ispine.broker.access import is_loopback
from ispine.broker.core import BrokerCore
from ispine.broker.listener import Gate, TcpPeer
from ispine.broker.packets import CONTROL_BYTES

# At DEBUG the package would log what frames contain.
_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.WARNING)


def is_allowed_origin(headers: Headers, allowed: Sequence[str]) -> bool:
    """Whether a page may connect: it is listed, or it came from the very host it connects to.

    A host name does not count as the same host unless it is local: its owner can point it here.
    """
    origin = headers.get("Origin")
    if origin is None or origin in allowed:
        return True
    host = _host(f"//{headers.get('Host', '')}")
    return _host(origin) == host and _is_local_name(host)


def _host(url: str) -> str:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    return "localhost" if is_loopback(host) else host


def _is_local_name(host: str) -> bool:
    if host == "localhost" or host.endswith(".local"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class WebSocketPeer(TcpPeer):
    """One accepted socket that speaks WebSocket with the subprotocol `mqtt`."""

    def __init__(self, core: BrokerCore, gate: Gate, origins: Sequence[str]) -> None:
        super().__init__(core, gate)
        self._origins = origins
        self._frames: deque[memoryview] = deque()
        self._unparsed = 0
        self._protocol = ServerProtocol(
            subprotocols=[Subprotocol("mqtt")], max_size=2 * CONTROL_BYTES, logger=_quiet
        )

    def fail(self, reason: str) -> None:
        """See `ispine.broker.intake.Holder`."""
        if self._connection is not None:
            self._connection.fail(reason)

    def write(self, data: bytes | bytearray) -> None:
        """See `Wire.write`: one packet, one frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(bytes(data))
            self._flush()

    def finish(self) -> None:
        """See `Wire.finish`."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._flush()
        super().finish()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                super().write(data)
            else:
                self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return memoryview(self._gate.memory.scratch)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came: frames or parts of them."""
        connection = self._connection
        if connection is None or connection.is_closed:
            return
        self._unparsed += nbytes
        self._protocol.receive_data(bytes(memoryview(self._gate.memory.scratch)[:nbytes]))
        for event in self._protocol.events_received():
            self._unparsed = 0
            if isinstance(event, Request):
                self._answer(event)
            else:
                self._take_frame(event)
        self._gate.memory.hold(self, self._unparsed)
        self._flush()
        with self._gate.turn():
            self._feed()
        self._gate.heard(connection, self._loop.time())

    def _answer(self, request: Request) -> None:
        protocol = self._protocol
        if is_allowed_origin(request.headers, self._origins):
            response = protocol.accept(request)
        else:
            self._core.counters.count(self._core.counters.refused, "origin of another site")
            response = protocol.reject(
                HTTPStatus.FORBIDDEN,
                "expected a page of this machine; allow another one with --ws-origin\n",
            )
        protocol.send_response(response)

    def _take_frame(self, event: object) -> None:
        if not isinstance(event, Frame):
            return
        if event.opcode is Opcode.TEXT:
            self.fail("text frame")
        elif event.opcode in (Opcode.BINARY, Opcode.CONT) and event.data:
            self._frames.append(memoryview(event.data))

    def _feed(self) -> None:
        connection = self._connection
        while connection is not None and self._frames and not connection.has_more:
            if connection.is_closed:
                self._frames.clear()
                return
            data = self._frames.popleft()
            used = connection.feed(data)
            if used < len(data):
                self._frames.appendleft(data[used:])
        if connection is not None and connection.session is not None:
            self._protocol.max_size = self._core.limits.packet_bytes + CONTROL_BYTES

    def _next_turn(self) -> None:
        super()._next_turn()
        with self._gate.turn():
            self._feed()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._gate.memory.hold(self, 0)
        self._frames.clear()
        super().connection_lost(exc)
