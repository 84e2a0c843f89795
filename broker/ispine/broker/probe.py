"""What a broker can do, tried out: the self-test of `ispine doctor`."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ispine.protocol.errors import ConnectionLost
from ispine.protocol.ids import new_task_id
from ispine.protocol.link import Message, Will
from ispine.protocol.mqtt import MqttLink

WAIT_S = 3.0
BIG_BYTES = 300 * 1024


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
    """

    endpoint: str
    rtt_ms: float
    keeps_retained: bool
    sends_wills: bool
    acknowledges: bool
    carries_chunks: bool

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
    link = MqttLink(url, timeout_s=WAIT_S)
    await link.connect()
    try:
        rtt_ms = await _round_trip(link, f"{base}/rtt")
        big, sure = asyncio.Event(), asyncio.Event()
        await link.subscribe(f"{base}/big", lambda m: _note(big, len(m.payload) == BIG_BYTES))
        await link.subscribe(f"{base}/sure", lambda m: _note(sure, m.qos == 1), qos=1)
        link.publish(f"{base}/big", bytes(BIG_BYTES))
        link.publish(f"{base}/sure", b"1", qos=1)
        return BrokerReport(
            link.endpoint,
            rtt_ms,
            await _retained(link, f"{base}/kept"),
            await _will(link, url, f"{base}/will"),
            await _arrives(sure),
            await _arrives(big),
        )
    finally:
        await link.close()


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


async def _retained(link: MqttLink, topic: str) -> bool:
    got = asyncio.Event()

    def on_message(message: Message) -> None:
        _note(got, message.retained and message.payload == b"1")

    link.publish(topic, b"1", qos=1, retain=True)
    await asyncio.sleep(0.05)
    await link.subscribe(topic, on_message)
    works = await _arrives(got)
    link.publish(topic, b"", qos=1, retain=True)
    return works


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
