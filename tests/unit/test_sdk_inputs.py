"""What a caller may hand over, and what a request becomes; nothing is sent here."""

import asyncio
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import encode
from ispine.protocol.errors import ConfigError, DeadlineExceeded, TaskRejected
from ispine.protocol.ids import is_id
from ispine.protocol.messages import Head
from ispine.sdk import AsyncSpine, Spine
from ispine.sdk.connecting import check_client_id, default_client_id
from ispine.sdk.media import image_bytes, payload_aside, payload_of
from ispine.sdk.request import MAX_TASK_BYTES, Request


def jpeg(width: int = 40, height: int = 20, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    target = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(target, "JPEG", exif=exif)
    return target.getvalue()


def size_of(data: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(data)).size


def test_arrays_and_pictures_are_encoded_and_files_pass_as_they_are(tmp_path: Path) -> None:
    data = jpeg()
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    for same in (data, bytearray(data), memoryview(data), path, str(path)):
        assert payload_of("detect", same) == data
    array = np.zeros((20, 40, 3), np.uint8)
    for made in (array, array[:, ::-1], array[:, :, 0], Image.open(path)):
        assert image_bytes(made)[:3] == b"\xff\xd8\xff"
        assert size_of(image_bytes(made)) == (40, 20)


def test_a_picture_that_lies_on_its_side_is_set_up() -> None:
    assert size_of(image_bytes(Image.open(io.BytesIO(jpeg(40, 20, orientation=6))))) == (20, 40)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (b"", "expected"),
        (b"just text", "expected"),
        (np.zeros((4, 4, 3), np.float32), "astype"),
        (np.zeros((3, 40, 40), np.uint8), "moveaxis"),
        (np.zeros((0, 4, 3), np.uint8), "uint8 array"),
        (np.zeros((4, 4, 3, 1), np.uint8), "uint8 array"),
        ("/no/such/file.jpg", "check the path"),
        (b"\xff\xd8\xff" + bytes(9_000_000), "expected"),
        (None, "NoneType"),
        (7, "int"),
    ],
)
def test_what_is_no_image_is_refused_with_a_sentence(bad: Any, told: str) -> None:
    for capability in ("detect", "gesture", "classify"):
        with pytest.raises(TaskRejected, match=told):
            payload_of(capability, bad)


def test_a_huge_file_is_not_read_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "huge.jpg"
    with path.open("wb") as file:
        file.write(b"\xff\xd8\xff\xe0")
        file.truncate(4_000_000_000)
    with pytest.raises(TaskRejected, match="at most"):
        image_bytes(path)


def test_other_capabilities_take_any_bytes_and_images_too() -> None:
    assert payload_of("echo", b"just text") == b"just text"
    assert payload_of("echo", bytearray(b"x")) == b"x"
    assert payload_of("echo", np.zeros((4, 4, 3), np.uint8))[:3] == b"\xff\xd8\xff"


async def test_encoding_stays_off_the_loop() -> None:
    image = np.random.default_rng(7).integers(0, 255, (1500, 1500, 3), np.uint8)
    encoding = asyncio.create_task(payload_aside("detect", image))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3
    assert (await encoding)[:3] == b"\xff\xd8\xff"


def test_the_deadline_counts_from_the_call() -> None:
    called_ns = boot_ns() - 300_000_000
    assert 600 <= Request("echo", b"", 1000, called_ns=called_ns).to_task("c1").ttl_ms <= 700
    with pytest.raises(DeadlineExceeded, match="preparing the input"):
        Request("echo", b"", 200, called_ns=called_ns).to_task("c1")


def test_a_durable_task_has_ten_minutes_and_another_one_two_seconds() -> None:
    assert Request("echo", b"").to_task("c1").ttl_ms == 2000
    durable = Request("echo", b"", durable=True).to_task("c1")
    assert (durable.ttl_ms, durable.mode) == (600_000, "durable")


def test_numbers_of_numpy_are_numbers() -> None:
    task = Request("echo", b"", np.float32(150), priority=np.int64(2)).to_task("c1")  # type: ignore[arg-type]
    assert (task.ttl_ms, task.priority) == (150, 2)
    encode(task, Head("c1"))


@pytest.mark.parametrize("options", [{}, {"text": "ä" * 65_000}, {"n": -(2**63)}, {"x": None}])
def test_the_largest_task_that_is_let_through_can_be_encoded(options: dict[str, Any]) -> None:
    room = 4 * sum(len(str(value)) for value in options.values())
    data = bytes(MAX_TASK_BYTES - (room if room > 2048 else 0))
    encode(Request("echo", data, options=options).to_task("c1"), Head("c1"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"capability": 7}, "as text"),
        ({"task_id": 7}, "as text"),
        ({"task_id": "a" * 65}, "task id"),
        ({"content_type": None}, "content type"),
        ({"within_ms": "soon"}, "within_ms"),
        ({"within_ms": 10**5000}, "one of 16610 bits"),
        ({"options": {7: "x"}}, "options"),
        ({"options": dict.fromkeys(map(str, range(100)), 1)}, "at most 64"),
    ],
)
def test_a_request_of_the_wrong_kind_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(TaskRejected, match=told):
        Request(**{"capability": "echo", "data": b"", **arguments}).to_task("c1")


def test_client_ids_are_valid_and_differ() -> None:
    made = {default_client_id() for _ in range(20)}
    assert len(made) == 20
    assert all(map(is_id, made))
    assert check_client_id("glasses-1") == "glasses-1"
    with pytest.raises(ConfigError, match="client id"):
        check_client_id("a/b")


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_timeout_that_cannot_be_is_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        Spine.connect("mqtt://127.0.0.1:1", timeout_s=timeout_s)


@pytest.mark.parametrize("url", ["127.0.0.1", "http://127.0.0.1", "mqtt://", "mqtt://h:99999"])
async def test_a_url_that_cannot_be_is_the_operators_to_mend(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="URL like"):
        await AsyncSpine.connect(url)
    monkeypatch.setenv("ISPINE_URL", url)
    with pytest.raises(ConfigError, match="URL like"):
        await AsyncSpine.connect()


async def test_an_unknown_fallback_is_refused() -> None:
    with pytest.raises(ConfigError, match="local"):
        await AsyncSpine.connect("mqtt://127.0.0.1:1", fallback="cloud")
