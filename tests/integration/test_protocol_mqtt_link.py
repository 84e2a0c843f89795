"""The paho link against a real mosquitto."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ispine.protocol.errors import ConfigError, ConnectionLost, LocalProtocolError
from ispine.protocol.link import Message, Will
from ispine.protocol.mqtt import MqttLink, parse_url

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto") is None, reason="needs mosquitto (apt-get install mosquitto)"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def until(condition: Callable[[], bool], timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Mosquitto:
    def __init__(self, folder: Path, port: int, ws_port: int) -> None:
        self.port, self.ws_port = port, ws_port
        self._conf = folder / "mosquitto.conf"
        self._conf.write_text(
            f"listener {port} 127.0.0.1\nset_tcp_nodelay true\n"
            f"listener {ws_port} 127.0.0.1\nprotocol websockets\nallow_anonymous true\n"
        )

    async def start(self) -> None:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
            ["mosquitto", "-c", str(self._conf)], stdin=quiet, stdout=quiet, stderr=quiet
        )
        await until(self._answers)

    def _answers(self) -> bool:
        return answers(self.port) and answers(self.ws_port)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(5)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    server = Mosquitto(tmp_path, free_port(), free_port())
    await server.start()
    yield server
    server.stop()


@pytest.fixture(params=["mqtt", "ws"])
async def url(request: pytest.FixtureRequest, broker: Mosquitto) -> str:
    port = broker.port if request.param == "mqtt" else broker.ws_port
    return f"{request.param}://127.0.0.1:{port}"


async def test_big_and_small_messages_go_round(url: str) -> None:
    sender, receiver = MqttLink(url), MqttLink(url)
    await sender.connect()
    await receiver.connect()
    got: list[Message] = []
    await receiver.subscribe("a/+", got.append, qos=1)
    # mosquitto's own WebSocket listener needs 40 ms for every 2 KB it sends; big ones stay on TCP.
    sizes = [0, 1, 300, 9_000] + ([100_000, 1_000_000] if url.startswith("mqtt") else [])
    for size in sizes:
        sender.publish("a/b", bytes(size), qos=1 if size == 300 else 0)
    await until(lambda: len(got) == len(sizes))
    assert sorted(len(m.payload) for m in got) == sizes
    await sender.close()
    await receiver.close()


async def test_a_handler_may_publish(url: str) -> None:
    link = MqttLink(url)
    await link.connect()
    back: list[Message] = []
    await link.subscribe("back", back.append)
    await link.subscribe("go", lambda m: link.publish("back", m.payload[:3]))
    for _ in range(20):
        link.publish("go", b"abcdef" * (20_000 if url.startswith("mqtt") else 10))
    await until(lambda: len(back) == 20)
    assert {m.payload for m in back} == {b"abc"}
    await link.close()


async def test_nagle_is_off_on_the_live_socket(url: str) -> None:
    link = MqttLink(url)
    await link.connect()
    assert link.raw_socket is not None
    assert link.raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    await link.close()


async def test_retained_messages_come_again_after_a_reconnect(broker: Mosquitto) -> None:
    link = MqttLink(f"mqtt://127.0.0.1:{broker.port}")
    await link.connect()
    states: list[bool] = []
    got: list[Message] = []
    link.add_state_listener(states.append)
    await link.subscribe("a/#", got.append)
    broker.stop()
    await until(lambda: states == [False])
    with pytest.raises(ConnectionLost):
        link.publish("a/b", b"lost")
    await broker.start()
    await until(lambda: states == [False, True])
    link.publish("a/b", b"back", retain=True)
    await until(lambda: [m.payload for m in got] == [b"back"])
    await link.close()


async def test_the_will_is_published_when_a_client_vanishes(broker: Mosquitto) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}"
    watcher, leaver = MqttLink(url), MqttLink(url, will=Will("w/leaver", b"offline"))
    await watcher.connect()
    await leaver.connect()
    got: list[Message] = []
    await watcher.subscribe("w/+", got.append)
    assert leaver.raw_socket is not None
    leaver.raw_socket.shutdown(socket.SHUT_RDWR)
    await until(lambda: [m.payload for m in got] == [b"offline"])
    await leaver.close()
    await watcher.close()


async def test_a_clean_goodbye_publishes_no_will(broker: Mosquitto) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}"
    watcher, leaver = MqttLink(url), MqttLink(url, will=Will("w/leaver", b"offline"))
    await watcher.connect()
    await leaver.connect()
    got: list[Message] = []
    await watcher.subscribe("w/+", got.append)
    await leaver.close()
    watcher.publish("w/end", b"end")
    await until(lambda: bool(got))
    assert [m.payload for m in got] == [b"end"]
    await watcher.close()


async def test_nobody_there_is_told_at_once() -> None:
    link = MqttLink(f"mqtt://127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionLost, match="ispine hub"):
        async with asyncio.timeout(1):
            await link.connect()


async def test_somebody_who_does_not_speak_mqtt_is_given_up_on() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        link = MqttLink(f"mqtt://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)
        with pytest.raises(ConnectionLost, match="no answer"):
            await link.connect()


async def test_an_illegal_topic_never_leaves(url: str) -> None:
    link = MqttLink(url)
    await link.connect()
    for topic in ("", "a/+", "a/#", "a\0", "$SYS/x", "x" * 2000):
        with pytest.raises(LocalProtocolError):
            link.publish(topic, b"")
    await link.close()


@pytest.mark.parametrize("url", ["", "localhost", "http://x", "mqtt://", "mqtt://h:99999999"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="mqtt://"):
        parse_url(url)


def test_credentials_are_read_and_never_shown() -> None:
    parsed = parse_url("mqtts://me:s%40cret@hub.local")
    assert (parsed.username, parsed.password, parsed.port) == ("me", "s@cret", 8883)
    assert "cret" not in str(parsed)


async def test_a_publish_in_the_moment_of_the_loss_is_a_lost_connection(broker: Mosquitto) -> None:
    link = MqttLink(f"mqtt://127.0.0.1:{broker.port}")
    await link.connect()
    broker.stop()
    with pytest.raises(ConnectionLost):
        # The loop has not run since: only a failing write can tell.
        for _ in range(200):
            link.publish("a/b", bytes(1000))
    await link.close()
