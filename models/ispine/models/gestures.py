"""Names for a hand's pose, by rules on its 21 landmarks.

Landmarks are MediaPipe's: 0 wrist, then four per finger from the thumb (1-4) to the little finger
(17-20), base to tip. The rules use ratios of distances only, so they hold for any size, place,
rotation and for left and right hands.
"""

import math
from collections.abc import Sequence

Point = Sequence[float]

WRIST, THUMB_BASE, THUMB_TIP, INDEX_TIP = 0, 2, 4, 8
INDEX_BASE, MIDDLE_BASE, LITTLE_BASE = 5, 9, 17
FINGERS = {"index": (5, 6, 7, 8), "middle": (9, 10, 11, 12), "ring": (13, 14, 15, 16)}
FINGERS["little"] = (17, 18, 19, 20)

STRAIGHT = 0.85
PINCH_GAP = 0.28
THUMB_AWAY = 0.75


def name_gesture(landmarks: Sequence[Point]) -> str | None:
    """`open_palm`, `fist`, `point`, `thumb_up`, `victory`, `pinch`, or None for another pose.

    Args:
        landmarks: 21 points (x, y) or (x, y, z); y grows downwards.
    """
    size = _distance(landmarks[WRIST], landmarks[MIDDLE_BASE])
    if size <= 0:
        return None
    straight = {name: _is_straight(landmarks, joints) for name, joints in FINGERS.items()}
    thumb_out = _is_thumb_out(landmarks, size)
    others = (straight["middle"], straight["ring"], straight["little"])
    touching = _distance(landmarks[THUMB_TIP], landmarks[INDEX_TIP]) < PINCH_GAP * size
    # In a fist thumb and index tip are close too; a pinch reaches out of the palm.
    reaches = _distance(landmarks[WRIST], landmarks[INDEX_TIP]) > 1.15 * size
    if touching and reaches and not straight["index"]:
        return "pinch"
    if all(straight.values()) and thumb_out:
        return "open_palm"
    if straight["index"] and not any(others):
        return "point"
    if straight["index"] and others == (True, False, False):
        return "victory"
    if not any(straight.values()):
        return "thumb_up" if thumb_out and _is_thumb_up(landmarks, size) else "fist"
    return None


def _distance(one: Point, two: Point) -> float:
    return math.hypot(one[0] - two[0], one[1] - two[1])


def _is_straight(landmarks: Sequence[Point], joints: tuple[int, int, int, int]) -> bool:
    """Whether base to tip is nearly as long as the way over the joints, and leads outwards."""
    base, middle, last, tip = (landmarks[joint] for joint in joints)
    way = _distance(base, middle) + _distance(middle, last) + _distance(last, tip)
    outwards = _distance(landmarks[WRIST], tip) > _distance(landmarks[WRIST], middle)
    return way > 0 and outwards and _distance(base, tip) / way > STRAIGHT


def _is_thumb_out(landmarks: Sequence[Point], size: float) -> bool:
    """Whether the thumb's tip is away from the fingers' knuckles."""
    tip = landmarks[THUMB_TIP]
    nearest = min(_distance(tip, landmarks[joint]) for joint in (INDEX_BASE, 6, MIDDLE_BASE))
    way = sum(_distance(landmarks[i], landmarks[i + 1]) for i in (1, 2, 3))
    reach = _distance(landmarks[1], tip)
    return way > 0 and reach / way > STRAIGHT and nearest > 0.45 * size


def _is_thumb_up(landmarks: Sequence[Point], size: float) -> bool:
    """Whether the thumb points up in the picture, clearly above the knuckles."""
    base, tip = landmarks[THUMB_BASE], landmarks[THUMB_TIP]
    rise, run = base[1] - tip[1], abs(tip[0] - base[0])
    above = min(landmarks[j][1] for j in (INDEX_BASE, MIDDLE_BASE, LITTLE_BASE)) - tip[1]
    return rise > 0.35 * size and rise > run and above > 0.2 * size
