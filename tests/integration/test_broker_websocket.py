"""MQTT over WebSocket: large frames, split packets, no compression, no strangers.

mosquitto 2.0.11 reads 4 KB each 100 ms from a WebSocket, so large frames are tried on our own.
"""

import socket as plain
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.typing import Origin, Subprotocol

from ispine.broker.rawclient import connect_packet, packet, publish_packet, text
from ispine.protocol.link import Message
from ispine.protocol.mqtt import MqttLink

if TYPE_CHECKING:
    from tests.integration.conftest import Served, Start

pytestmark = pytest.mark.both_loops
MIB = 1024 * 1024
SUBSCRIBE = packet(0x82, b"\x00\x01" + text("ws/#") + b"\x00")


@pytest.fixture(params=["embedded", "mosquitto"])
def served(request: pytest.FixtureRequest, start: "Start") -> "Served":
    return start(request.param, ws_port=0)


@pytest.fixture
def embedded(start: "Start") -> "Served":
    return start("embedded", ws_port=0, ws_origins=("https://panel.example",))


def url_of(served: "Served") -> str:
    assert served.engine is not None
    assert served.engine.ws_url is not None
    return served.engine.ws_url


def dial(served: "Served", origin: str | None = None) -> Connection:
    return connect(
        url_of(served),
        subprotocols=[Subprotocol("mqtt")],
        origin=None if origin is None else Origin(origin),
        max_size=16 * MIB,
    )


@pytest.fixture
def socket(served: "Served") -> Iterator[Connection]:
    with dial(served) as opened:
        yield opened


@pytest.fixture
def embedded_socket(embedded: "Served") -> Iterator[Connection]:
    with dial(embedded) as opened:
        yield opened


def read(socket: Connection, size: int) -> bytes:
    got = b""
    while len(got) < size:
        data = socket.recv(10)
        assert isinstance(data, bytes)
        got += data
    return got


def greet(socket: Connection) -> None:
    socket.send(connect_packet())
    assert read(socket, 4) == b"\x20\x02\x00\x00"
    socket.send(SUBSCRIBE)
    assert read(socket, 5) == b"\x90\x03\x00\x01\x00"


def test_no_compression_and_the_subprotocol(socket: Connection) -> None:
    assert socket.subprotocol == "mqtt"
    response = getattr(socket, "response", None)
    assert response is not None
    assert "Sec-WebSocket-Extensions" not in response.headers


def test_frame_above_a_mebibyte(embedded_socket: Connection) -> None:
    socket = embedded_socket
    greet(socket)
    large = publish_packet("ws/large", bytes(4 * MIB))
    began = time.monotonic()
    socket.send(large)
    assert read(socket, len(large)) == large
    assert time.monotonic() - began < 2


def test_packets_and_frames_do_not_match(socket: Connection) -> None:
    greet(socket)
    packets = [publish_packet("ws/a", b"%d" % number) for number in range(100)]
    stream = b"".join(packets)
    socket.send(stream[:500])
    for at in range(500, 520):
        socket.send(stream[at : at + 1])
    socket.send([stream[520:600], stream[600:]])
    assert read(socket, len(stream)) == stream


def test_text_frame_ends_the_connection(embedded: "Served") -> None:
    with dial(embedded) as socket:
        socket.send("hello")
        with pytest.raises(ConnectionClosed):
            socket.recv(3)


def test_large_frame_before_connect_is_refused(embedded: "Served") -> None:
    with dial(embedded) as socket, pytest.raises(ConnectionClosed):
        socket.send(bytes(MIB))
        socket.recv(3)
    assert embedded.stats()["unfinished_bytes"] == 0


def test_goodbye_closes_the_websocket(embedded: "Served") -> None:
    with dial(embedded) as socket:
        greet(socket)
        socket.send(b"\xe0\x00")
        with pytest.raises(ConnectionClosed):
            socket.recv(3)
    assert not any(name.startswith("closed:") for name in embedded.stats())


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://localhost:8080", True),
        ("https://panel.example", True),
        ("https://evil.example", False),
        ("null", False),
    ],
)
def test_only_known_pages_may_connect(embedded: "Served", origin: str, is_allowed: bool) -> None:
    if is_allowed:
        with dial(embedded, origin) as socket:
            greet(socket)
    else:
        with pytest.raises(InvalidStatus, match="403"):
            dial(embedded, origin)
        assert embedded.stats()["refused: origin of another site"] == 1


def test_a_name_that_points_here_is_not_this_machine(embedded: "Served") -> None:
    port = url_of(embedded).rsplit(":", 1)[1].split("/")[0]
    with plain.create_connection(("127.0.0.1", int(port)), timeout=5) as sock:
        sock.sendall(
            b"GET /mqtt HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n"
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert b" 403 " in sock.recv(1000).split(b"\r\n")[0]


def test_websocket_and_tcp_meet(served: "Served", socket: Connection) -> None:
    greet(socket)
    client = served.client()
    client.subscribe("tcp/#")
    client.publish("ws/a", b"from tcp")
    assert read(socket, len(publish_packet("ws/a", b"from tcp"))).endswith(b"from tcp")
    socket.send(publish_packet("tcp/a", b"from ws"))
    assert client.message().payload == b"from ws"


def test_our_own_link_over_websocket(served: "Served") -> None:
    assert served.loop is not None
    got: list[Message] = []
    size = MIB + 1 if served.kind == "embedded" else 10_000

    async def use() -> MqttLink:
        link = MqttLink(url_of(served))
        await link.connect()
        await link.subscribe("ws/link", got.append, qos=1)
        link.publish("ws/link", bytes(size), qos=1)
        return link

    link = served.loop.run(use())
    ends = time.monotonic() + 10
    while not got and time.monotonic() < ends:
        time.sleep(0.01)
    served.loop.run(link.close())
    assert [len(message.payload) for message in got] == [size]
