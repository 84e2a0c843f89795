"""What the built-in capabilities answer, and its compact JSON.

Only the standard library is imported here: a wearable reads results without numpy or onnxruntime.
Parsing treats its input as untrusted: everything is bounded and checked.

    {"detections": [{"label": "cat", "score": 0.87, "box": [12.5, 40, 300.25, 410]}],
     "image": {"width": 640, "height": 480}, "model": "nanodet-g", "variant": "int8"}
    {"hands": [{"handedness": "right", "score": 0.98, "gesture": "victory",
                "landmarks": [[x, y, z], …21], "box": [x1, y1, x2, y2]}], "image": …, …}
    {"labels": [{"label": "espresso", "score": 0.71}], "image": …, …}

Boxes and landmarks are in pixels of the submitted image after its EXIF orientation, origin at the
top left; z is in the same unit, towards the camera negative, relative to the wrist.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ispine.protocol.errors import RemoteProtocolError

JSON_TYPE = "application/json"
MAX_RESULT_BYTES = 1024 * 1024
MAX_ITEMS = 1000
MAX_LABEL_CHARS = 200
LANDMARKS = 21

Box = tuple[float, float, float, float]
Point = tuple[float, float, float]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Detection:
    """One object.

    Attributes:
        label: name out of the model's label set.
        score: 0 to 1.
        box_xyxy: left, top, right, bottom in pixels of the submitted image, clipped to it.
    """

    label: str
    score: float
    box_xyxy: Box


@dataclass(frozen=True, slots=True)
class Hand:
    """One hand.

    Attributes:
        handedness: `left` or `right`, as the person would say.
        score: 0 to 1, that there is a hand.
        gesture: `open_palm`, `fist`, `point`, `thumb_up`, `victory`, `pinch`, or None.
        landmarks: 21 points (x, y, z) in pixels, wrist first, then four a finger from the thumb.
        box_xyxy: around the landmarks, clipped to the image.
    """

    handedness: str
    score: float
    gesture: str | None
    landmarks: tuple[Point, ...]
    box_xyxy: Box


@dataclass(frozen=True, slots=True)
class Label:
    """One name for the whole picture, score 0 to 1."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Source:
    """What a result is about: image size in pixels, and the model that answered."""

    width: int
    height: int
    model: str
    variant: str


@dataclass(frozen=True, slots=True)
class DetectResult:
    """Answer of `detect`, best score first."""

    detections: tuple[Detection, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class GestureResult:
    """Answer of `gesture`, best score first."""

    hands: tuple[Hand, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class ClassifyResult:
    """Answer of `classify`, best score first."""

    labels: tuple[Label, ...]
    source: Source


CapabilityResult = DetectResult | GestureResult | ClassifyResult


def encode_result(result: CapabilityResult) -> bytes:
    """The compact JSON of a built-in result (content type `application/json`)."""
    match result:
        case DetectResult(detections=detections):
            body: dict[str, object] = {"detections": [_detection_json(item) for item in detections]}
        case GestureResult(hands=hands):
            body = {"hands": [_hand_json(item) for item in hands]}
        case ClassifyResult(labels=labels):
            body = {
                "labels": [{"label": item.label, "score": round(item.score, 4)} for item in labels]
            }
    source = result.source
    body["image"] = {"width": source.width, "height": source.height}
    body["model"] = source.model
    body["variant"] = source.variant
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _detection_json(item: Detection) -> dict[str, object]:
    return {
        "label": item.label,
        "score": round(item.score, 4),
        "box": [round(value, 2) for value in item.box_xyxy],
    }


def _hand_json(item: Hand) -> dict[str, object]:
    return {
        "handedness": item.handedness,
        "score": round(item.score, 4),
        "gesture": item.gesture,
        "landmarks": [[round(value, 2) for value in point] for point in item.landmarks],
        "box": [round(value, 2) for value in item.box_xyxy],
    }


def parse_detections(data: bytes) -> list[Detection]:
    """Read the answer of `detect`.

    Raises:
        RemoteProtocolError: not a detect result, or above a limit.
    """
    return _parse(data, "detections", _detection)


def parse_hands(data: bytes) -> list[Hand]:
    """Read the answer of `gesture`.

    Raises:
        RemoteProtocolError: not a gesture result, or above a limit.
    """
    return _parse(data, "hands", _hand)


def parse_labels(data: bytes) -> list[Label]:
    """Read the answer of `classify`.

    Raises:
        RemoteProtocolError: not a classify result, or above a limit.
    """
    return _parse(data, "labels", _label)


def _parse(data: bytes, key: str, read: Callable[[dict[str, object]], Item]) -> list[Item]:
    if len(data) > MAX_RESULT_BYTES:
        raise _bad(f"a result of at most {MAX_RESULT_BYTES:,} bytes", f"{len(data):,}")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad("a JSON result", f"{type(error).__name__}: {str(error)[:80]}") from error
    items = body.get(key) if isinstance(body, dict) else None
    if not isinstance(items, list):
        raise _bad(f"a JSON object with a list {key!r}", _seen(body))
    if len(items) > MAX_ITEMS:
        raise _bad(f"at most {MAX_ITEMS} {key}", str(len(items)))
    return [read(_object(item, key)) for item in items]


def _object(item: object, key: str) -> dict[str, object]:
    if not isinstance(item, dict):
        raise _bad(f"every one of {key} to be an object", _seen(item))
    return item


def _detection(item: dict[str, object]) -> Detection:
    return Detection(_text(item, "label"), _score(item), _box(item))


def _label(item: dict[str, object]) -> Label:
    return Label(_text(item, "label"), _score(item))


def _hand(item: dict[str, object]) -> Hand:
    points = item.get("landmarks")
    if not isinstance(points, list) or len(points) != LANDMARKS:
        raise _bad(f"{LANDMARKS} landmarks", _seen(points))
    gesture = None if item.get("gesture") is None else _text(item, "gesture")
    landmarks = tuple(_point(point) for point in points)
    return Hand(_text(item, "handedness"), _score(item), gesture, landmarks, _box(item))


def _text(item: dict[str, object], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or len(value) > MAX_LABEL_CHARS:
        raise _bad(f"{name} to be text of at most {MAX_LABEL_CHARS} characters", _seen(value))
    return value


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(f"{what} to be a number", _seen(value))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _bad(f"{what} to be finite", _seen(value))
    return number


def _score(item: dict[str, object]) -> float:
    score = _number(item.get("score"), "score")
    if not 0 <= score <= 1:
        raise _bad("score from 0 to 1", _seen(score))
    return score


def _box(item: dict[str, object]) -> Box:
    value = item.get("box")
    if not isinstance(value, list) or len(value) != 4:
        raise _bad("box to be [left, top, right, bottom]", _seen(value))
    left, top, right, bottom = (_number(edge, "box") for edge in value)
    if left > right or top > bottom:
        raise _bad("box with left <= right and top <= bottom", _seen(value))
    return left, top, right, bottom


def _point(value: object) -> Point:
    if not isinstance(value, list) or len(value) != 3:
        raise _bad("a landmark to be [x, y, z]", _seen(value))
    x, y, z = (_number(part, "landmark") for part in value)
    return x, y, z


def _seen(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"{type(value).__name__} {str(value)[:40]!r}"


def _bad(expected: str, seen: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"expected {expected}; got {seen}; check the version of the device that answered"
    )
