"""Names for a hand's pose, by rules on its 21 landmarks.

Landmarks are MediaPipe's: 0 wrist, then four per finger from the thumb (1-4) to the little finger
(17-20), base to tip. The rules use ratios of distances only, so they hold for any size, place,
rotation and for left and right hands; only a thumb up has to point up in the picture.
"""

import math
from collections.abc import Mapping, Sequence

Point = Sequence[float]

WRIST, THUMB_ROOT, THUMB_BASE, THUMB_TIP, INDEX_TIP = 0, 1, 2, 4, 8
INDEX_BASE, INDEX_MIDDLE, MIDDLE_BASE, LITTLE_BASE = 5, 6, 9, 17
FINGERS = ((5, 6, 7, 8), (9, 10, 11, 12), (13, 14, 15, 16), (17, 18, 19, 20))

# Shares of the palm, from the wrist to the base of the middle finger, unless said otherwise.
STRAIGHT = 0.85  # base to tip over the way along the joints
PINCH_GAP = 0.28  # thumb tip to index tip
PINCH_REACH = 1.15  # wrist to index tip; in a fist the tips are close too, but inside the palm
THUMB_AWAY = 0.45  # thumb tip to the nearest knuckle
THUMB_RISE = 0.35  # thumb tip above its base
THUMB_ABOVE = 0.2  # thumb tip above the highest knuckle


def name_gesture(landmarks: Sequence[Point]) -> str | None:
    """`open_palm`, `fist`, `point`, `thumb_up`, `victory`, `pinch`, or None for another pose.

    Args:
        landmarks: 21 points (x, y) or (x, y, z); y grows downwards.
    """
    size = _distance(landmarks[WRIST], landmarks[MIDDLE_BASE])
    if size <= 0:
        return None
    straight = tuple(_is_straight(landmarks, joints) for joints in FINGERS)
    thumb_out = _is_thumb_out(landmarks, size)
    if _is_pinch(landmarks, size) and not straight[0]:
        return "pinch"
    if not any(straight) and thumb_out:
        return "thumb_up" if _is_thumb_up(landmarks, size) else None
    if all(straight) and not thumb_out:
        return None
    return _BY_FINGERS.get(straight)


_BY_FINGERS: Mapping[tuple[bool, ...], str] = {
    (True, True, True, True): "open_palm",
    (True, False, False, False): "point",
    (True, True, False, False): "victory",
    (False, False, False, False): "fist",
}


def _is_pinch(landmarks: Sequence[Point], size: float) -> bool:
    """Whether the tips of thumb and index finger meet, away from the palm."""
    gap = _distance(landmarks[THUMB_TIP], landmarks[INDEX_TIP])
    reach = _distance(landmarks[WRIST], landmarks[INDEX_TIP])
    return gap < PINCH_GAP * size and reach > PINCH_REACH * size


def _distance(one: Point, two: Point) -> float:
    return math.hypot(one[0] - two[0], one[1] - two[1])


def _is_straight(landmarks: Sequence[Point], joints: tuple[int, int, int, int]) -> bool:
    """Whether base to tip is nearly as long as the way over the joints, and leads outwards."""
    base, middle, last, tip = (landmarks[joint] for joint in joints)
    way = _distance(base, middle) + _distance(middle, last) + _distance(last, tip)
    outwards = _distance(landmarks[WRIST], tip) > _distance(landmarks[WRIST], middle)
    return way > 0 and outwards and _distance(base, tip) / way > STRAIGHT


def _is_thumb_out(landmarks: Sequence[Point], size: float) -> bool:
    """Whether the thumb is straight and its tip away from the knuckles."""
    tip = landmarks[THUMB_TIP]
    knuckles = (INDEX_BASE, INDEX_MIDDLE, MIDDLE_BASE)
    nearest = min(_distance(tip, landmarks[joint]) for joint in knuckles)
    way = sum(_distance(landmarks[i], landmarks[i + 1]) for i in range(THUMB_ROOT, THUMB_TIP))
    reach = _distance(landmarks[THUMB_ROOT], tip)
    return way > 0 and reach / way > STRAIGHT and nearest > THUMB_AWAY * size


def _is_thumb_up(landmarks: Sequence[Point], size: float) -> bool:
    """Whether the thumb points up in the picture, clearly above the knuckles."""
    base, tip = landmarks[THUMB_BASE], landmarks[THUMB_TIP]
    rise, run = base[1] - tip[1], abs(tip[0] - base[0])
    knuckles = (INDEX_BASE, MIDDLE_BASE, LITTLE_BASE)
    above = min(landmarks[joint][1] for joint in knuckles) - tip[1]
    return rise > THUMB_RISE * size and rise > run and above > THUMB_ABOVE * size
