"""`gesture`: hands, their landmarks, and what they say."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ispine.models.catalogue import Model
from ispine.models.gestures import name_gesture
from ispine.models.images import DecodedImage
from ispine.models.options import share, whole
from ispine.models.photos import drawn_hand
from ispine.models.results import GestureResult, Hand, Source
from ispine.models.vision import VisionCapability

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CROP_PIXELS = 224
ENLARGE = 2.6
SHIFT = -0.5
DEFAULT_MIN_SCORE = 0.5


class GestureCapability(VisionCapability):
    """Hands with 21 landmarks. Options: `min_score` (0 to 1), `max_hands` (1 to 8), `model`."""

    name = "gesture"
    option_names = ("min_score", "max_hands")

    def answer(
        self,
        model: Model,
        variant: str,
        image: DecodedImage,
        source: Source,
        options: Mapping[str, object],
    ) -> GestureResult:
        """Find palms, then read each hand upright."""
        floor = share(options, "min_score", DEFAULT_MIN_SCORE)
        most = whole(options, "max_hands", 1, 8, 2)
        palms = self.session(model, variant, "palm").run({"image": image.rgb})
        hands: list[Hand] = []
        for box, points in list(zip(palms["boxes"], palms["points"], strict=True))[:most]:
            crop = crop_of(rounded_box(box), points)
            found = self.session(model, variant, "hand").run({"image": image.rgb, "crop": crop})
            score = float(found["presence"][0])
            if score >= floor:
                hands.append(_hand(found, score, image))
        hands.sort(key=lambda hand: -hand.score)
        return GestureResult(tuple(hands), source)

    def sample(self) -> bytes:
        """A picture with a hand, so that both stages are warmed and timed."""
        return drawn_hand().data


def rounded_box(box: Any) -> tuple[float, float, float, float]:
    """A box as floats."""
    return float(box[0]), float(box[1]), float(box[2]), float(box[3])


def crop_of(box: tuple[float, float, float, float], points: Any) -> "NDArray[np.float32]":
    """The square around a hand, turned so that it points up.

    MediaPipe's hand tracking: the palm's box, made square on its longer side, 2.6 times as large,
    moved by half its height towards the fingers; the direction is from point 0 (wrist) to point 2
    (base of the middle finger).

    Returns:
        float32 [2, 3]: affine map from pixels of the 224 square to pixels of the picture.
    """
    import numpy as np

    left, top, right, bottom = box
    side = max(right - left, bottom - top)
    toward = math.atan2(
        float(points[2][1]) - float(points[0][1]), float(points[2][0]) - float(points[0][0])
    )
    turn = toward + math.pi / 2
    cos, sin = math.cos(turn), math.sin(turn)
    centre_x = (left + right) / 2 - SHIFT * side * sin
    centre_y = (top + bottom) / 2 + SHIFT * side * cos
    scale = side * ENLARGE / CROP_PIXELS
    half = CROP_PIXELS / 2
    across = (scale * cos, -scale * sin)
    down = (scale * sin, scale * cos)
    return np.array(
        [
            [*across, centre_x - half * (across[0] + across[1])],
            [*down, centre_y - half * (down[0] + down[1])],
        ],
        np.float32,
    )


def _hand(found: Mapping[str, Any], score: float, image: DecodedImage) -> Hand:
    across, down = image.scale
    marks = tuple(
        (float(x) * across, float(y) * down, float(z) * across) for x, y, z in found["landmarks"]
    )
    xs, ys = [mark[0] for mark in marks], [mark[1] for mark in marks]
    box = (
        min(max(min(xs), 0.0), image.width),
        min(max(min(ys), 0.0), image.height),
        min(max(max(xs), 0.0), image.width),
        min(max(max(ys), 0.0), image.height),
    )
    handedness = "right" if float(found["handedness"][0]) > 0.5 else "left"
    return Hand(handedness, score, name_gesture(marks), marks, box)
