"""What a file is and how large its picture is, from its header alone.

Nothing is decoded, so a picture that would take gigabytes is refused in microseconds.
"""

from collections.abc import Iterator

from ispine.protocol.errors import TaskRejected
from ispine.protocol.plain import sniff

__all__ = [
    "MAX_IMAGE_BYTES",
    "MAX_PIXELS",
    "MAX_SIDE",
    "check_image",
    "image_size",
    "jpeg_segments",
    "sniff",
]

MAX_IMAGE_BYTES = 8 * 1024 * 1024
MAX_PIXELS = 40_000_000
MAX_SIDE = 16_384

_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})


def check_image(data: bytes) -> tuple[int, int]:
    """Width and height in pixels as stored, after checking every limit.

    Args:
        data: a JPEG, PNG or WebP file. Not copied.

    Raises:
        TaskRejected: not such a file, or above 8 MiB, 40 megapixels or 16,384 pixels a side.
    """
    if len(data) > MAX_IMAGE_BYTES:
        raise TaskRejected(
            f"expected an image of at most {MAX_IMAGE_BYTES:,} bytes; got {len(data):,};"
            " send a smaller image or compress it"
        )
    width, height = image_size(data)
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise TaskRejected(
            f"expected an image of at most {MAX_PIXELS // 1_000_000} megapixels and {MAX_SIDE:,}"
            f" pixels a side; got {width:,} x {height:,}; scale it down before sending"
        )
    return width, height


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels as stored (EXIF orientation is not looked at).

    Raises:
        TaskRejected: not a JPEG, PNG or WebP, or its header is damaged.
    """
    readers = {"image/jpeg": _jpeg_size, "image/png": _png_size, "image/webp": _webp_size}
    kind = sniff(data)
    if kind not in readers:
        seen = kind or (f"bytes beginning with {data[:8].hex()}" if data else "zero bytes")
        raise TaskRejected(
            f"expected a JPEG, PNG or WebP image; got {seen} ({len(data):,} bytes);"
            " send the encoded image file itself"
        )
    size = readers[kind](data)
    if size is None or 0 in size:
        raise TaskRejected(
            f"expected a whole {kind}; got {len(data):,} bytes with a damaged header;"
            " send the file again"
        )
    return size


def _png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 24 or data[12:16] != b"IHDR":
        return None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    for marker, start in jpeg_segments(data):
        if marker in _FRAME_MARKERS:
            if len(data) < start + 7:
                return None
            height = int.from_bytes(data[start + 3 : start + 5], "big")
            return int.from_bytes(data[start + 5 : start + 7], "big"), height
    return None


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Each marker and where its length field stands, until the picture data begins."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _BARE_MARKERS:
            at += 2
        else:
            yield marker, at + 2
            if marker in (0xD9, 0xDA):
                return
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _webp_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30:
        return None
    chunk = data[12:16]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L" and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width = int.from_bytes(data[26:28], "little") & 0x3FFF
        return width, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None
