"""Finding the hub."""

import asyncio
import math
import os
import re
import secrets
import socket

from ispine.protocol.errors import BadId, ConfigError, ConnectionLost
from ispine.protocol.ids import ClientId, check_id
from ispine.protocol.link import Link

DEFAULT_URL = "mqtt://127.0.0.1:1883"
LONGEST_TIMEOUT_S = 3600.0
FIND_S = 1.5


def default_client_id() -> str:
    """This machine's name and a random part, fit to stand in a topic."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().split(".")[0]).strip("-")
    return f"{name[:40] or 'wearable'}-{secrets.token_hex(4)}"


def check_client_id(client_id: str | None) -> ClientId:
    """The id to use, a fresh one for None.

    Raises:
        ConfigError: it may not stand in a topic.
    """
    try:
        return ClientId(check_id(client_id or default_client_id(), "client id"))
    except BadId as error:
        raise ConfigError(str(error)) from error


def check_timeout(timeout_s: float) -> float:
    """A time to wait, unchanged.

    Raises:
        ConfigError: not a positive number of seconds below an hour.
    """
    if not math.isfinite(timeout_s) or not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise ConfigError(
            f"expected timeout_s above 0 and at most {LONGEST_TIMEOUT_S:g}; got {timeout_s!r}"
        )
    return timeout_s


async def open_link(url: str | None, timeout_s: float) -> Link:
    """Connect to the hub that `url` names, else `ISPINE_URL`, else mDNS, else this machine.

    Raises:
        ConnectionLost: no hub answers within `timeout_s`; says where it was looked for.
        ConfigError: a wrong URL.
    """
    named = url or os.environ.get("ISPINE_URL")
    tried: list[str] = []
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    candidates = [named] if named else [*await _found_urls(timeout_s, tried), DEFAULT_URL]
    for number, candidate in enumerate(candidates):
        # An address that does not answer must leave time for the next one.
        left_s = (deadline_s - loop.time()) / (len(candidates) - number)
        if left_s <= 0:
            break
        try:
            return await _connect(candidate, left_s)
        except ConnectionLost as error:
            tried.append(str(error))
        except ConfigError as error:
            if named:
                raise
            tried.append(str(error))  # somebody else announced it
    raise ConnectionLost(
        f"expected a hub; {'; '.join(tried)}."
        " Start one with 'ispine hub', or name it with url= or ISPINE_URL"
    )


async def _connect(url: str, timeout_s: float) -> Link:
    from ispine.protocol.mqtt import MqttLink

    link = MqttLink(url, timeout_s=timeout_s)
    await link.connect()
    return link


async def _found_urls(timeout_s: float, tried: list[str]) -> list[str]:
    from ispine.protocol.discovery import find_hub

    found = await find_hub(min(FIND_S, timeout_s / 2))
    if found is None:
        tried.append("no hub announced itself by mDNS")
        return []
    return [url for url in found.urls if url != DEFAULT_URL]
