"""What the agent says to the fleet: replies, heartbeats, status and state."""

import logging
from collections.abc import Callable
from dataclasses import replace

from ispine.agent.executor import MAX_MESSAGE_CHARS
from ispine.protocol.chunks import Stamper
from ispine.protocol.codec import MAX_LIST_ENTRIES
from ispine.protocol.errors import (
    ConnectionLost,
    ExecutionFailed,
    LocalProtocolError,
    TooLarge,
)
from ispine.protocol.ids import DeviceId
from ispine.protocol.link import Link
from ispine.protocol.messages import Heartbeat, Reply
from ispine.protocol.state import OFFLINE, ONLINE, DeviceState, dump
from ispine.protocol.topics import Topics

log = logging.getLogger(__name__)


class Outbox:
    """Publishes for one device; what cannot be sent now is dropped.

    Replies are kept by the core and repeated, status and state are said again on a new connection.

    Args:
        link: connected or not.
        topics: of the fleet.
        device: whose messages they are.
        boot: random number of this run.
        clock: returns `boot_ns`.
    """

    def __init__(
        self, link: Link, topics: Topics, device: DeviceId, boot: int, clock: Callable[[], int]
    ) -> None:
        self._link = link
        self._stamper = Stamper(device, boot, clock)
        self._device = device
        self._reply_topic = topics.reply(device)
        self._heartbeat_topic = topics.heartbeat(device)
        self._status_topic = topics.status(device)
        self._state_topic = topics.state(device)

    def follow(self, term: int) -> None:
        """Stamp what follows with the term of the hub, if it is a newer one."""
        self._stamper.term = max(self._stamper.term, term)

    def reply(self, reply: Reply, trace: str, only: tuple[int, ...] | None = None) -> None:
        """Answer an attempt; `only` sends just these chunks again."""
        try:
            frames = self._stamper.frames(reply, trace=trace, only=only)
        except (TooLarge, LocalProtocolError) as error:
            frames = self._stamper.frames(_failed(reply, str(error)), trace=trace)
        for frame in frames:
            self._say(self._reply_topic, frame, qos=1)

    def heartbeat(self, outstanding: int, free_slots: int, held: tuple[str, ...]) -> None:
        """Say that the device lives, and what it holds."""
        beat = Heartbeat(self._device, outstanding, free_slots, held[:MAX_LIST_ENTRIES])
        self._say(self._heartbeat_topic, self._stamper.frames(beat)[0])

    def status(self, is_online: bool) -> None:
        """Say that the device comes or goes."""
        self._say(self._status_topic, ONLINE if is_online else OFFLINE, qos=1, retain=True)

    def state(self, state: DeviceState) -> None:
        """Say what the device is."""
        self._say(self._state_topic, dump(state), qos=1, retain=True)

    def _say(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        try:
            self._link.publish(topic, payload, qos=qos, retain=retain)
        except ConnectionLost:
            log.debug("not sent, the link is down", extra={"topic": topic})


def _failed(reply: Reply, why: str) -> Reply:
    return replace(
        reply,
        kind="failed",
        code=ExecutionFailed.code,
        message=why[:MAX_MESSAGE_CHARS],
        data=b"",
        content_type="",
        variant="",
    )
