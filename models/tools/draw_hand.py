"""Draw the hand that gesture models are checked with: no photograph with a free licence was found.

python models/tools/draw_hand.py models/ispine/models/data/pictures/hand.jpg
"""

import sys

from PIL import Image, ImageDraw, ImageFilter

SKIN, CREASE, GROUND = (214, 160, 130), (175, 131, 106), (70, 90, 110)
# Base, middle joint and tip of each finger, and its width.
FINGERS = (
    ((285, 290), (262, 190), (252, 130), 24),
    ((312, 280), (306, 165), (303, 95), 25),
    ((340, 282), (348, 172), (352, 110), 24),
    ((364, 298), (386, 215), (396, 160), 20),
)
THUMB = ((285, 380), (225, 310), (190, 260))
Point = tuple[int, int]


def draw_hand() -> Image.Image:
    """An open hand, 640 x 480."""
    picture = Image.new("RGB", (640, 480), GROUND)
    draw = ImageDraw.Draw(picture)
    draw.polygon([(285, 470), (365, 470), (355, 380), (295, 380)], fill=SKIN)
    draw.rounded_rectangle([268, 270, 375, 405], 30, fill=SKIN)
    for base, middle, tip, width in FINGERS:
        bone(draw, base, middle, width + 4)
        bone(draw, middle, tip, width)
    bone(draw, THUMB[0], THUMB[1], 34)
    bone(draw, THUMB[1], THUMB[2], 26)
    for base, middle, _, width in FINGERS:
        left, right = middle[0] - width / 2, middle[0] + width / 2
        draw.arc([left, middle[1] - 6, right, middle[1] + 6], 0, 180, fill=CREASE, width=2)
        draw.line([(base[0] - 10, base[1]), (base[0] + 10, base[1])], fill=CREASE, width=2)
    for box in ((290, 310, 350, 350), (280, 330, 350, 390), (300, 300, 372, 330)):
        draw.arc(box, 200, 340, fill=CREASE, width=2)
    return picture.filter(ImageFilter.GaussianBlur(3))


def bone(draw: ImageDraw.ImageDraw, start: Point, end: Point, width: int) -> None:
    """A line with round ends."""
    draw.line([start, end], fill=SKIN, width=width)
    for x, y in (start, end):
        draw.ellipse([x - width / 2, y - width / 2, x + width / 2, y + width / 2], fill=SKIN)


if __name__ == "__main__":
    draw_hand().save(sys.argv[1], "JPEG", quality=90)
