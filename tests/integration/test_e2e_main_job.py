"""The main job on real processes: a wearable asks, devices answer."""

import io
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from ispine.sdk import (
    AsyncSpine,
    ConnectionLost,
    DeadlineExceeded,
    ExecutionFailed,
    NoCapableDevice,
    Spine,
    TaskCancelled,
    TaskRejected,
    TooBusy,
)

TESTS = "capabilities_for_tests"


def test_detect_and_classify_name_what_is_in_the_pictures(fleet: Any, photos: Any) -> None:
    fleet.start_hub()
    fleet.start_agent("a1")
    with Spine.connect(fleet.url) as spine:
        found = spine.detect(photos["astronaut"], within_ms=10_000)
        assert found[0].label == "person"
        left, top, right, bottom = found[0].box_xyxy
        assert 0 <= left < right <= 512
        assert 0 <= top < bottom <= 512
        assert spine.classify(photos["coffee"], within_ms=10_000, top=1)[0].label == "espresso"
        assert spine.gesture(photos["coffee"], within_ms=10_000) == []
        device = spine.devices()[0]
        names = {offered.name for offered in device.capabilities}
        assert names == {"detect", "gesture", "classify", "echo"}
        assert "CPUExecutionProvider" in device.runtimes
        assert all(v.service_ms > 0 for c in device.capabilities for v in c.variants)


def test_every_form_of_an_image_gives_the_same_answer(
    fleet: Any, photos: Any, tmp_path: Any
) -> None:
    from PIL import Image

    fleet.start_hub()
    fleet.start_agent("a1", "--capability", "detect")
    picture = Image.open(io.BytesIO(photos["astronaut"]))
    png = io.BytesIO()
    picture.save(png, "PNG")
    path = tmp_path / "photo.jpg"
    path.write_bytes(photos["astronaut"])
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.rotate(90, expand=True).save(turned, "JPEG", quality=95, exif=exif)
    forms = (path, str(path), picture, np.asarray(picture), png.getvalue(), turned.getvalue())
    with Spine.connect(fleet.url) as spine:
        for form in forms:
            found = spine.detect(form, within_ms=10_000)
            assert [item.label for item in found] == ["person"]
            assert found[0].box_xyxy == pytest.approx((14, 14, 364, 507), abs=25)


def test_bytes_go_round_in_every_size(spine: Spine) -> None:
    for size in (0, 1, 1000, 100_000, 300_000, 3_000_000):
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert spine.call("echo", data, within_ms=10_000).data == data


def test_large_answers_come_in_chunks(fleet: Any) -> None:
    fleet.start_hub()
    fleet.start_agent("a1", "--capability", f"large={TESTS}:large")
    with Spine.connect(fleet.url) as spine:
        assert len(spine.call("large", b"", within_ms=10_000).data) == 3_000_000


async def test_the_asyncio_twin_does_the_same(echo_fleet: Any) -> None:
    async with await AsyncSpine.connect(echo_fleet.url) as spine:
        answer = await spine.call("echo", b"hello", within_ms=5000)
        assert (answer.data, answer.device) == (b"hello", "a1")
        outcomes = [o async for o in spine.map("echo", [b"1", b"2", b"3"])]
        assert [o.value.data for o in outcomes if o.value] == [b"1", b"2", b"3"]


def test_a_stream_gives_one_outcome_a_frame_in_order(spine: Spine) -> None:
    frames = [str(number).encode() for number in range(40)]
    outcomes = list(spine.stream("echo", frames, within_ms=5000))
    assert [outcome.index for outcome in outcomes] == list(range(40))
    assert [outcome.value.data for outcome in outcomes if outcome.value] == frames


def test_the_newest_frame_of_a_live_source_wins(fleet: Any) -> None:
    fleet.start_hub()
    fleet.start_agent("a1", "--slots", "1", "--capability", f"slow={TESTS}:sleep_40")
    frames = (str(number).encode() for number in range(200))
    with Spine.connect(fleet.url) as spine:
        outcomes = list(spine.stream("slow", frames, within_ms=2000))
    answered = [o.index for o in outcomes if o.value is not None]
    dropped = [o.index for o in outcomes if o.is_dropped]
    assert [o.index for o in outcomes] == list(range(200))
    assert len(answered) + len(dropped) == 200
    assert dropped
    assert answered[-1] == 199


def test_map_keeps_the_order_and_tells_progress(spine: Spine) -> None:
    told: list[tuple[int, int | None]] = []
    items = [str(number).encode() for number in range(100)]
    outcomes = spine.map("echo", items, progress=lambda done, total: told.append((done, total)))
    assert [o.value.data for o in outcomes if o.value] == items
    assert told[-1] == (100, 100)


def test_every_failure_is_a_typed_error_with_a_sentence(fleet: Any) -> None:
    fleet.start_hub()
    fleet.start_agent(
        "a1",
        "--slots",
        "1",
        "--capability",
        f"fail={TESTS}:fail",
        "--capability",
        f"wrong={TESTS}:wrong",
        "--capability",
        f"slow={TESTS}:sleep_300",
    )
    with Spine.connect(fleet.url) as spine:
        with pytest.raises(ExecutionFailed, match="ValueError: no good: 3 bytes"):
            spine.call("fail", b"abc", within_ms=5000)
        with pytest.raises(ExecutionFailed, match="return bytes"):
            spine.call("wrong", b"", within_ms=5000)
        with pytest.raises(NoCapableDevice, match="nosuch"):
            spine.call("nosuch", b"", within_ms=5000)
        for deadline in (0, -5, float("nan"), 1e18):
            with pytest.raises(TaskRejected, match="within_ms"):
                spine.call("slow", b"", within_ms=deadline)
        for bad in ("a/b", "a+", "#", "a\0", ""):
            with pytest.raises(TaskRejected, match="expected a capability"):
                spine.call(bad, b"", within_ms=5000)
        with pytest.raises(TaskRejected, match="at most"):
            spine.call("slow", bytes(9_000_000), within_ms=5000)
        with pytest.raises((DeadlineExceeded, TooBusy), match="expected"):
            spine.call("slow", b"", within_ms=60)
        assert spine.call("slow", b"still here", within_ms=5000).data == b"still here"


def test_a_capability_can_neither_end_the_agent_nor_flood_it(fleet: Any) -> None:
    fleet.start_hub()
    names = ("leave", "enormous", "sleep_10")
    offers = [f"--capability={name}={TESTS}:{name}" for name in names]
    fleet.start_agent("a1", "--slots", "1", *offers)
    with Spine.connect(fleet.url) as spine:
        for _ in range(3):
            with pytest.raises(ExecutionFailed, match="SystemExit"):
                spine.call("leave", b"", within_ms=5000)
            with pytest.raises(ExecutionFailed, match="at most"):
                spine.call("enormous", b"", within_ms=5000)
            assert spine.call("sleep_10", b"fine", within_ms=5000).data == b"fine"


def test_a_task_can_be_taken_back(fleet: Any) -> None:
    fleet.start_hub()
    fleet.start_agent("a1", "--slots", "1", "--capability", f"slow={TESTS}:sleep_300")
    with Spine.connect(fleet.url) as spine:
        first = spine.submit("slow", b"1", within_ms=5000)
        second = spine.submit("slow", b"2", within_ms=5000)
        assert second.cancel()
        assert second.cancelled()
        assert first.result(5).data == b"1"
        with pytest.raises(TaskCancelled):
            spine.call("slow", b"2", within_ms=5000, task_id=second.task_id)


def test_the_same_task_twice_is_one_task(spine: Spine) -> None:
    first = spine.call("echo", b"once", within_ms=5000, task_id="twice")
    again = spine.call("echo", b"once", within_ms=5000, task_id="twice")
    assert (first.data, again.data) == (b"once", b"once")
    with pytest.raises(TaskRejected):
        spine.call("echo", b"another", within_ms=5000, task_id="twice")


def test_no_hub_is_told_within_a_second(free_port: int) -> None:
    started = time.monotonic()
    with pytest.raises(ConnectionLost, match="ispine hub"):
        Spine.connect(f"mqtt://127.0.0.1:{free_port}")
    assert time.monotonic() - started < 1.5


def test_without_a_hub_the_wearable_can_run_it_itself(free_port: int, photos: Any) -> None:
    with Spine.connect(f"mqtt://127.0.0.1:{free_port}", fallback="local") as spine:
        assert spine.endpoint == "local"
        assert spine.detect(photos["astronaut"], within_ms=20_000)[0].label == "person"


def test_the_sdk_is_light() -> None:
    code = (
        "import json, sys\nimport ispine.sdk\nfrom ispine.sdk import Spine\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(ran.stdout))
    assert not loaded & {"onnxruntime", "amqtt", "numpy", "PIL", "pydantic", "zeroconf", "onnx"}


def test_the_public_surface_is_this() -> None:
    import ispine.sdk

    assert sorted(ispine.sdk.__all__) == sorted(
        [
            "Answer",
            "AsyncSpine",
            "ConfigError",
            "ConnectionLost",
            "DeadlineExceeded",
            "Detection",
            "ExecutionFailed",
            "Future",
            "Hand",
            "IspineError",
            "Label",
            "ModelUnavailable",
            "NoCapableDevice",
            "Outcome",
            "Spine",
            "TaskCancelled",
            "TaskError",
            "TaskRejected",
            "TooBusy",
        ]
    )
    assert all(getattr(ispine.sdk, name) for name in ispine.sdk.__all__)
