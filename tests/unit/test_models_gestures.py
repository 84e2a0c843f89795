"""Gesture names on hands made of sticks."""

import math

import pytest

from ispine.models.gestures import name_gesture

Point = tuple[float, float]

# Right hand seen from its palm, y downwards, wrist at the origin, palm of length 100.
KNUCKLES: dict[str, Point] = {
    "index": (-28.0, -97.0),
    "middle": (0.0, -100.0),
    "ring": (22.0, -94.0),
    "little": (42.0, -82.0),
}
BONES = (45.0, 28.0, 20.0)


def finger(knuckle: Point, bend_deg: float) -> list[Point]:
    """Knuckle, two joints, tip; each joint turns by `bend_deg` towards the palm.

    Seen in a picture, a bent finger comes back over itself.
    """
    x, y = knuckle
    points, angle = [(x, y)], 0.0
    for length in BONES:
        angle += math.radians(bend_deg)
        y -= length * math.cos(angle)
        points.append((x, y))
    return points


def thumb(tip: Point) -> list[Point]:
    """Four points on a straight line from the thumb's root to its tip."""
    root = (-30.0, -25.0)
    return [
        (root[0] + (tip[0] - root[0]) * k / 3, root[1] + (tip[1] - root[1]) * k / 3)
        for k in range(4)
    ]


def hand(straight: str, thumb_tip: Point) -> list[Point]:
    points = [(0.0, 0.0), *thumb(thumb_tip)]
    for name, knuckle in KNUCKLES.items():
        points += finger(knuckle, 3.0 if name in straight.split() else 75.0)
    return points


ACROSS_PALM = (-10.0, -80.0)
SIDEWAYS = (-120.0, -75.0)


def pinching() -> list[Point]:
    points = hand("middle ring little", (-45.0, -130.0))
    points[5:9] = [KNUCKLES["index"], (-58.0, -128.0), (-60.0, -145.0), (-50.0, -138.0)]
    return points


def thumb_up() -> list[Point]:
    """A fist lying on its side: fingers to the right, thumb to the top."""
    return turned(hand("", (-130.0, -35.0)), 90.0)


POSES = {
    "open_palm": hand("index middle ring little", SIDEWAYS),
    "fist": hand("", ACROSS_PALM),
    "point": hand("index", ACROSS_PALM),
    "victory": hand("index middle", ACROSS_PALM),
}


def turned(points: list[Point], degrees: float) -> list[Point]:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(x * cos - y * sin, x * sin + y * cos) for x, y in points]


def mirrored(points: list[Point]) -> list[Point]:
    return [(-x, y) for x, y in points]


def placed(points: list[Point], scale: float) -> list[Point]:
    return [(320 + scale * x, 240 + scale * y) for x, y in points]


@pytest.mark.parametrize("degrees", range(0, 360, 30))
@pytest.mark.parametrize("name", [*POSES, "pinch"])
def test_a_pose_keeps_its_name_however_it_is_turned(name: str, degrees: float) -> None:
    points = pinching() if name == "pinch" else POSES[name]
    for variant in (points, mirrored(points)):
        for scale in (0.2, 1.0, 4.0):
            assert name_gesture(placed(turned(variant, degrees), scale)) == name


@pytest.mark.parametrize("degrees", [-25, 0, 25])
def test_a_thumb_up_points_up(degrees: float) -> None:
    for variant in (thumb_up(), mirrored(thumb_up())):
        assert name_gesture(turned(variant, degrees)) == "thumb_up"


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_thumb_to_the_side_or_down_has_no_name(degrees: float) -> None:
    assert name_gesture(turned(thumb_up(), degrees)) is None


def test_other_poses_have_no_name() -> None:
    assert name_gesture(hand("index little", ACROSS_PALM)) is None
    assert name_gesture(hand("index middle ring little", ACROSS_PALM)) is None
    assert name_gesture([(5.0, 5.0)] * 21) is None


def test_depth_is_allowed_and_ignored() -> None:
    assert name_gesture([(x, y, 7.0) for x, y in POSES["victory"]]) == "victory"
