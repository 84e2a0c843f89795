"""Whether a model answers here as the reference did.

The reference is the fp32 variant on the pictures of the package, written down in
`data/golden.json` by `models/tools/make_golden.py`. A device on which a variant deviates (int8
without the right instructions, a provider with its own arithmetic) finds out here.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files

from ispine.models.photos import reference_pictures
from ispine.models.results import (
    Box,
    Detection,
    Hand,
    Label,
    parse_detections,
    parse_hands,
    parse_labels,
)

STRONG = 0.5
LOOSE = 0.25
LEAST_IOU = 0.5
LEAST_SHARE = 0.75
SURE_LABEL = 0.4
LANDMARK_SLACK = 0.06

Run = Callable[[bytes], bytes]


@cache
def golden() -> Mapping[str, Mapping[str, bytes]]:
    """Reference answers: model id, then picture, then the JSON of the result."""
    text = (files("ispine.models") / "data" / "golden.json").read_text(encoding="utf-8")
    return {
        model: {picture: json.dumps(answer).encode() for picture, answer in answers.items()}
        for model, answers in json.loads(text).items()
    }


def deviation(capability: str, model: str, run: Run) -> str:
    """Why a model's answers are not those of the reference; "" when they are.

    Args:
        capability: `detect`, `gesture` or `classify`; others are not checked.
        model: id; one without reference answers is not checked.
        run: answers one picture. A detector should answer from score 0.25 upwards.
    """
    reference = golden().get(model)
    compare = _COMPARE.get(capability)
    if reference is None or compare is None:
        return ""
    pairs = [
        (reference[picture.name], run(picture.data))
        for picture in reference_pictures()
        if _says_something(capability, reference[picture.name])
    ]
    return compare(pairs)


Pairs = Sequence[tuple[bytes, bytes]]


def _says_something(capability: str, answer: bytes) -> bool:
    """Whether the reference is sure of anything on that picture; others are left out."""
    if capability == "detect":
        return any(item.score >= STRONG for item in parse_detections(answer))
    if capability == "classify":
        return parse_labels(answer)[0].score >= SURE_LABEL
    return bool(parse_hands(answer))


def _detect(pairs: Pairs) -> str:
    missing: list[Detection] = []
    strong = 0
    for expected, seen in pairs:
        found = parse_detections(seen)
        for item in parse_detections(expected):
            if item.score >= STRONG:
                strong += 1
                missing += [] if matches(item, found) else [item]
    if strong and len(missing) > (1 - LEAST_SHARE) * strong:
        return (
            f"expected {strong} strong boxes of the reference; {len(missing)} were not found,"
            f" such as {missing[0].label} at {[round(edge) for edge in missing[0].box_xyxy]}"
        )
    return ""


def matches(item: Detection, others: Sequence[Detection]) -> bool:
    """Whether one of `others` has the same label and overlaps by half."""
    return any(
        item.label == other.label and iou(item.box_xyxy, other.box_xyxy) >= LEAST_IOU
        for other in others
    )


def iou(one: Box, two: Box) -> float:
    """Intersection over union of two boxes."""
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, two))
    return shared / (areas - shared)


def _classify(pairs: Pairs) -> str:
    for expected, seen in pairs:
        wanted, found = parse_labels(expected)[0], parse_labels(seen)
        if not any(_is_like(wanted, label) for label in found[:3]):
            names = ", ".join(f"{label.label} {label.score:.2f}" for label in found[:3])
            return f"expected {wanted.label} {wanted.score:.2f} among the first three; saw {names}"
    return ""


def _is_like(wanted: Label, seen: Label) -> bool:
    return wanted.label == seen.label and abs(wanted.score - seen.score) <= LOOSE


def _gesture(pairs: Pairs) -> str:
    for expected, seen in pairs:
        wanted, found = parse_hands(expected), parse_hands(seen)
        if len(wanted) != len(found):
            return f"expected {len(wanted)} hands; saw {len(found)}"
        for one, two in zip(wanted, found, strict=True):
            apart = landmark_error(one, two)
            if apart > LANDMARK_SLACK or one.gesture != two.gesture:
                return (
                    f"expected {one.gesture} with landmarks within {LANDMARK_SLACK:.0%} of the"
                    f" hand's size; saw {two.gesture} and {apart:.1%}"
                )
    return ""


def landmark_error(one: Hand, two: Hand) -> float:
    """Mean distance of the landmarks in the picture, as a share of the first hand's diagonal."""
    left, top, right, bottom = one.box_xyxy
    diagonal = max(math.hypot(right - left, bottom - top), 1.0)
    gaps = [
        math.hypot(a[0] - b[0], a[1] - b[1])
        for a, b in zip(one.landmarks, two.landmarks, strict=True)
    ]
    return sum(gaps) / len(gaps) / diagonal


_COMPARE: Mapping[str, Callable[[Pairs], str]] = {
    "detect": _detect,
    "classify": _classify,
    "gesture": _gesture,
}
