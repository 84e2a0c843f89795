"""Links of the hub on every engine."""

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from ispine.broker.rawclient import publish_packet
from ispine.protocol.errors import ConfigError
from ispine.protocol.link import Message

if TYPE_CHECKING:
    from tests.integration.conftest import Served


def test_a_link_of_the_hub_reads_and_writes(broker: "Served") -> None:
    if broker.engine is None:
        pytest.skip("runs elsewhere")
    assert broker.loop is not None
    got: list[Message] = []
    client = broker.client()
    client.publish("from/kept", b"0", 1, retain=True)
    link = broker.attach("hub-test")
    broker.loop.run(link.subscribe("from/#", got.append, qos=1))
    broker.hub_publishes(link, "to/client", b"hello", qos=1, retain=True)
    client.subscribe("to/#", qos=1)
    sent = client.message()
    assert (sent.topic, sent.payload, sent.qos) == ("to/client", b"hello", 1)
    client.publish("from/client", b"hi", 1)
    ends = time.monotonic() + 5
    while len(got) < 2 and time.monotonic() < ends:
        time.sleep(0.01)
    assert got == [
        Message("from/kept", b"0", 1, retained=True),
        Message("from/client", b"hi", 1, retained=False),
    ]


@pytest.mark.engines("embedded")
def test_a_handler_never_runs_on_the_stack_of_a_publish(broker: "Served") -> None:
    assert broker.loop is not None
    link = broker.attach("hub-test")
    seen: list[bool] = []
    is_publishing = False

    async def use() -> None:
        nonlocal is_publishing
        arrived = asyncio.Event()

        def on_message(_: Message) -> None:
            seen.append(is_publishing)
            arrived.set()

        await link.subscribe("x", on_message)
        is_publishing = True
        link.publish("x", b"1")
        is_publishing = False
        async with asyncio.timeout(5):
            await arrived.wait()

    broker.loop.run(use())
    assert seen == [False]


@pytest.mark.engines("embedded")
def test_a_failing_handler_stops_nobody(broker: "Served", caplog: pytest.LogCaptureFixture) -> None:
    assert broker.loop is not None
    link = broker.attach("hub-test")
    got: list[Message] = []

    def fail(message: Message) -> None:
        got.append(message)
        raise RuntimeError("a bug in a handler")

    broker.loop.run(link.subscribe("x", fail))
    client = broker.client()
    for _ in range(2):
        client.publish("x", b"secret payload")
    client.ping()
    ends = time.monotonic() + 5
    while len(got) < 2 and time.monotonic() < ends:
        time.sleep(0.01)
    assert len(got) == 2
    assert "handler failed" in caplog.text
    assert "secret payload" not in caplog.text


@pytest.mark.engines("embedded")
def test_a_link_of_the_hub_cannot_be_taken_over(broker: "Served") -> None:
    link = broker.attach("hub")
    broker.client("hub")
    assert link.is_connected
    with pytest.raises(ConfigError, match="one part of the hub"):
        broker.attach("hub")


@pytest.mark.engines("embedded")
def test_a_burst_at_qos_1_reaches_the_hub_whole(broker: "Served") -> None:
    assert broker.loop is not None
    link = broker.attach("hub")
    got: list[bytes] = []
    broker.loop.run(link.subscribe("burst", lambda m: got.append(m.payload), qos=1))
    client = broker.client()
    client.send(b"".join(publish_packet("burst", b"%d" % n, 1, mid=n + 1) for n in range(5000)))
    ends = time.monotonic() + 10
    while len(got) < 5000 and time.monotonic() < ends:
        time.sleep(0.01)
    assert got == [b"%d" % n for n in range(5000)]
