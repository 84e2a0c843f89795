"""A link inside the broker's own process: no socket, the same rules.

What a socket bounds is bounded here too: messages that a slow handler leaves waiting count as its
backlog, and beyond the limit QoS 0 is dropped and QoS 1 queued up to the session's bound.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from ispine.broker.core import BrokerCore
from ispine.broker.session import Outgoing, Session
from ispine.protocol.errors import ConnectionLost
from ispine.protocol.link import Handler, Message, StateListener, Will, check_size, check_topic
from ispine.protocol.topics import matches

log = logging.getLogger(__name__)

_BATCH = 64


class LocalPeer:
    """The session's end: holds what has arrived until the loop hands it out."""

    def __init__(
        self, limit: int, deliver: Callable[[Message], None], ended: Callable[[], None]
    ) -> None:
        self._limit = limit
        self._deliver = deliver
        self._ended = ended
        self._arrived: deque[tuple[Outgoing, int, int]] = deque()
        self._backlog = 0
        self._loop = asyncio.get_running_loop()
        self._is_drain_due = False
        self.session: Session | None = None

    @property
    def is_slow(self) -> bool:
        """See `Peer.is_slow`."""
        return self._backlog > self._limit

    def send(self, message: Outgoing, qos: int, mid: int, *, dup: bool = False) -> None:
        """See `Peer.send`."""
        self._arrived.append((message, qos, mid))
        self._backlog += message.size
        self._schedule()

    def release(self, mid: int) -> None:
        """See `Peer.release`: a link subscribes at QoS 0 or 1 only."""

    def close(self, reason: str) -> None:
        """See `Peer.close`."""
        log.info("link in process ended", extra={"why": reason})
        self.stop()

    def stop(self) -> None:
        """Forget what has arrived."""
        self._arrived.clear()
        self._backlog = 0
        if self.session is not None:
            self.session = None
            self._ended()

    def _schedule(self) -> None:
        if not self._is_drain_due:
            self._is_drain_due = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._is_drain_due = False
        for _ in range(min(_BATCH, len(self._arrived))):
            if self.session is None:
                return
            message, qos, mid = self._arrived.popleft()
            self._backlog -= message.size
            if qos:
                self.session.acknowledge(mid)
            self._deliver(Message(message.topic, message.payload, qos, message.retain))
        if self._arrived:
            self._schedule()
        elif self.session is not None:
            self.session.pump()


class LocalLink:
    """See `ispine.protocol.link.Link`.

    Args:
        core: the broker.
        name: MQTT client id and identity of the owner.
        will: published when the link is cut.
    """

    def __init__(self, core: BrokerCore, name: str, will: Will | None) -> None:
        self._core = core
        self._handlers: dict[str, Handler] = {}
        self._listeners: list[StateListener] = []
        self._peer = LocalPeer(core.limits.queue_bytes, self._hand_over, self._tell_ended)
        self._peer.session = core.attach(name, will, self._peer)

    @property
    def is_connected(self) -> bool:
        """Whether the broker still runs."""
        return self._peer.session is not None

    @property
    def endpoint(self) -> str:
        """Always "in-process"."""
        return "in-process"

    def _hand_over(self, message: Message) -> None:
        for topic_filter, handler in list(self._handlers.items()):
            if matches(topic_filter, message.topic):
                try:
                    handler(message)
                except Exception:  # the boundary: one bad message must not stop the broker
                    log.exception("handler failed", extra={"topic": message.topic})

    def _tell_ended(self) -> None:
        for listener in self._listeners:
            listener(False)

    async def connect(self) -> None:
        """Nothing to do: it is connected from the start.

        Raises:
            ConnectionLost: the broker has stopped.
        """
        self._alive()

    async def close(self) -> None:
        """Leave cleanly; the will is not published."""
        session = self._peer.session
        self._peer.stop()
        if session is not None and session.peer is self._peer:
            self._core.disconnect(session, is_clean=True)

    def _alive(self) -> Session:
        if self._peer.session is None:
            raise ConnectionLost("expected a running broker; it has stopped; start it again")
        return self._peer.session

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """See `ispine.protocol.link.Link.publish`."""
        check_topic(topic)
        check_size(payload)
        self._core.publish(self._alive(), Outgoing(topic, payload), qos, retain=retain)

    async def subscribe(self, topic_filter: str, handler: Handler, *, qos: int = 0) -> None:
        """See `ispine.protocol.link.Link.subscribe`."""
        session = self._alive()
        if self._core.subscribe(session, [(topic_filter, min(qos, 1))])[0] > 1:
            raise ConnectionLost(
                f"the broker refuses the subscription to {topic_filter};"
                " this identity may not read it"
            )
        self._handlers[topic_filter] = handler
        self._core.send_retained(session, topic_filter)

    async def unsubscribe(self, topic_filter: str) -> None:
        """See `ispine.protocol.link.Link.unsubscribe`."""
        session = self._peer.session
        if self._handlers.pop(topic_filter, None) is not None and session is not None:
            self._core.unsubscribe(session, [topic_filter])

    def add_state_listener(self, listener: StateListener) -> None:
        """See `ispine.protocol.link.Link.add_state_listener`."""
        self._listeners.append(listener)
