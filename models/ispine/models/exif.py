"""The one thing of EXIF that matters here: which way up a picture is.

Read by hand, because Pillow's reader warns about damaged blocks on whatever thread it runs, and
costs more than scaling the picture down.
"""

from ispine.models.headers import jpeg_segments

UPRIGHT = 1
_ORIENTATION = 0x0112
_SHORT = 3
_MOST_ENTRIES = 500
_PREFIX = b"Exif\0\0"


def split_jpeg(data: bytes) -> tuple[bytes, bytes]:
    """The file without its EXIF blocks, and the first of them (b"" when there is none)."""
    exif, kept, done = b"", [], 0
    for marker, start in jpeg_segments(data):
        end = start + int.from_bytes(data[start : start + 2], "big")
        if marker == 0xE1 and data[start + 2 : start + 8] == _PREFIX:
            exif = exif or data[start + 8 : end]
            kept.append(data[done : start - 2])
            done = end
    return (b"".join([*kept, data[done:]]) if kept else data), exif


def orientation(exif: bytes) -> int:
    """EXIF orientation 1 to 8; 1 where it is missing or damaged.

    Args:
        exif: TIFF structure, with or without its `Exif` prefix.
    """
    tiff = exif.removeprefix(_PREFIX)
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(tiff[:4])
    if order is None:
        return UPRIGHT

    def number(at: int, size: int) -> int:
        part = tiff[at : at + size]
        return int.from_bytes(part, "little" if order == "little" else "big")

    first = number(4, 4)
    for entry in range(min(number(first, 2), _MOST_ENTRIES)):
        at = first + 2 + 12 * entry
        if number(at, 2) == _ORIENTATION and number(at + 2, 2) == _SHORT:
            value = number(at + 8, 2)
            return value if 1 <= value <= 8 else UPRIGHT
    return UPRIGHT
