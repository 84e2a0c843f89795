"""The broker inside the hub's own process."""

import asyncio
from collections.abc import Mapping

from ispine.broker.config import BrokerConfig
from ispine.broker.connection import Memory
from ispine.broker.core import BrokerCore
from ispine.broker.listener import Rate, TcpPeer, Watch, bind
from ispine.broker.local import LocalLink
from ispine.broker.websocket import WebSocketListener
from ispine.protocol.link import Link, Will


class EmbeddedEngine:
    """See `ispine.broker.engine.Engine`.

    Args:
        config: address, limits, users and rules.
    """

    name = "embedded"

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.core = BrokerCore(config)
        self._memory = Memory(config.limits.unfinished_bytes)
        self._rate = Rate(config.limits.connects_per_s)
        self._watch = Watch(self.core)
        self._server: asyncio.Server | None = None
        self._websocket: WebSocketListener | None = None
        self._links: list[LocalLink] = []
        self._port = config.port

    @property
    def url(self) -> str:
        """Where clients connect."""
        host = self._config.host
        if host in ("", "0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"mqtt://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def ws_url(self) -> str | None:
        """Where WebSocket clients connect, None without that listener."""
        return None if self._websocket is None else self._websocket.url

    async def start(self) -> None:
        """See `Engine.start`."""
        listening = bind(self._config.host, self._config.port)
        self._port = listening.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._new_peer, sock=listening)
        if self._config.ws_port is not None:
            self._websocket = WebSocketListener(
                self.core, self._watch, self._memory, self._rate, self._config
            )
            try:
                await self._websocket.start()
            except BaseException:
                await self.stop()
                raise

    def _new_peer(self) -> TcpPeer:
        return TcpPeer(self.core, self._watch, self._memory, self._rate)

    async def stop(self) -> None:
        """See `Engine.stop`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._websocket is not None:
            await self._websocket.stop()
            self._websocket = None
        self._watch.stop()
        for link in self._links:
            await link.close()
        self._links.clear()

    async def attach(self, name: str, will: Will | None = None) -> Link:
        """See `Engine.attach`: no socket between."""
        link = LocalLink(self.core, name, will)
        self._links.append(link)
        return link

    def stats(self) -> Mapping[str, int | float]:
        """See `Engine.stats`."""
        return {
            **self.core.stats(),
            "open_connections": self._watch.count,
            "unfinished_bytes": self._memory.used,
        }
