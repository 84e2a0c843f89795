"""Two schedulers on one broker would both answer every task: the second one refuses to start."""

import asyncio
import json
import secrets

from ispine.protocol.errors import ConfigError, RemoteProtocolError
from ispine.protocol.link import Link, Message
from ispine.protocol.state import AdminAnswer, AdminRequest, HubInfo, dump, parse
from ispine.protocol.topics import Topics
from ispine.scheduler.config import SchedulerConfig

_RETAINED_WAIT_S = 0.05


async def find_rival(link: Link, topics: Topics, config: SchedulerConfig, boot: int) -> int:
    """Make sure that nobody else schedules here.

    A retained hub message may be left over from one that crashed, so its author is asked.

    Returns:
        The term to serve in: one above the last one seen.

    Raises:
        ConfigError: the other one answered.
    """
    info = await _retained_hub(link, topics)
    if info is None:
        return 1
    if info.is_serving and info.boot != boot:
        other = await _hello(link, topics, config.rival_wait_s)
        if other is not None:
            raise ConfigError(
                f"expected no other scheduler on {link.endpoint}; {other} serves there;"
                " stop it, or use another --root"
            )
    return info.term + 1


async def _retained_hub(link: Link, topics: Topics) -> HubInfo | None:
    found: asyncio.Future[HubInfo] = asyncio.get_running_loop().create_future()

    def take(message: Message) -> None:
        if not found.done():
            try:
                found.set_result(parse(HubInfo, message.payload))
            except RemoteProtocolError as error:
                found.set_exception(error)

    await link.subscribe(topics.hub, take, qos=1)
    try:
        async with asyncio.timeout(_RETAINED_WAIT_S):
            return await found
    except (TimeoutError, RemoteProtocolError):
        return None
    finally:
        await link.unsubscribe(topics.hub)


async def _hello(link: Link, topics: Topics, wait_s: float) -> str | None:
    """The hub id of a scheduler that answers, None when none does."""
    me = f"rival-{secrets.token_hex(6)}"
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def take(message: Message) -> None:
        if found.done():
            return
        try:
            data = json.loads(parse(AdminAnswer, message.payload).data)
        except (RemoteProtocolError, ValueError):
            return
        found.set_result(str(data.get("hub", "a hub")) if isinstance(data, dict) else "a hub")

    await link.subscribe(topics.answers_of(me), take, qos=1)
    try:
        link.publish(topics.admin(me, "hello"), dump(AdminRequest(verb="hello")), qos=1)
        async with asyncio.timeout(wait_s):
            return await found
    except TimeoutError:
        return None
    finally:
        await link.unsubscribe(topics.answers_of(me))
