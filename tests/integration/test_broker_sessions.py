"""The contract of every engine: liveness, wills, retained messages, QoS, topics."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ispine.broker.rawclient import (
    Closed,
    LastWill,
    RawClient,
    Silence,
    packet,
    publish_packet,
    text,
)

if TYPE_CHECKING:
    from tests.integration.conftest import Served

EVERY = ("embedded", "mosquitto", "stock")
WILL_WAIT_S = 12.0


@pytest.mark.engines(*EVERY)
def test_silent_client_is_dropped_and_its_will_published(broker: "Served") -> None:
    watcher = broker.client()
    watcher.subscribe("will/+")
    silent = broker.client(keepalive_s=1, will=LastWill("will/silent", b"gone"))
    began = time.monotonic()
    assert watcher.message(4.0 if broker.kind == "stock" else WILL_WAIT_S).payload == b"gone"
    assert time.monotonic() - began > 0.9
    assert silent.is_closed_within(5)


def test_client_that_pings_stays(broker: "Served") -> None:
    client = broker.client(keepalive_s=1)
    ends = time.monotonic() + 2.5
    while time.monotonic() < ends:
        client.ping()
        time.sleep(0.4)
    client.ping()


def test_will_after_a_cut_and_none_after_a_goodbye(broker: "Served") -> None:
    watcher = broker.client()
    watcher.subscribe("will/+", qos=1)
    polite = broker.client(will=LastWill("will/polite", b"gone"))
    polite.disconnect()
    rude = broker.client(will=LastWill("will/rude", b"gone", qos=1, retain=True))
    rude.close()
    will = watcher.message(WILL_WAIT_S)
    assert (will.topic, will.qos, will.retain) == ("will/rude", 1, False)
    assert watcher.messages() == []
    later = broker.client()
    later.subscribe("will/+")
    assert later.message().retain
    watcher.publish("will/rude", b"", retain=True)


def test_client_without_an_id_is_admitted_for_one_connection_only(broker: "Served") -> None:
    assert broker.raw().connect("", clean=True) == (0, False)
    keeper = broker.raw()
    assert keeper.connect("", clean=False) == (2, False)
    assert keeper.is_closed_within(2)


@pytest.mark.engines(*EVERY)
def test_takeover_closes_the_old_connection(broker: "Served") -> None:
    old = broker.client("twice")
    new = broker.client("twice")
    assert old.is_closed_within(3)
    new.subscribe("t/takeover")
    new.publish("t/takeover", b"1")
    assert new.message().payload == b"1"


def test_retained_is_set_replaced_and_cleared(broker: "Served") -> None:
    writer = broker.client()
    for payload in (b"1", b"2"):
        writer.publish("keep/a", payload, 1, retain=True)
    first = broker.client()
    first.subscribe("keep/+", qos=1)
    kept = first.message()
    assert (kept.payload, kept.retain, kept.qos) == (b"2", True, 1)
    writer.publish("keep/a", b"3", retain=True)
    live = first.message()
    assert (live.payload, live.retain) == (b"3", False)
    writer.publish("keep/a", b"", 1, retain=True)
    late = broker.client()
    late.subscribe("keep/+")
    assert late.messages() == []


def test_subscribing_again_sends_retained_again_and_changes_qos(broker: "Served") -> None:
    client = broker.client()
    client.publish("keep/b", b"1", 1, retain=True)
    assert client.subscribe("keep/b", qos=0) == [0]
    assert client.message().qos == 0
    assert client.subscribe("keep/b", qos=1) == [1]
    again = client.message()
    assert (again.qos, again.retain) == (1, True)
    client.publish("keep/b", b"", 1, retain=True)
    assert client.message().qos == 1


@pytest.mark.engines(*EVERY)
def test_retained_only_reaches_who_subscribed(broker: "Served") -> None:
    writer = broker.client("writer")
    writer.publish("secrets/a", b"1", retain=True)
    entitled = broker.client("entitled")
    entitled.subscribe("secrets/#")
    assert entitled.message().payload == b"1"
    stranger = broker.client("stranger")
    stranger.subscribe("secrets")
    assert stranger.messages() == []
    assert _nothing_within(stranger, 0.5)
    refused = broker.client("refused")
    refused.send(packet(0x82, b"\x00\x07" + text("secrets/#/a") + b"\x00"))
    assert _nothing_within(refused, 0.5)
    writer.publish("secrets/a", b"", retain=True)


def _nothing_within(client: RawClient, seconds: float) -> bool:
    try:
        client.message(seconds)
    except (Closed, Silence):
        return True
    return False


@pytest.mark.engines(*EVERY)
def test_unacknowledged_is_sent_again_after_a_reconnect(broker: "Served") -> None:
    reader = broker.client("keeper", clean=False)
    reader.subscribe("sure/+", qos=1)
    writer = broker.client()
    writer.publish("sure/a", b"1", 1)
    seen = reader.message(ack=False)
    assert (seen.qos, seen.dup) == (1, False)
    reader.close()
    back = broker.raw()
    code, is_present = back.connect("keeper", clean=False)
    assert (code, is_present) == (0, True)
    again = back.message()
    assert (again.payload, again.dup, again.mid) == (b"1", True, seen.mid)
    back.ping()
    back.disconnect()


def test_queue_of_an_absent_client_in_order_without_retain_flag(broker: "Served") -> None:
    reader = broker.client("absent", clean=False)
    reader.subscribe("sure/+", qos=1)
    reader.disconnect()
    writer = broker.client()
    for number in range(20):
        writer.publish("sure/a", b"%d" % number, 1, retain=number == 3, mid=number + 1)
    writer.publish("sure/a", b"at most once", 0)
    back = broker.client("absent", clean=False)
    got = [back.message() for _ in range(20)]
    assert [each.payload for each in got] == [b"%d" % number for number in range(20)]
    assert not any(each.retain or each.dup for each in got)
    writer.publish("sure/a", b"", 1, retain=True, mid=50)


def test_clean_session_forgets(broker: "Served") -> None:
    reader = broker.client("forgets", clean=False)
    reader.subscribe("sure/+", qos=1)
    reader.disconnect()
    broker.client("forgets").disconnect()
    broker.client().publish("sure/a", b"1", 1)
    back = broker.raw()
    assert back.connect("forgets", clean=False) == (0, False)
    assert back.messages() == []
    back.disconnect()
    broker.client("forgets").disconnect()


def test_delivery_at_the_lower_qos(broker: "Served") -> None:
    client = broker.client()
    client.subscribe("q/one", qos=1)
    client.subscribe("q/zero", qos=0)
    client.publish("q/one", b"", 0)
    assert client.message().qos == 0
    client.publish("q/zero", b"", 1)
    assert client.message().qos == 0
    client.publish("q/one", b"", 1)
    assert client.message().qos == 1


def test_qos_2_publishers_are_served_once(broker: "Served") -> None:
    reader = broker.client()
    reader.subscribe("q/two", qos=1)
    writer = broker.client()
    again = publish_packet("q/two", b"1", 2, mid=9)
    writer.send(again + again)
    assert [writer.read()[0] >> 4 for _ in range(2)] == [5, 5]
    writer.send(packet(0x62, b"\x00\x09"))
    assert writer.read()[0] >> 4 == 7
    writer.publish("q/two", b"2", 2, mid=9)
    assert [reader.message().payload for _ in range(2)] == [b"1", b"2"]
    assert reader.messages() == []


def test_delivery_at_qos_2(broker: "Served") -> None:
    reader = broker.client("exactly", clean=False)
    assert reader.subscribe("q/two", qos=2) == [2]
    broker.client().publish("q/two", b"1", 2)
    first = reader.message()
    assert (first.qos, first.dup) == (2, False)
    reader.close()
    back = broker.client("exactly", clean=False)
    again = back.message()
    assert (again.payload, again.qos, again.dup, again.mid) == (b"1", 2, True, first.mid)
    back.send(packet(0x50, again.mid.to_bytes(2, "big")))
    assert back.read() == (0x62, again.mid.to_bytes(2, "big"))
    back.close()
    last = broker.client("exactly", clean=False)
    assert last.read() == (0x62, again.mid.to_bytes(2, "big"))
    last.send(packet(0x70, again.mid.to_bytes(2, "big")))
    assert last.messages() == []
    last.disconnect()
    assert broker.client("exactly", clean=False).messages() == []
    broker.client("exactly").disconnect()


@pytest.mark.engines("embedded")
def test_order_of_both_qos_from_one_publisher(broker: "Served") -> None:
    reader = broker.client("orderly")
    reader.subscribe("order", qos=1)
    writer = broker.client()
    for number in range(200):
        writer.send(publish_packet("order", b"%d" % number, number % 2, mid=number + 1))
    got = [int(reader.message().payload) for _ in range(200)]
    assert got == list(range(200))


def test_overlapping_filters_deliver_at_least_once(broker: "Served") -> None:
    client = broker.client()
    client.subscribe("over/#", qos=0)
    client.subscribe("over/+/x", qos=2)
    client.publish("over/a/x", b"1", 2)
    got = client.messages()
    assert {each.payload for each in got} == {b"1"}
    if broker.kind == "embedded":
        assert [each.qos for each in got] == [2]


def test_wildcards(broker: "Served") -> None:
    publisher = broker.client()
    for topic_filter, hit, miss in [
        ("w/+", "w/a", "w/a/b"),
        ("w/#", "w", "v"),
        ("w/+/c", "w//c", "w/c"),
        ("+/+", "/w", "w"),
        ("#", "w/x", "$SYS/w"),
    ]:
        client = broker.client()
        assert client.subscribe(topic_filter) == [0]
        publisher.publish(miss, b"miss")
        publisher.publish(hit, b"hit")
        publisher.ping()
        got = client.message()
        assert (got.topic, got.payload) == (hit, b"hit")
        client.disconnect()


def test_unsubscribed_is_no_longer_delivered(broker: "Served") -> None:
    client = broker.client()
    client.subscribe("u/a", "u/b")
    client.unsubscribe("u/a")
    client.publish("u/a", b"1")
    client.publish("u/b", b"2")
    assert client.message().payload == b"2"


@pytest.mark.parametrize("topic", ["a/#", "a/+/b", ""])
def test_illegal_topic_ends_the_connection(broker: "Served", topic: str) -> None:
    client = broker.client()
    client.send(publish_packet(topic, b"1"))
    assert client.is_closed_within(2)


@pytest.mark.parametrize("topic_filter", ["a/#/b", "a+", "a/b#", ""])
def test_illegal_filter_is_not_granted(broker: "Served", topic_filter: str) -> None:
    client = broker.client()
    with suppress(Closed):
        assert client.subscribe(topic_filter) == [128]
