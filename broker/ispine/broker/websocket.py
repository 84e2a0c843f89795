"""MQTT over WebSocket, for browsers: frames up to the packet limit, no compression."""

import asyncio
from collections import deque
from contextlib import suppress

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from ispine.broker.config import BrokerConfig
from ispine.broker.connection import Connection, Memory
from ispine.broker.core import BrokerCore
from ispine.broker.listener import Rate, Watch, bind

_FINISH_S = 2.0


class WebSocketWire:
    """The writing end of one WebSocket: a queue and the task that empties it."""

    def __init__(self, socket: ServerConnection) -> None:
        self._socket = socket
        self._queue: deque[bytes] = deque()
        self._waiting = asyncio.Event()
        self._queued_bytes = 0
        self._is_finishing = False

    @property
    def backlog(self) -> int:
        """Bytes written and not yet taken by the peer."""
        return self._queued_bytes + self._socket.transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """See `Wire.write`."""
        self._queue.append(data)
        self._queued_bytes += len(data)
        self._waiting.set()

    def finish(self) -> None:
        """See `Wire.finish`."""
        self._is_finishing = True
        self._waiting.set()

    def abort(self) -> None:
        """See `Wire.abort`."""
        self._socket.transport.abort()
        self.finish()

    async def run(self) -> None:
        """Send until the wire is finished or the peer is gone."""
        with suppress(ConnectionClosed):
            while True:
                await self._waiting.wait()
                self._waiting.clear()
                while self._queue:
                    data = self._queue.popleft()
                    await self._socket.send(data)
                    self._queued_bytes -= len(data)
                if self._is_finishing:
                    return


class WebSocketListener:
    """Accepts WebSockets with the subprotocol `mqtt`.

    Args:
        core: where sessions live.
        watch: keepalives and deadlines, shared with TCP.
        memory: unfinished packets, shared with TCP.
        rate: connections per address, shared with TCP.
        config: address and limits.
    """

    def __init__(
        self, core: BrokerCore, watch: Watch, memory: Memory, rate: Rate, config: BrokerConfig
    ) -> None:
        self._core, self._watch, self._memory, self._rate = core, watch, memory, rate
        self._config = config
        self._server: Server | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the port is in use.
        """
        listening = bind(self._config.host, self._config.ws_port or 0)
        port = listening.getsockname()[1]
        self.url = f"ws://{self._config.host}:{port}/mqtt"
        self._server = await serve(
            self._serve,
            sock=listening,
            subprotocols=[Subprotocol("mqtt")],
            compression=None,
            max_size=self._core.limits.packet_bytes + 64 * 1024,
            max_queue=4,
            open_timeout=self._core.limits.connect_s,
            ping_interval=None,
            close_timeout=_FINISH_S,
            server_header=None,
        )

    async def stop(self) -> None:
        """Stop listening and end what is open."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, socket: ServerConnection) -> None:
        loop = asyncio.get_running_loop()
        peer = socket.remote_address
        address = str(peer[0]) if peer else ""
        refused = self._core.counters.refused
        if self._watch.count >= self._core.limits.connections:
            self._core.counters.count(refused, "too many connections")
            return
        if not self._rate.allows(address, loop.time()):
            self._core.counters.count(refused, "connects too often")
            return
        wire = WebSocketWire(socket)
        connection = Connection(self._core, wire, address, self._memory)
        self._watch.opened(connection, loop.time())
        try:
            await self._exchange(socket, wire, connection)
        finally:
            self._watch.closed(connection)
            if not connection.is_closed:
                connection.lost()

    async def _exchange(
        self, socket: ServerConnection, wire: WebSocketWire, connection: Connection
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(wire.run(), name="websocket-writer")
            with suppress(ConnectionClosed):
                async for data in socket:
                    if isinstance(data, str):
                        connection.fail("text frame")
                    else:
                        connection.feed(data)
                    if connection.is_closed:
                        break
                    self._watch.heard(connection, asyncio.get_running_loop().time())
            if connection.is_closed:
                wire.finish()
            else:
                writer.cancel()
