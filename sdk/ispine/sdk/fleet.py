"""What a client knows of the fleet: the retained states of its devices."""

import asyncio
import logging
from typing import TYPE_CHECKING

from ispine.protocol.errors import ProtocolError, RemoteProtocolError
from ispine.protocol.link import Link, Message
from ispine.protocol.topics import Topics
from ispine.sdk.pending import Stats

if TYPE_CHECKING:
    from ispine.protocol.state import DeviceState

log = logging.getLogger(__name__)

SETTLE_S = 0.05
"""The retained states are all there when none came for that long."""
LONGEST_S = 0.3


class FleetView:
    """Follows the states of all devices from the first question on."""

    def __init__(self, link: Link, topics: Topics, stats: Stats) -> None:
        self._link = link
        self._topics = topics
        self._stats = stats
        self._states: dict[str, DeviceState] = {}
        self._offline: set[str] = set()
        self._came = asyncio.Event()
        self._opening: asyncio.Task[None] | None = None

    async def devices(self) -> "list[DeviceState]":
        """The devices that are online, by id.

        Raises:
            ConnectionLost: the broker does not grant the subscription.
        """
        await asyncio.shield(self.follow())
        return self.known()

    def follow(self) -> asyncio.Task[None]:
        """Begin to follow, unless that was done; what it returns ends when the states are here."""
        if self._opening is None or _has_failed(self._opening):
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="fleet-view")
            self._opening.add_done_callback(_note_failure)
        return self._opening

    def known(self) -> "list[DeviceState]":
        """The devices that are online as far as it is known by now."""
        return [s for name, s in sorted(self._states.items()) if name not in self._offline]

    def places(self, capability: str) -> int:
        """Tasks of a capability that the known devices hold at once; a device takes slots + 1."""
        return sum(
            device.slots + 1
            for device in self.known()
            if device.accepts
            and not device.is_draining
            and any(offered.name == capability for offered in device.capabilities)
        )

    async def close(self) -> None:
        """Stop opening."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    async def _open(self) -> None:
        await asyncio.to_thread(_load_states)  # pydantic takes a while, the loop should not stall
        await self._link.subscribe(self._topics.any_status, self._on_status, qos=1)
        await self._link.subscribe(self._topics.any_state, self._on_state, qos=1)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + LONGEST_S
        while (left_s := deadline_s - loop.time()) > 0:
            self._came.clear()
            try:
                async with asyncio.timeout(min(left_s, SETTLE_S)):
                    await self._came.wait()
            except TimeoutError:
                return

    def _on_state(self, message: Message) -> None:
        self._came.set()
        from ispine.protocol.state import DeviceState, parse

        try:
            device = self._topics.read_device(message.topic)
            if message.payload:
                self._states[device] = parse(DeviceState, message.payload)
            else:
                self._states.pop(device, None)
        except ProtocolError as error:
            self._malformed(message, error)

    def _on_status(self, message: Message) -> None:
        self._came.set()
        try:
            device = self._topics.read_device(message.topic)
        except ProtocolError as error:
            self._malformed(message, error)
            return
        if message.payload == b"online":
            self._offline.discard(device)
        elif message.payload in (b"offline", b""):
            self._offline.add(device)
        else:
            self._malformed(message, RemoteProtocolError("expected 'online' or 'offline'"))

    def _malformed(self, message: Message, error: ProtocolError) -> None:
        self._stats.malformed += 1
        log.warning("malformed state", extra={"topic": message.topic, "why": str(error)})


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _note_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.debug("the fleet cannot be seen", extra={"why": str(error)})


def _load_states() -> None:
    import ispine.protocol.state  # noqa: F401 - imported for its cost
