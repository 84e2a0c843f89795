"""The hub: broker and scheduler in one process; and each of them alone."""

import asyncio
import ipaddress
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ispine.broker import BrokerConfig, Engine, engine_for
from ispine.cli.ports import holder
from ispine.cli.running import say_ready, until_told_to_stop
from ispine.protocol.discovery import Announcement
from ispine.protocol.errors import ConfigError
from ispine.protocol.link import Link
from ispine.protocol.mqtt import MqttLink
from ispine.protocol.topics import DEFAULT_ROOT
from ispine.scheduler.config import SchedulerConfig
from ispine.scheduler.service import SchedulerService

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HubOptions:
    """What `ispine hub` was told.

    Attributes:
        broker: engine and address.
        hub_id: names the hub on the wire and by mDNS.
        data: folder for the journal, None for no durable tasks.
        announce: whether to announce the hub by mDNS.
        root: of the topics.
        as_json: whether the ready line is JSON.
    """

    broker: BrokerConfig
    hub_id: str = "hub"
    data: Path | None = None
    announce: bool = True
    root: str = DEFAULT_ROOT
    as_json: bool = False


def scheduler_config(options: HubOptions, url: str) -> SchedulerConfig:
    """Settings of the scheduler inside a hub."""
    from importlib.metadata import version

    return SchedulerConfig(
        hub_id=options.hub_id,
        root=options.root,
        journal=None if options.data is None else options.data / "journal.sqlite",
        urls=(url,),
        version=version("ispine"),
    )


async def run_hub(options: HubOptions) -> None:
    """Serve until told to stop.

    Raises:
        ConfigError: a port in use, an unusable data folder, another scheduler.
    """
    async with until_told_to_stop() as stopped:
        engine = await _started(options.broker)
        try:
            link = await engine.attach(options.hub_id)
            await _schedule(link, options, engine, stopped)
        finally:
            await engine.stop()


async def _started(config: BrokerConfig) -> Engine:
    """The broker, serving.

    With `auto`, a mosquitto that does not come up (as where the system forbids it to read files of
    ours) makes room for the embedded engine.

    Raises:
        ConfigError: it does not come up; where its port is taken, with the name of who holds it.
        ConnectionLost: an external broker does not answer.
    """
    engine = engine_for(config)
    try:
        await engine.start()
    except ConfigError as error:
        if config.engine == "auto" and engine.name == "mosquitto":
            log.warning("taking the embedded broker", extra={"why": str(error)})
            return await _started(config.model_copy(update={"engine": "embedded"}))
        raise _with_holder(error, config) from error
    return engine


def _with_holder(error: ConfigError, config: BrokerConfig) -> ConfigError:
    who = holder(config.port) if config.engine != "external" and config.port else ""
    return ConfigError(f"{error}; port {config.port} is held by {who}") if who else error


async def _schedule(
    link: Link, options: HubOptions, engine: Engine, stopped: asyncio.Event
) -> None:
    url = engine.url
    service = SchedulerService(link, scheduler_config(options, url), more_stats=engine.stats)
    await service.start()
    announcement = await _announce(options, url) if options.announce else None
    try:
        say_ready("hub", as_json=options.as_json, url=url, engine=engine.name)
        await stopped.wait()
    finally:
        if announcement is not None:
            await announcement.close()
        await service.stop()


async def _announce(options: HubOptions, url: str) -> Announcement | None:
    """Announce by mDNS; a network without multicast is no reason not to serve."""
    host = options.broker.host
    if options.broker.engine == "external" or _is_loopback(host):
        return None
    announcement = Announcement(options.hub_id, host, int(url.rsplit(":", 1)[1]))
    try:
        await announcement.open()
    except OSError as error:
        log.warning("not announced by mDNS", extra={"why": str(error)})
        return None
    return announcement


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def run_broker(config: BrokerConfig, *, as_json: bool) -> None:
    """Only the broker."""
    async with until_told_to_stop() as stopped:
        engine = await _started(config)
        try:
            say_ready("broker", as_json=as_json, url=engine.url, engine=engine.name)
            await stopped.wait()
        finally:
            await engine.stop()


async def run_scheduler(url: str, options: HubOptions) -> None:
    """Only the scheduler, on a broker that runs elsewhere."""
    link = MqttLink(url, client_id=f"{options.hub_id}-scheduler")
    await link.connect()
    try:
        async with until_told_to_stop() as stopped:
            service = SchedulerService(link, scheduler_config(options, link.endpoint))
            await service.start()
            try:
                say_ready("scheduler", as_json=options.as_json, url=link.endpoint)
                await stopped.wait()
            finally:
                await service.stop()
    finally:
        await link.close()


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, on uvloop where that is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)
