"""The one interface through which components reach a broker.

Three links implement it: `ispine.protocol.mqtt.MqttLink` (paho over a socket),
`ispine.protocol.memory.MemoryLink` (in memory, for tests), and the in-process link of the embedded
broker. All keep the same semantics:

* a handler never runs on the stack of the call that caused it;
* handlers run on the event loop that `connect` ran on, one at a time, in order per publisher;
* a QoS 0 message to a reader that does not keep up is dropped and counted, never buffered
  without bound;
* a filter that is subscribed again replaces the earlier subscription and its QoS, and retained
  messages are sent again;
* subscriptions survive a reconnect: the link makes them again by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ispine.protocol.errors import LocalProtocolError

MAX_TOPIC_BYTES = 1024
MAX_PACKET_BYTES = 8 * 1024 * 1024 + 64 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it was delivered.

    Attributes:
        topic: the concrete topic, no wildcards.
        payload: the bytes; owned by the receiver, not to be changed.
        qos: 0 or 1, as delivered.
        retained: it was sent because of a new subscription, not because somebody just published.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retained: bool = False


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained, for a client that vanishes (always QoS 1)."""

    topic: str
    payload: bytes


Handler = Callable[[Message], None]
StateListener = Callable[[bool], None]


def check_topic(topic: str) -> None:
    """Refuse a topic that may not be published to.

    Raises:
        LocalProtocolError: empty, too long, with a wildcard or NUL, or beginning with "$".
    """
    illegal = not topic or topic[0] == "$" or any(mark in topic for mark in "+#\0")
    if illegal or len(topic.encode()) > MAX_TOPIC_BYTES:
        raise LocalProtocolError(
            f"expected a topic of 1 to {MAX_TOPIC_BYTES} bytes without '+', '#', NUL or a leading"
            f" '$'; got {topic[:80]!r}"
        )


def check_size(payload: bytes) -> None:
    """Refuse a payload above one packet.

    Raises:
        LocalProtocolError: above `MAX_PACKET_BYTES`.
    """
    if len(payload) > MAX_PACKET_BYTES - MAX_TOPIC_BYTES:
        raise LocalProtocolError(
            f"expected a payload of at most {MAX_PACKET_BYTES - MAX_TOPIC_BYTES} bytes;"
            f" got {len(payload)}"
        )


class Link(Protocol):
    """A connection to a broker. All methods are called on the event loop's thread."""

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent now."""

    @property
    def endpoint(self) -> str:
        """Where it leads, for messages to people: a URL without credentials, or "in-process"."""

    async def connect(self) -> None:
        """Connect once; later reconnects are the link's own work.

        Raises:
            ConnectionLost: nobody answered in time.
            ConfigError: the URL or the credentials are wrong.
        """

    async def close(self) -> None:
        """Disconnect cleanly: the will is not published. Idempotent."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Queue one message; never waits.

        Args:
            topic: concrete, at most 1024 bytes, no wildcard, no NUL, not beginning with "$".
            payload: at most `MAX_PACKET_BYTES` less the topic; not copied, not to be changed.
            qos: 0 or 1.
            retain: replace the topic's retained message; with an empty payload, clear it.

        Raises:
            ConnectionLost: the link is down; nothing was queued.
            LocalProtocolError: illegal topic or too large.
        """

    async def subscribe(self, topic_filter: str, handler: Handler, *, qos: int = 0) -> None:
        """Deliver what matches to `handler` until `unsubscribe` or `close`.

        Returns once the broker has granted it, and raises `ConnectionLost` if it refuses.
        The filters of one link must not overlap: brokers differ in how often they then deliver.
        """

    async def unsubscribe(self, topic_filter: str) -> None:
        """Stop a subscription. Unknown filters are ignored."""

    def add_state_listener(self, listener: StateListener) -> None:
        """Call `listener(is_connected)` at each change, after subscriptions are made again."""
