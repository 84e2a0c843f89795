"""What one client may cost the others: sizes, queues, deadlines, rates."""

import threading
import time
from typing import TYPE_CHECKING

import pytest

from ispine.broker.rawclient import connect_packet, packet, publish_packet, text
from ispine.protocol.link import MAX_PACKET_BYTES

if TYPE_CHECKING:
    from tests.integration.conftest import Served, Start

pytestmark = pytest.mark.both_loops
EVERY = ("embedded", "mosquitto", "stock")


def test_largest_packet_passes(broker: "Served") -> None:
    client = broker.client()
    client.subscribe("big")
    payload = bytes(MAX_PACKET_BYTES - 64)
    client.publish("big", payload)
    assert client.message(20).payload == payload


@pytest.mark.engines(*EVERY)
def test_too_large_packet_is_refused_from_its_header(broker: "Served") -> None:
    client = broker.client()
    client.send(b"\x30\xff\xff\xff\x7f" + text("big") + bytes(64 * 1024))
    assert client.is_closed_within(3)
    if broker.kind == "embedded":
        assert broker.stats()["closed: packet too large"] == 1


def test_connect_deadline(start: "Start") -> None:
    broker = start("embedded", limits={"connect_s": 1.0})
    mute = broker.raw()
    dripping = broker.raw()
    for byte in connect_packet("drip")[:6]:
        dripping.send(bytes((byte,)))
        time.sleep(0.1)
    assert mute.is_closed_within(2.5)
    assert dripping.is_closed_within(2.5)
    assert broker.stats()["closed: no CONNECT in time"] == 2


@pytest.mark.engines("stock")
def test_connect_deadline_of_stock_amqtt(broker: "Served") -> None:
    assert broker.raw().is_closed_within(5.5)


def test_something_else_than_mqtt_is_closed(broker: "Served") -> None:
    for greeting in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x30\x03\x00\x01a", b"\0" * 64):
        client = broker.raw()
        client.send(greeting)
        assert client.is_closed_within(3)


@pytest.mark.engines("embedded")
def test_second_connect_ends_the_connection(broker: "Served") -> None:
    client = broker.client("once")
    client.send(connect_packet("once"))
    assert client.is_closed_within(2)


@pytest.mark.engines("stock")
def test_stalled_subscriber_costs_bounded_memory(broker: "Served") -> None:
    before = broker.rss_bytes
    stalled = broker.client("stalled")
    stalled.subscribe("flood")
    writer = broker.client("writer")
    for _ in range(400):
        writer.send(publish_packet("flood", bytes(100_000)))
    writer.ping()
    assert broker.rss_bytes - before < 25e6


def test_stalled_subscriber_holds_nobody_up(broker: "Served") -> None:
    stalled = broker.client("stalled")
    stalled.subscribe("flood")
    reader = broker.client("reader")
    reader.subscribe("other")
    writer = broker.client("writer")
    flood = publish_packet("flood", bytes(100_000))
    for _ in range(600):
        writer.send(flood)
    writer.ping()
    waits = []
    for _ in range(20):
        began = time.monotonic()
        writer.publish("other", b"1")
        reader.message()
        waits.append(time.monotonic() - began)
    assert sorted(waits)[10] < 0.25
    if broker.kind == "embedded":
        assert broker.stats()["dropped: slow client"] > 100
        assert broker.stats()["slow_clients"] == 1
        assert broker.stats()["unread_bytes"] < 20e6


def test_queue_of_an_absent_client_is_bounded(start: "Start") -> None:
    broker = start("embedded", limits={"queue_messages": 10, "queue_bytes": 5000})
    for client_id, topic in (("many", "sure/many"), ("large", "sure/large")):
        reader = broker.client(client_id, clean=False)
        reader.subscribe(topic, qos=1)
        reader.disconnect()
    writer = broker.client()
    for number in range(30):
        writer.publish("sure/many", b"%d" % number, 1)
        writer.publish("sure/large", bytes(1000), 1)
    assert len(broker.client("many", clean=False).messages()) == 10
    assert len(broker.client("large", clean=False).messages()) == 4
    assert broker.stats()["dropped: queue full"] == 46


def test_unacknowledged_is_bounded_in_bytes(start: "Start") -> None:
    broker = start("embedded", limits={"queue_bytes": 5000})
    reader = broker.client()
    reader.subscribe("sure", qos=1)
    writer = broker.client()
    for _ in range(30):
        writer.publish("sure", bytes(1000), 1)
    assert len(reader.messages(ack=False)) == 4


def test_connection_limit(start: "Start") -> None:
    broker = start("embedded", limits={"connections": 5})
    kept = [broker.client() for _ in range(5)]
    extra = broker.raw()
    assert extra.is_closed_within(2)
    assert broker.stats()["refused: too many connections"] == 1
    kept[0].ping()


def test_those_who_wait_make_room_for_others(start: "Start") -> None:
    broker = start("embedded", limits={"waiting_connects": 3})
    waiting = [broker.raw() for _ in range(3)]
    assert broker.client("here").ping() < 1
    assert waiting[0].is_closed_within(2)
    assert waiting[2].connect("late") == (0, False)


def test_rate_of_one_address(start: "Start") -> None:
    broker = start("embedded", limits={"connects_per_s": 0.1})
    kept = [broker.client() for _ in range(3)]
    assert broker.raw().is_closed_within(2)
    assert broker.stats()["refused: connects too often"] == 1
    kept[0].ping()


def test_unfinished_packets_share_a_bounded_memory(start: "Start") -> None:
    broker = start("embedded", limits={"unfinished_bytes": 2_000_000})
    header = packet(0x30, bytes(4_000_000))[:900_000]
    hogs = [broker.client() for _ in range(4)]
    healthy = broker.client("healthy")
    for hog in hogs:
        hog.send(header)
    assert sum(hog.is_closed_within(1) for hog in hogs) == 2
    healthy.subscribe("fine")
    healthy.publish("fine", bytes(600_000))
    assert len(healthy.message().payload) == 600_000
    assert broker.stats()["unfinished_bytes"] <= 2_000_000


def test_subscription_limit(start: "Start") -> None:
    broker = start("embedded", limits={"subscriptions": 2})
    client = broker.client()
    assert client.subscribe("a", "b", "c", "a") == [0, 0, 128, 0]


def test_flood_of_small_packets_holds_nobody_up(start: "Start") -> None:
    broker = start("embedded")
    flooder = broker.client()
    healthy = broker.client()
    stop = threading.Event()

    def flood() -> None:
        flooder.sock.settimeout(20)
        while not stop.is_set():
            flooder.send(b"\xc0\x00" * 32_000)
            try:
                flooder.sock.recv(1 << 20)
            except TimeoutError:
                return

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        waits = sorted(healthy.ping() for _ in range(50))
    finally:
        stop.set()
        thread.join()
    assert waits[25] < 0.25
