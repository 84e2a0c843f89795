"""A broker and links in memory: the fake transport for tests, with faults on demand.

Semantics are those of `ispine.protocol.link`: handlers run from the event loop, retained messages
and wills work, and a link that is cut looks like a lost connection.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ispine.protocol.errors import ConnectionLost
from ispine.protocol.link import (
    Handler,
    Message,
    StateListener,
    Will,
    check_size,
    check_topic,
)
from ispine.protocol.topics import matches

Fault = Callable[[Message], list[Message]]
"""What becomes of a message on its way: nothing, itself, or copies."""


@dataclass(slots=True)
class MemoryBroker:
    """Routes messages between its links.

    Attributes:
        fault: applied to every message before delivery; None delivers as it is.
        published: every message that was accepted, in order, for assertions.
    """

    fault: Fault | None = None
    published: list[Message] = field(default_factory=list)
    retained: dict[str, Message] = field(default_factory=dict)
    links: "list[MemoryLink]" = field(default_factory=list)

    def link(self, will: Will | None = None) -> "MemoryLink":
        """A new link, not yet connected."""
        return MemoryLink(self, will)

    def route(self, message: Message) -> None:
        """Keep it if retained, and deliver it to every link with a matching filter."""
        self.published.append(message)
        if message.retained:
            if message.payload:
                self.retained[message.topic] = message
            else:
                self.retained.pop(message.topic, None)
        live = Message(message.topic, message.payload, message.qos)
        for delivered in [live] if self.fault is None else self.fault(live):
            for link in self.links:
                link.offer(delivered)


class MemoryLink:
    """One client of a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, will: Will | None = None) -> None:
        self._broker = broker
        self._will = will
        self._handlers: dict[str, Handler] = {}
        self._listeners: list[StateListener] = []
        self._connected = False

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent now."""
        return self._connected

    @property
    def endpoint(self) -> str:
        """Always "memory"."""
        return "memory"

    async def connect(self) -> None:
        """Join the broker."""
        self._broker.links.append(self)
        self._set_connected(True)

    async def close(self) -> None:
        """Leave cleanly; the will is not published."""
        if self._connected:
            self._broker.links.remove(self)
            self._set_connected(False)

    def cut(self) -> None:
        """Lose the connection; the will is published."""
        if self._connected:
            self._broker.links.remove(self)
            self._set_connected(False)
            if self._will is not None:
                self._broker.route(Message(self._will.topic, self._will.payload, 1, True))

    def restore(self) -> None:
        """Come back with the same subscriptions."""
        self._broker.links.append(self)
        for topic_filter, handler in self._handlers.items():
            self._send_retained(topic_filter, handler)
        self._set_connected(True)

    def _set_connected(self, connected: bool) -> None:
        self._connected = connected
        for listener in self._listeners:
            listener(connected)

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """See `ispine.protocol.link.Link.publish`."""
        check_topic(topic)
        check_size(payload)
        if not self._connected:
            raise ConnectionLost("expected a connected link; this one was cut; wait for it")
        self._broker.route(Message(topic, bytes(payload), qos, retain))

    async def subscribe(self, topic_filter: str, handler: Handler, *, qos: int = 0) -> None:
        """See `ispine.protocol.link.Link.subscribe`."""
        self._handlers[topic_filter] = handler
        self._send_retained(topic_filter, handler)

    def _send_retained(self, topic_filter: str, handler: Handler) -> None:
        loop = asyncio.get_running_loop()
        for message in list(self._broker.retained.values()):
            if matches(topic_filter, message.topic):
                loop.call_soon(self._deliver, topic_filter, handler, message)

    async def unsubscribe(self, topic_filter: str) -> None:
        """See `ispine.protocol.link.Link.unsubscribe`."""
        self._handlers.pop(topic_filter, None)

    def add_state_listener(self, listener: StateListener) -> None:
        """See `ispine.protocol.link.Link.add_state_listener`."""
        self._listeners.append(listener)

    def offer(self, message: Message) -> None:
        """Called by the broker: hand the message to the matching handlers, soon."""
        loop = asyncio.get_running_loop()
        for topic_filter, handler in self._handlers.items():
            if matches(topic_filter, message.topic):
                loop.call_soon(self._deliver, topic_filter, handler, message)

    def _deliver(self, topic_filter: str, handler: Handler, message: Message) -> None:
        if self._connected and self._handlers.get(topic_filter) is handler:
            handler(message)
