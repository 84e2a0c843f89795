"""Two agents with one device id would answer for each other: the newcomer gives up."""

import asyncio

from ispine.protocol.errors import ConfigError
from ispine.protocol.ids import DeviceId
from ispine.protocol.link import Link, Message
from ispine.protocol.state import ONLINE, DeviceState, parse
from ispine.protocol.topics import Topics

STATUS_WAIT_S = 0.3
HEARTBEAT_WAIT_S = 1.5
"""One and a half heartbeats."""
YOUNG_S = 10.0
"""Two agents that start together see each other's state within this time."""


def twin_error(device: DeviceId) -> ConfigError:
    """What the newcomer tells its owner."""
    return ConfigError(
        f"expected to be the only agent called {device!r}; another one is online;"
        " stop it or choose another --id"
    )


async def refuse_twin(link: Link, topics: Topics, device: DeviceId) -> None:
    """Look whether an agent with this id lives.

    Raises:
        ConfigError: one does.
    """
    statuses: list[bytes] = []
    heard = asyncio.Event()
    status, heartbeat = topics.status(device), topics.heartbeat(device)
    await link.subscribe(status, lambda message: statuses.append(message.payload), qos=1)
    await link.subscribe(heartbeat, lambda _: heard.set())
    try:
        await asyncio.sleep(STATUS_WAIT_S)
        if ONLINE in statuses[-1:]:
            # The status may be a leftover of a hub that died; a living twin has a heartbeat.
            await asyncio.wait_for(heard.wait(), HEARTBEAT_WAIT_S)
    except TimeoutError:
        return
    finally:
        await link.unsubscribe(status)
        await link.unsubscribe(heartbeat)
    if heard.is_set():
        raise twin_error(device)


def boot_of_twin(message: Message, boot: int) -> int | None:
    """The boot number in a state that another agent just published here, None where it is ours.

    Raises:
        RemoteProtocolError: not a device state.
    """
    if message.retained or not message.payload:
        return None
    seen = parse(DeviceState, message.payload).boot
    return seen if seen not in (0, boot) else None
