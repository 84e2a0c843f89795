"""What a broker can do, tried out: the self-test of `ispine doctor`."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ispine.protocol.errors import ConnectionLost
from ispine.protocol.ids import new_task_id
from ispine.protocol.link import Message, Will
from ispine.protocol.mqtt import MqttLink

WAIT_S = 3.0
BIG_BYTES = 300 * 1024

Attempt = Callable[[MqttLink, str, str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What was seen.

    Attributes:
        endpoint: where.
        rtt_ms: median round trip of a small message, in milliseconds.
        keeps_retained: a retained message reached a later subscriber.
        sends_wills: a vanished client's will was published.
        acknowledges: QoS 1 messages arrive.
        carries_chunks: a packet of 300 KB arrives whole.
        clears_retained: an empty retained message removes the one before.
    """

    endpoint: str
    rtt_ms: float
    keeps_retained: bool
    sends_wills: bool
    acknowledges: bool
    carries_chunks: bool
    clears_retained: bool

    def abilities(self) -> Iterator[tuple[str, bool, str]]:
        """Each ability, whether it is there, and what iSpine loses without it."""
        yield (
            "retained messages",
            self.keeps_retained,
            "does not work: a hub that starts again does not know the devices at once",
        )
        yield (
            "last wills",
            self.sends_wills,
            "does not work: a device that vanishes is noticed by its heartbeat only",
        )
        yield "QoS 1", self.acknowledges, "does not work: results can be lost; use another broker"
        yield (
            "packets of 300 KB",
            self.carries_chunks,
            "does not work: raise the broker's packet limit to at least 1 MB",
        )
        yield (
            "clearing retained messages",
            self.clears_retained,
            "does not work: devices that left for good stay in the list",
        )


async def _arrives(got: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(WAIT_S):
            await got.wait()
    except TimeoutError:
        return False
    return True


async def probe(url: str) -> BrokerReport:
    """Try everything iSpine needs on a broker, below a topic of its own.

    Raises:
        ConnectionLost: it does not answer.
        ConfigError: the URL or the credentials are wrong.
    """
    base = f"ispine/probe/{new_task_id()}"
    async with _linked(url) as link:
        rtt_ms = await _round_trip(link, f"{base}/rtt")
    return BrokerReport(
        endpoint=link.endpoint,
        rtt_ms=rtt_ms,
        keeps_retained=await _works(url, f"{base}/kept", _retained),
        sends_wills=await _works(url, f"{base}/will", _will),
        acknowledges=await _works(url, f"{base}/sure", _acknowledged),
        carries_chunks=await _works(url, f"{base}/big", _large),
        clears_retained=await _works(url, f"{base}/kept", _cleared),
    )


@asynccontextmanager
async def _linked(url: str) -> AsyncIterator[MqttLink]:
    link = MqttLink(url, timeout_s=WAIT_S)
    await link.connect()
    try:
        yield link
    finally:
        await link.close()


async def _works(url: str, topic: str, attempt: Attempt) -> bool:
    """Try one thing on a connection of its own: a broker may close it where it cannot do that."""
    try:
        async with _linked(url) as link:
            return await attempt(link, url, topic)
    except ConnectionLost:
        return False


async def _acknowledged(link: MqttLink, _: str, topic: str) -> bool:
    got = asyncio.Event()
    await link.subscribe(topic, lambda m: _note(got, m.qos == 1), qos=1)
    link.publish(topic, b"1", qos=1)
    return await _arrives(got)


async def _large(link: MqttLink, _: str, topic: str) -> bool:
    got = asyncio.Event()
    await link.subscribe(topic, lambda m: _note(got, len(m.payload) == BIG_BYTES))
    link.publish(topic, bytes(BIG_BYTES))
    return await _arrives(got)


async def _cleared(link: MqttLink, url: str, topic: str) -> bool:
    link.publish(topic, b"", qos=1, retain=True)
    await _round_trip(link, f"{topic}/before")
    got = asyncio.Event()
    async with _linked(url) as other:
        await other.subscribe(topic, lambda m: _note(got, m.retained))
        await _round_trip(other, f"{topic}/after")
    return not got.is_set()


def _note(event: asyncio.Event, is_right: bool) -> None:
    if is_right:
        event.set()


async def _round_trip(link: MqttLink, topic: str) -> float:
    times: list[float] = []
    back = asyncio.Event()
    await link.subscribe(topic, lambda _: back.set())
    for _ in range(5):
        back.clear()
        started = time.perf_counter()
        link.publish(topic, b"1")
        if not await _arrives(back):
            raise ConnectionLost(f"expected {link.endpoint} to deliver a message; it did not")
        times.append((time.perf_counter() - started) * 1e3)
    return sorted(times)[2]


async def _retained(link: MqttLink, _: str, topic: str) -> bool:
    got = asyncio.Event()

    def on_message(message: Message) -> None:
        _note(got, message.retained and message.payload == b"1")

    link.publish(topic, b"1", qos=1, retain=True)
    await _round_trip(link, f"{topic}/before")
    await link.subscribe(topic, on_message)
    return await _arrives(got)


async def _will(link: MqttLink, url: str, topic: str) -> bool:
    got = asyncio.Event()
    await link.subscribe(topic, lambda m: _note(got, m.payload == b"gone"))
    victim = MqttLink(url, will=Will(topic, b"gone"), timeout_s=WAIT_S)
    await victim.connect()
    victim.abandon()
    works = await _arrives(got)
    await victim.close()
    link.publish(topic, b"", qos=1, retain=True)
    return works
