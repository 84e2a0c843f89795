"""A broker that somebody else runs."""

import asyncio
from collections.abc import Iterable, Mapping

from ispine.broker.config import BrokerConfig, Rule, User
from ispine.protocol.errors import ConfigError
from ispine.protocol.link import Link, Will
from ispine.protocol.mqtt import MqttLink, parse_url


class ExternalEngine:
    """See `ispine.broker.engine.Engine`: nothing is started, links lead to the URL.

    Args:
        config: with `url` set.
    """

    name = "external"

    def __init__(self, config: BrokerConfig) -> None:
        if not config.url:
            raise ConfigError("expected the URL of the external broker; got none; give --url")
        self._url = config.url
        self._shown = str(parse_url(config.url))
        self._links: list[MqttLink] = []

    @property
    def url(self) -> str:
        """Where it is, without credentials."""
        return self._shown

    @property
    def ws_url(self) -> str | None:
        """Unknown: its operator knows."""
        return None

    async def start(self) -> None:
        """Connect once, to tell at once when it is not there."""
        probe = MqttLink(self._url)
        await probe.connect()
        await probe.close()

    async def stop(self) -> None:
        """Close the links; the broker runs on."""
        await asyncio.gather(*(link.close() for link in self._links))
        self._links.clear()

    async def attach(self, name: str, will: Will | None = None) -> Link:
        """See `Engine.attach`."""
        link = MqttLink(self._url, client_id=name, will=will)
        await link.connect()
        self._links.append(link)
        return link

    async def replace_access(self, users: Iterable[User], rules: Iterable[Rule]) -> None:
        """See `Engine.replace_access`.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"expected a broker of our own; {self._shown} is somebody else's; give its operator the"
            " files that docs/scale.md describes"
        )

    def stats(self) -> Mapping[str, int | float]:
        """What can be counted from outside: the hub's own links."""
        return {
            "links": len(self._links),
            "dropped: link congested": sum(link.dropped for link in self._links),
        }
