"""The codec, and every name of amqtt that it relies on."""

import ast
import importlib
from importlib.metadata import version
from pathlib import Path

import pytest

import ispine.broker.packets
from ispine.broker import packets
from ispine.broker.packets import Malformed
from ispine.broker.rawclient import LastWill, connect_packet, packet, publish_packet, text

RELIED_ON = {
    "amqtt.adapters": {"BufferReader"},
    "amqtt.errors": {"AMQTTError", "CodecError", "MQTTError", "NoDataError"},
    "amqtt.mqtt.connect": {"ConnectPacket"},
    "amqtt.mqtt.subscribe": {"SubscribePacket"},
    "amqtt.mqtt.unsubscribe": {"UnsubscribePacket"},
}


def test_amqtt_is_pinned_and_only_these_names_are_used() -> None:
    assert version("amqtt") == "0.12.1"
    used: dict[str, set[str]] = {}
    folder = Path(ispine.broker.packets.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("amqtt"):
                used.setdefault(node.module or "", set()).update(name.name for name in node.names)
            elif isinstance(node, ast.Import):
                assert not any(name.name.startswith("amqtt") for name in node.names)
    assert used == RELIED_ON
    for module, names in RELIED_ON.items():
        for name in names:
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_connect_is_read_whole() -> None:
    will = LastWill("will/topic", b"\x00\xff", qos=1, retain=True)
    read = packets.read_connect(
        connect_packet("käthe", clean=False, keepalive_s=300, username="u", password="p", will=will)
    )
    assert read.client_id == "käthe"
    assert (read.is_clean, read.keepalive_s, read.version) == (False, 300, 4)
    assert (read.username, read.password) == ("u", "p")
    assert read.will is not None
    assert (read.will.topic, read.will.payload) == ("will/topic", b"\x00\xff")
    assert (read.will_qos, read.will_retain) == (1, True)


def test_connect_without_a_client_id_has_none() -> None:
    assert packets.read_connect(connect_packet("")).client_id == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        text("HTTP") + b"\x04\x02\x00\x00" + text("x"),
        text("MQTT") + b"\x04\x03\x00\x00" + text("x"),  # the reserved bit
        text("MQTT") + b"\x04\x42\x00\x00" + text("x") + text("p"),  # password, no user name
        text("MQTT") + b"\x04\x1e\x00\x00" + text("x") + text("w") + text("p"),  # will QoS 3
        text("MQTT") + b"\x04\x06\x00\x00" + text("x"),  # a will that is not there
        text("MQTT") + b"\x04\x02\x00\x00" + text(b"\xff\xfe"),
        text("MQTT") + b"\x04\x02\x00\x00" + text("a\0b"),
        text("MQTT") + b"\x04\x02\x00\x00\x00\x09x",
    ],
)
def test_malformed_connect(body: bytes) -> None:
    with pytest.raises(Malformed):
        packets.read_connect(packet(0x10, body))


def test_publish_view_shares_the_packet() -> None:
    raw = publish_packet("a/b", b"payload", 1, retain=True, mid=513)
    read = packets.read_publish(raw, 2)
    assert (read.topic, bytes(read.payload), read.qos, read.retain, read.mid) == (
        "a/b",
        b"payload",
        1,
        True,
        513,
    )
    assert not read.is_plain
    assert read.payload.obj is raw


def test_only_a_plain_publish_is_sent_on_as_it_came() -> None:
    plain = publish_packet("a", b"1")
    assert packets.read_publish(plain, 2).is_plain
    assert not packets.read_publish(publish_packet("a", b"1", retain=True), 2).is_plain
    wasteful = b"\x30\x84\x00" + text("a") + b"1"
    assert not packets.read_publish(wasteful, 3).is_plain
    for size in (120, 130, 16_380, 16_390, 2_097_150, 2_097_160):
        raw = publish_packet("a", bytes(size))
        assert packets.read_publish(raw, len(raw) - size - 3).is_plain


@pytest.mark.parametrize(
    "raw",
    [
        b"\x30\x00",
        b"\x30\x01\x00",
        b"\x30\x03\x00\x05a",
        b"\x36\x05\x00\x01a\x00\x01",  # QoS 3
        b"\x32\x05\x00\x01a\x00\x00",  # packet id 0
        b"\x32\x03\x00\x01a",
        b"\x30\x04\x00\x02\xff\xff",
    ],
)
def test_malformed_publish(raw: bytes) -> None:
    with pytest.raises(Malformed):
        packets.read_publish(raw, 2)


@pytest.mark.parametrize(
    ("first", "body"),
    [
        (0x80, b"\x00\x01" + text("a") + b"\x00"),  # flags
        (0x82, b"\x00\x01"),  # no filter
        (0x82, b"\x00\x00" + text("a") + b"\x00"),  # packet id 0
        (0x82, b"\x00\x01" + text("a") + b"\x03"),  # QoS 3
        (0x82, b"\x00\x01" + text("a#") + b"\x00"),
        (0x82, b"\x00\x01" + text("#/a") + b"\x00"),
        (0x82, b"\x00\x01" + text("a/b+") + b"\x00"),
        (0x82, b"\x00\x01" + text("") + b"\x00"),
        (0x82, b"\x00\x01" + text("a") + b"\x00" + b"\x00\x05b"),  # cut short
        (0x82, b"\x00\x01" + text("x" * 1025) + b"\x00"),
    ],
)
def test_malformed_subscribe(first: int, body: bytes) -> None:
    with pytest.raises(Malformed):
        packets.read_subscribe(packet(first, body))


def test_subscribe_and_unsubscribe() -> None:
    body = b"\x01\x02" + text("a/+") + b"\x01" + text("#") + b"\x02"
    assert packets.read_subscribe(packet(0x82, body)) == (258, [("a/+", 1), ("#", 2)])
    assert packets.read_unsubscribe(packet(0xA2, b"\x00\x07" + text("a"))) == (7, ["a"])


def test_length_is_checked_before_the_packet_is_there() -> None:
    def limit_of(first: int) -> int:
        return 1000 if first >> 4 == 3 else 10

    assert packets.split(memoryview(b"\x30\xe5\x07"), 0, limit_of) == (0x30, 3, 1000)
    with pytest.raises(Malformed, match="packet too large"):
        packets.split(memoryview(b"\x30\xe6\x07"), 0, limit_of)
    with pytest.raises(Malformed, match="packet too large"):
        packets.split(memoryview(b"\x82\x0b"), 0, limit_of)
    with pytest.raises(Malformed, match="bad length"):
        packets.split(memoryview(b"\x30\xff\xff\xff\xff\x01"), 0, limit_of)
    assert packets.split(memoryview(b"\x30\xff"), 0, limit_of) is None
