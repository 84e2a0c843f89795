"""Untrusted bytes into the readers of images and results."""

import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ispine.models.gestures import name_gesture
from ispine.models.images import decode_image
from ispine.models.results import (
    Detection,
    DetectResult,
    Source,
    encode_result,
    parse_detections,
    parse_hands,
    parse_labels,
)
from ispine.protocol.errors import RemoteProtocolError, TaskRejected

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["label", "score", "box", "landmarks", "handedness", "gesture"]), inner
        )
    ),
    max_leaves=20,
)


def files() -> dict[str, bytes]:
    picture = Image.radial_gradient("L").resize((48, 32)).convert("RGB")
    made = {}
    for kind in ("JPEG", "PNG", "WEBP"):
        target = io.BytesIO()
        picture.save(target, kind)
        made[kind] = target.getvalue()
    return made


FILES = files()


@given(
    st.binary(max_size=300) | JSON.map(lambda value: json.dumps({"detections": [value]}).encode())
)
def test_any_bytes_are_a_result_or_refused(data: bytes) -> None:
    for parse in (parse_detections, parse_hands, parse_labels):
        try:
            parse(data)
        except RemoteProtocolError as error:
            assert "expected" in str(error)


@given(JSON, st.sampled_from(["hands", "labels"]))
def test_any_json_is_a_result_or_refused(value: object, key: str) -> None:
    data = json.dumps({key: [value]}).encode()
    for parse in (parse_hands, parse_labels):
        try:
            parse(data)
        except RemoteProtocolError as error:
            assert "expected" in str(error)


@given(
    st.lists(
        st.tuples(st.text(max_size=20), st.floats(0, 1), *[st.floats(0, 5000) for _ in range(4)]),
        max_size=5,
    )
)
def test_detections_round_trip(rows: list[tuple[str, float, float, float, float, float]]) -> None:
    items = tuple(
        Detection(label, score, (min(a, b), min(c, d), max(a, b), max(c, d)))
        for label, score, a, b, c, d in rows
    )
    read = parse_detections(encode_result(DetectResult(items, Source(5000, 5000, "m", "v"))))
    assert [item.label for item in read] == [item.label for item in items]
    for one, two in zip(items, read, strict=True):
        assert abs(one.score - two.score) <= 0.0001
        assert all(abs(a - b) <= 0.01 for a, b in zip(one.box_xyxy, two.box_xyxy, strict=True))


@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6),
    st.integers(0, 2000),
)
@settings(max_examples=200, deadline=None)
def test_a_damaged_image_decodes_or_is_refused(
    kind: str, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(FILES[kind])
    for place, value in changes:
        data[place % len(data)] = value
    try:
        image = decode_image(bytes(data[: len(data) - cut % len(data)]), at_least=16)
    except TaskRejected:
        return
    assert image.rgb.ndim == 3 and image.rgb.shape[2] == 3


@given(st.lists(st.tuples(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4)), min_size=21, max_size=21))
def test_any_points_have_a_name_or_none(points: list[tuple[float, float]]) -> None:
    assert name_gesture(points) in (
        None,
        "open_palm",
        "fist",
        "point",
        "thumb_up",
        "victory",
        "pinch",
    )
