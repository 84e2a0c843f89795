"""Results of the built-in capabilities and their JSON."""

import json
import subprocess
import sys

import pytest

from ispine.models.results import (
    ClassifyResult,
    Detection,
    DetectResult,
    GestureResult,
    Hand,
    Label,
    Source,
    encode_result,
    parse_detections,
    parse_hands,
    parse_labels,
)
from ispine.protocol.errors import RemoteProtocolError

SOURCE = Source(640, 480, "nanodet-g", "int8")
MARKS = tuple((float(i), 2.0 * i, -0.5) for i in range(21))


def test_detections_survive_the_wire() -> None:
    items = (
        Detection("cat", 0.87, (1.25, 2.5, 300.0, 410.0)),
        Detection("Café", 0.5, (0, 0, 1, 1)),
    )
    data = encode_result(DetectResult(items, SOURCE))
    assert parse_detections(data) == list(items)
    body = json.loads(data)
    assert body["image"] == {"width": 640, "height": 480}
    assert (body["model"], body["variant"]) == ("nanodet-g", "int8")
    assert body["detections"][0] == {
        "label": "cat",
        "score": 0.87,
        "box": [1.25, 2.5, 300.0, 410.0],
    }


def test_hands_and_labels_survive_the_wire() -> None:
    hands = (
        Hand("left", 0.9, "victory", MARKS, (0, 0, 20, 40)),
        Hand("right", 0.6, None, MARKS, (1, 1, 2, 2)),
    )
    assert parse_hands(encode_result(GestureResult(hands, SOURCE))) == list(hands)
    labels = (Label("espresso", 0.71), Label("cup", 0.1))
    assert parse_labels(encode_result(ClassifyResult(labels, SOURCE))) == list(labels)


@pytest.mark.parametrize(
    "item",
    [
        {"score": 0.5, "box": [0, 0, 1, 1]},
        {"label": 5, "score": 0.5, "box": [0, 0, 1, 1]},
        {"label": "x" * 201, "score": 0.5, "box": [0, 0, 1, 1]},
        {"label": "cat", "score": True, "box": [0, 0, 1, 1]},
        {"label": "cat", "score": 1.5, "box": [0, 0, 1, 1]},
        {"label": "cat", "score": float("nan"), "box": [0, 0, 1, 1]},
        {"label": "cat", "score": 0.5, "box": [0, 0, 1]},
        {"label": "cat", "score": 0.5, "box": [3, 0, 1, 1]},
        {"label": "cat", "score": 0.5, "box": [0, 0, 1, 10**400]},
        "cat",
    ],
)
def test_a_wrong_detection_is_refused(item: object) -> None:
    with pytest.raises(RemoteProtocolError, match="expected"):
        parse_detections(json.dumps({"detections": [item]}).encode())


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'{"detections": 3}', b"\xff\xfe", b"[" * 100_000],
)
def test_what_is_no_result_is_refused(data: bytes) -> None:
    for parse in (parse_detections, parse_hands, parse_labels):
        with pytest.raises(RemoteProtocolError, match="expected"):
            parse(data)


def test_too_much_is_refused() -> None:
    item = {"label": "cat", "score": 0.5, "box": [0, 0, 1, 1]}
    with pytest.raises(RemoteProtocolError, match="at most 1000"):
        parse_detections(json.dumps({"detections": [item] * 1001}).encode())
    with pytest.raises(RemoteProtocolError, match="1,048,576"):
        parse_detections(b" " * (1024 * 1024 + 1))


def test_results_are_light() -> None:
    code = (
        "import sys, ispine.models.results, ispine.models.capability, ispine.models.images;"
        "print([m for m in ('numpy', 'onnxruntime', 'PIL', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() == "[]"
