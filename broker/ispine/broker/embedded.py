"""The broker inside the hub's own process."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from ispine.broker.config import BrokerConfig, Rule, User
from ispine.broker.core import BrokerCore
from ispine.broker.listener import (
    ACCEPTED_AT_ONCE,
    BACKLOG,
    Gate,
    TcpPeer,
    allow_open_files,
    bind,
)
from ispine.broker.local import LocalLink
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
        self._gate = Gate(self.core)
        self._servers: list[asyncio.Server] = []
        self._links: list[LocalLink] = []
        self._port = config.port
        self._ws_port = config.ws_port

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"mqtt://{self._shown_host}:{self._port}"

    @property
    def ws_url(self) -> str | None:
        """Where WebSocket clients connect, None without that listener."""
        return None if self._ws_port is None else f"ws://{self._shown_host}:{self._ws_port}/mqtt"

    @property
    def _shown_host(self) -> str:
        host = self._config.host
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"[{host}]" if ":" in host else host

    async def start(self) -> None:
        """See `Engine.start`."""
        limits = self._config.limits
        allow_open_files(limits.connections + limits.waiting_connects)
        try:
            self._port = await self._listen(self._config.port, self._tcp_peer)
            if self._config.ws_port is not None:
                self._ws_port = await self._listen(self._config.ws_port, self._ws_peer)
        except BaseException:
            await self.stop()
            raise

    async def _listen(self, port: int, factory: Callable[[], asyncio.BaseProtocol]) -> int:
        listening = bind(self._config.host, port)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, sock=listening, backlog=ACCEPTED_AT_ONCE)
        listening.listen(BACKLOG)
        self._servers.append(server)
        return int(listening.getsockname()[1])

    def _tcp_peer(self) -> TcpPeer:
        return TcpPeer(self.core, self._gate)

    def _ws_peer(self) -> TcpPeer:
        from ispine.broker.websocket import WebSocketPeer

        return WebSocketPeer(self.core, self._gate, self._config.ws_origins)

    async def stop(self) -> None:
        """See `Engine.stop`."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for link in self._links:
            await link.close()
        self._links.clear()
        await self._gate.stop()

    async def attach(self, name: str, will: Will | None = None) -> Link:
        """See `Engine.attach`: no socket between."""
        link = LocalLink(self.core, name, will)
        self._links.append(link)
        return link

    async def replace_access(self, users: Iterable[User], rules: Iterable[Rule]) -> None:
        """See `Engine.replace_access`."""
        self.core.replace_access(users, rules)

    def stats(self) -> Mapping[str, int | float]:
        """See `Engine.stats`."""
        return {
            **self.core.stats(),
            "open_connections": self._gate.count,
            "unfinished_bytes": self._gate.memory.used,
            "unread_bytes": self._gate.backlog_bytes,
        }
