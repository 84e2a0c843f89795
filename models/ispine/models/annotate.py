"""Results drawn on their picture."""

from collections.abc import Sequence
from pathlib import Path

from ispine.models.images import open_image
from ispine.models.results import Detection, Hand, Label

COLOURS = ("#ff4d4d", "#2ec27e", "#3584e4", "#f5c211", "#9141ac", "#ff7800", "#00b8a9")
BONES = (
    *((0, base) for base in (1, 5, 9, 13, 17)),
    *((joint, joint + 1) for base in (1, 5, 9, 13, 17) for joint in range(base, base + 3)),
)


def annotate(data: bytes, items: Sequence[Detection | Hand | Label], path: Path) -> None:
    """Save the picture with boxes, hands or labels as a JPEG.

    Raises:
        TaskRejected: `data` is no image.
        OSError: `path` cannot be written.
    """
    from PIL import ImageDraw, ImageFont

    picture = open_image(data).copy()
    draw = ImageDraw.Draw(picture)
    width = max(2, round(max(picture.size) / 300))
    size = max(12, round(max(picture.size) / 45))
    font = ImageFont.load_default(size)
    for number, item in enumerate(items):
        colour = COLOURS[number % len(COLOURS)]
        if isinstance(item, Label):
            where = (2 * width, 2 * width + number * (size + 2 * width))
            draw.text(where, f"{item.label} {item.score:.2f}", fill=colour, font=font)
            continue
        draw.rectangle(item.box_xyxy, outline=colour, width=width)
        if isinstance(item, Hand):
            points = [(x, y) for x, y, _ in item.landmarks]
            for one, two in BONES:
                draw.line((points[one], points[two]), fill=colour, width=width)
            text = f"{item.handedness} {item.gesture or 'hand'} {item.score:.2f}"
        else:
            text = f"{item.label} {item.score:.2f}"
        corner = (item.box_xyxy[0] + width, max(item.box_xyxy[1] - size - width, 0))
        draw.rectangle(draw.textbbox(corner, text, font=font), fill=colour)
        draw.text(corner, text, fill="white", font=font)
    picture.save(path, "JPEG", quality=90)
