"""Encoded images to pixels and back, with every limit checked before anything is decoded.

A large JPEG is decoded at a half, quarter or eighth of its size (the DCT does it for little), a
large PNG or WebP is reduced by whole factors; boxes are scaled back by `DecodedImage.scale`.
Pillow does the work; numpy and Pillow are imported on first use, since a wearable that sends JPEG
bytes needs neither.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ispine.models.exif import orientation, split_jpeg
from ispine.models.headers import (
    MAX_IMAGE_BYTES,
    MAX_PIXELS,
    MAX_SIDE,
    check_image,
    image_size,
    sniff,
)
from ispine.protocol.errors import TaskRejected

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    Pixels = NDArray[np.uint8]

__all__ = [
    "MAX_IMAGE_BYTES",
    "MAX_PIXELS",
    "MAX_SIDE",
    "DecodedImage",
    "check_image",
    "decode_image",
    "decode_rgb",
    "encode_jpeg",
    "open_image",
    "sniff",
]

_FORMATS = ("JPEG", "PNG", "WEBP")
_DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    TypeError,
    struct.error,
)


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """Pixels and the size of the picture they came from.

    Attributes:
        rgb: uint8 HWC RGB, upright; possibly smaller than the picture.
        width: of the submitted picture, upright, in pixels.
        height: likewise.
    """

    rgb: Pixels
    width: int
    height: int

    @property
    def scale(self) -> tuple[float, float]:
        """Factors (x, y) from pixels of `rgb` to pixels of the submitted picture."""
        height, width = self.rgb.shape[:2]
        return self.width / width, self.height / height


def decode_rgb(data: bytes) -> Pixels:
    """Decode a JPEG, PNG or WebP at its full size.

    Returns:
        uint8 HWC RGB, upright (EXIF orientation applied); read only.

    Raises:
        TaskRejected: above a limit, truncated, damaged, or not an image.
    """
    return decode_image(data).rgb


def decode_image(data: bytes, at_least: int | None = None) -> DecodedImage:
    """Decode a JPEG, PNG or WebP.

    Args:
        data: the file.
        at_least: when given, the picture may be reduced by a whole factor so long as its shorter
            side keeps that many pixels.

    Raises:
        TaskRejected: above a limit, truncated, damaged, or not an image.
    """
    import numpy as np

    width, height = check_image(data)
    try:
        image, turned = _decode(data, at_least)
    except _DECODE_ERRORS as error:
        raise _damaged(data, error) from error
    if turned:
        width, height = height, width
    return DecodedImage(np.asarray(image), width, height)


def open_image(data: bytes) -> Image.Image:
    """The upright RGB picture at full size, for drawing on.

    Raises:
        TaskRejected: above a limit, truncated, damaged, or not an image.
    """
    check_image(data)
    try:
        return _decode(data, None)[0]
    except _DECODE_ERRORS as error:
        raise _damaged(data, error) from error


def _decode(data: bytes, at_least: int | None) -> tuple[Image.Image, bool]:
    """The upright RGB picture, and whether its sides were swapped."""
    from PIL import Image

    exif, is_jpeg = b"", sniff(data) == "image/jpeg"
    if is_jpeg:
        data, exif = split_jpeg(data)
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        # Pillow's own header reader and ours must agree, or a limit could be walked around.
        if image.size != image_size(data):
            raise ValueError("the header states two sizes")
        if at_least and is_jpeg:
            image.draft("RGB", (at_least, at_least))
        image.load()
        turn = orientation(exif or _exif_of(image))
        rgb = _to_rgb(image)
    if at_least:
        factor = min(rgb.size) // at_least
        rgb = rgb.reduce(factor) if factor > 1 else rgb
    method = _UPRIGHT.get(turn)
    if method is None:
        return rgb, False
    return rgb.transpose(Image.Transpose(method)), turn in _SIDES_SWAPPED


# EXIF orientation to the Pillow transposition that undoes it (values of Image.Transpose).
_UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
_SIDES_SWAPPED = (5, 6, 7, 8)


def _exif_of(image: Image.Image) -> bytes:
    block = image.info.get("exif", b"")
    return block if isinstance(block, bytes) else b""


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16-bit grey: keep the upper byte, where convert() would clip.
        return image.point(lambda value: value / 256).convert("L").convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _damaged(data: bytes, error: BaseException) -> TaskRejected:
    return TaskRejected(
        f"expected a whole {sniff(data)}; got {len(data):,} bytes that do not decode"
        f" ({type(error).__name__}: {str(error)[:80]}); send the file again"
    )


def encode_jpeg(
    image: Pixels | Image.Image | Path | str | bytes,
    quality: int = 85,
    max_side: int | None = None,
) -> bytes:
    """A file that every agent can decode.

    Args:
        image: uint8 HWC RGB (or HW grey) array, Pillow image, path, or the bytes of a JPEG, PNG or
            WebP. Bytes and files pass through untouched after a look at their header, unless
            `max_side` asks for less.
        quality: JPEG quality 1 to 95 for what has to be encoded.
        max_side: scale down so that the longer side has at most this many pixels.

    Returns:
        JPEG bytes, or the PNG or WebP that was passed in.

    Raises:
        TaskRejected: not an image, or above a limit.
    """
    if isinstance(image, str | Path):
        image = _read_file(Path(image))
    if isinstance(image, bytes | bytearray | memoryview):
        data = bytes(image)
        if max_side is None or max(check_image(data)) <= max_side:
            check_image(data)
            return data
        return _encode(open_image(data), quality, max_side)
    return _encode(_as_picture(image), quality, max_side)


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise TaskRejected(
            f"expected an image file; got {str(path)!r}: {error.strerror or error}; check the path"
        ) from error


def _as_picture(image: object) -> Image.Image:
    from PIL import Image, ImageOps

    if isinstance(image, Image.Image):
        upright = ImageOps.exif_transpose(image) or image
        return upright if upright.mode in ("RGB", "L") else _to_rgb(upright)
    import numpy as np

    if not isinstance(image, np.ndarray):
        raise TaskRejected(
            "expected an image as uint8 HWC array, Pillow image, path or file bytes;"
            f" got {type(image).__name__}"
        )
    shape_fits = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (1, 3, 4))
    if image.dtype != np.uint8 or not shape_fits or 0 in image.shape:
        raise TaskRejected(
            "expected a uint8 array of height x width x 3 (RGB); got"
            f" {image.dtype} {'x'.join(map(str, image.shape))}; convert it with"
            " (image * 255).astype('uint8') or np.moveaxis"
        )
    if image.ndim == 3:
        image = image[:, :, 0] if image.shape[2] == 1 else image[:, :, :3]
    return Image.fromarray(np.ascontiguousarray(image))


def _encode(picture: Image.Image, quality: int, max_side: int | None) -> bytes:
    if max(picture.size) > MAX_SIDE or picture.width * picture.height > MAX_PIXELS:
        raise TaskRejected(
            f"expected an image of at most {MAX_PIXELS // 1_000_000} megapixels and {MAX_SIDE:,}"
            f" pixels a side; got {picture.width:,} x {picture.height:,}; scale it down"
        )
    if max_side is not None and max(picture.size) > max_side:
        factor = max_side / max(picture.size)
        width, height = (max(1, round(side * factor)) for side in picture.size)
        picture = picture.resize((width, height), reducing_gap=2.0)
    target = io.BytesIO()
    picture.save(target, "JPEG", quality=quality)
    return target.getvalue()
