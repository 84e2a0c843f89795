"""Wearables without an SDK: the real mosquitto clients, and clients that send nonsense."""

import base64
import json
import shutil
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from ispine.sdk import Spine, TaskRejected

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None,
    reason="needs mosquitto_pub and mosquitto_sub (apt-get install mosquitto-clients)",
)


@contextmanager
def listening(port: int, topic: str, count: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """A real mosquitto_sub that is subscribed before the block begins."""
    # Line by line even into a pipe, so that the SUBACK can be waited for.
    command = [
        "stdbuf",
        "-oL",
        "mosquitto_sub",
        "-p",
        str(port),
        "-t",
        topic,
        "-C",
        str(count),
        "-W",
        "15",
        "-d",
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    for line in child.stdout:
        if b"SUBACK" in line:
            break
    try:
        yield child
    finally:
        child.kill()
        child.wait(5)
        child.stdout.close()


def answer_of(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(b"{"):
            told: dict[str, Any] = json.loads(line)
            return told
    pytest.fail("no answer")


def send(port: int, topic: str, *arguments: str) -> None:
    subprocess.run(["mosquitto_pub", "-p", str(port), "-t", topic, *arguments], check=True)


def ask(port: int, topic: str, *arguments: str, client: str = "glasses-1") -> dict[str, Any]:
    with listening(port, f"ispine/results/{client}/#") as child:
        send(port, topic, *arguments)
        return answer_of(child)


@pytest.fixture(scope="module")
def detecting(module_fleet: Any) -> Any:
    module_fleet.start_hub()
    module_fleet.start_agent("a1", "--capability", "detect", "--capability", "echo")
    return module_fleet


@pytest.fixture
def port(detecting: Any) -> int:
    number: int = detecting.port
    return number


def test_a_photograph_is_answered_in_json(port: int, photos: Any, tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(photos["astronaut"])
    told = ask(port, "ispine/tasks/detect/glasses-1", "-f", str(photo))
    assert told["status"] == "done"
    assert told["device"] == "a1"
    assert told["result"]["detections"][0]["label"] == "person"


def test_a_json_task_with_an_id_is_answered_under_that_id(
    port: int, photos: Any, tmp_path: Path
) -> None:
    body = {"data": base64.b64encode(photos["coffee"]).decode(), "ttl_ms": 10_000}
    body["options"] = {"min_score": 0.5}
    file = tmp_path / "task.json"
    file.write_text(json.dumps(body))
    with listening(port, "ispine/results/glasses-1/my-task") as child:
        send(port, "ispine/tasks/detect/glasses-1/my-task", "-f", str(file))
        told = answer_of(child)
    assert (told["task_id"], told["status"]) == ("my-task", "done")
    assert told["result"]["detections"][0]["label"] == "cup"


def test_text_goes_in_and_comes_back(port: int) -> None:
    told = ask(port, "ispine/tasks/echo/glasses-1", "-m", '{"text": "hello"}')
    assert base64.b64decode(told["data"]) == b"hello"


def png_of(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        summed = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", summed)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels)


BAD_FILES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda photo: photo[: len(photo) // 2],
    "zero bytes": lambda _: b"",
    "no image": lambda _: b"just some text",
    "30,000 x 30,000": lambda _: png_of(30_000, 30_000),
    "a JPEG's head only": lambda _: b"\xff\xd8\xff\xe0" + bytes(100),
    "broken json": lambda _: b'{"data": ',
    "deep json": lambda _: b'{"a":' * 20_000,
    "deep msgpack": lambda _: b"\xc1\x01" + b"\x91" * 10_000,
    "another version": lambda _: b"\xc1\x09" + msgpack.packb({"type": "task"}),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_gets_an_error_within_a_second(
    port: int, photos: Any, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(BAD_FILES[kind](photos["coffee"]))
    client = paho.Client(CallbackAPIVersion.VERSION2)
    answers: list[bytes] = []

    def keep(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        answers.append(bytes(message.payload))

    client.on_message = keep
    client.connect("127.0.0.1", port)
    client.subscribe("ispine/results/glasses-1/+", 1)
    client.loop_start()
    try:
        time.sleep(0.1)  # the SUBACK; paho's own thread reads it
        started = time.monotonic()
        client.publish("ispine/tasks/detect/glasses-1", file.read_bytes(), 1)
        while not answers and time.monotonic() - started < 5:
            time.sleep(0.005)
        took_s = time.monotonic() - started
    finally:
        client.loop_stop()
        client.disconnect()
    assert answers, kind
    assert took_s < 1.0
    if answers[0][:1] == b"{":
        error = json.loads(answers[0])["error"]
        assert error["message"].startswith("expected")
        assert error["code"] in ("rejected", "bad_message", "too_large")
    else:
        assert kind in ("deep msgpack", "another version")


def test_sixty_megabytes_close_the_connection_and_harm_nobody(
    port: int, detecting: Any, tmp_path: Path
) -> None:
    file = tmp_path / "huge.jpg"
    file.write_bytes(b"\xff\xd8\xff\xe0" + bytes(60_000_000))
    with Spine.connect(detecting.url) as other:
        topic = "ispine/tasks/detect/glasses-1"
        ran = subprocess.run(
            ["mosquitto_pub", "-p", str(port), "-t", topic, "-f", str(file)],
            capture_output=True,
            timeout=20,
            check=False,
        )
        assert other.call("echo", b"fine", within_ms=2000).data == b"fine"
        assert other.stats.resent == 0
        with pytest.raises(TaskRejected, match="at most"):
            other.detect(file)
    assert ran.returncode != 0 or b"rror" in ran.stderr
    from ispine.cli.asking import ask as ask_hub

    assert ask_hub(detecting.url, "stats")["closed: packet too large"] >= 1


def test_a_task_for_nobody_says_so(port: int) -> None:
    told = ask(port, "ispine/tasks/nosuch/glasses-1", "-m", '{"text": "x"}')
    assert told["error"]["code"] == "no_capable_device"
    assert "nosuch" in told["error"]["message"]


@pytest.mark.parametrize("level", ["a b", "ü", "a" * 65, "a.b"])
def test_a_bad_id_in_a_topic_is_answered_where_it_can_be(port: int, level: str) -> None:
    told = ask(port, f"ispine/tasks/echo/glasses-1/{level}", "-m", '{"text": "x"}')
    assert told["error"]["code"] == "bad_id"
    assert "letters, digits" in told["error"]["message"]


def test_nonsense_on_every_topic_stops_nothing(port: int, detecting: Any) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    topics = (
        "tasks/echo/c1/t1",
        "tasks",
        "tasks/x",
        "replies/a1",
        "replies/x/y",
        "queues/a1/echo",
        "control/a1",
        "devices/a1/heartbeat",
        "devices/evil/state",
        "devices/evil/status",
        "cancel/c1/t1",
        "cancel/c1",
        "admin/a/b",
        "results/c1/t1",
        "hub",
    )
    junk = (b"", b"{}", b"\xc1\x01", b"\xc1\x01\x80", b"\xff" * 300, b"[1]", b'{"verb": 1}')
    for topic in topics:
        for payload in junk:
            client.publish(f"ispine/{topic}", payload, 1)
    client.loop_stop()
    client.disconnect()
    with Spine.connect(detecting.url) as spine:
        for number in range(20):
            assert spine.call("echo", bytes([number]), within_ms=5000).data == bytes([number])
