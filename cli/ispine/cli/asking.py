"""Questions and orders to the scheduler, over any broker."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from ispine.protocol.errors import BadId, ConfigError
from ispine.protocol.ids import new_task_id
from ispine.protocol.mqtt import MqttLink
from ispine.protocol.topics import DEFAULT_ROOT, Topics
from ispine.sdk.admin import ask_hub

Args = Mapping[str, str | int | float | bool | None]


class Asker:
    """A connected admin."""

    def __init__(self, link: MqttLink, topics: Topics) -> None:
        self._link = link
        self._topics = topics
        self._name = f"admin-{new_task_id()}"

    async def ask(self, verb: str, args: Args | None = None) -> Any:
        """One question; JSON values as the answer.

        Raises:
            ConnectionLost: no scheduler answers.
            TaskError: it refuses.
        """
        return await ask_hub(self._link, self._topics, self._name, verb, args)


@asynccontextmanager
async def asker(url: str, root: str = DEFAULT_ROOT) -> AsyncIterator[Asker]:
    """Connect, and leave in the end.

    Raises:
        ConnectionLost: no broker answers.
        ConfigError: a wrong URL or root.
    """
    try:
        topics = Topics(root)
    except BadId as error:
        raise ConfigError(f"--root: {error}") from error
    link = MqttLink(url, timeout_s=3)
    await link.connect()
    try:
        yield Asker(link, topics)
    finally:
        await link.close()


def ask(url: str, verb: str, args: Args | None = None, *, root: str = DEFAULT_ROOT) -> Any:
    """Connect, ask once, leave."""

    async def once() -> Any:
        async with asker(url, root) as asking:
            return await asking.ask(verb, args)

    return asyncio.run(once())
