"""What every broker engine can do."""

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from ispine.broker.config import BrokerConfig, Rule, User
from ispine.protocol.errors import ConfigError
from ispine.protocol.link import Link, Will

log = logging.getLogger(__name__)


class Engine(Protocol):
    """A broker that runs here or elsewhere."""

    @property
    def name(self) -> str:
        """`embedded`, `mosquitto` or `external`."""

    @property
    def url(self) -> str:
        """Where clients connect, without credentials; known after `start`."""

    @property
    def ws_url(self) -> str | None:
        """Where WebSocket clients connect; None where there is no such listener."""

    async def start(self) -> None:
        """Serve.

        Raises:
            ConfigError: a port in use, a missing program, a wrong URL.
            ConnectionLost: an external broker does not answer.
        """

    async def stop(self) -> None:
        """Stop serving; idempotent."""

    async def attach(self, name: str, will: Will | None = None) -> Link:
        """A connected link for a part of the hub."""

    async def replace_access(self, users: Iterable[User], rules: Iterable[Rule]) -> None:
        """From now on other users and rules; who is no user any more is disconnected.

        Raises:
            ConfigError: somebody else's broker, whose access only its operator can change.
        """

    def stats(self) -> Mapping[str, int | float]:
        """Counters by name, for the doctor."""


def engine_for(config: BrokerConfig) -> Engine:
    """The engine that a configuration names, not yet started.

    Raises:
        ConfigError: it cannot run here.
    """
    if config.engine == "external":
        from ispine.broker.external import ExternalEngine

        return ExternalEngine(config)
    if config.engine == "mosquitto":
        from ispine.broker.mosquitto import MosquittoEngine

        return MosquittoEngine(config)
    if config.engine == "auto":
        return _best(config)
    return _embedded(config)


def _best(config: BrokerConfig) -> Engine:
    from ispine.broker.mosquitto import MosquittoEngine, why_not

    why = why_not(config)
    if why is None:
        return MosquittoEngine(config)
    log.info("taking the embedded broker", extra={"why": why})
    return _embedded(config)


def _embedded(config: BrokerConfig) -> Engine:
    try:
        from ispine.broker.embedded import EmbeddedEngine
    except ImportError as error:
        raise ConfigError(
            f"expected the package amqtt for the embedded broker; {error};"
            " install it with: pip install 'ispine[hub]'"
        ) from error
    return EmbeddedEngine(config)
