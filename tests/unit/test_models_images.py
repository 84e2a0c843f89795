"""Decoding and encoding of images, good and bad."""

import io
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ispine.models.headers import image_size
from ispine.models.images import decode_image, decode_rgb, encode_jpeg, open_image, sniff
from ispine.models.photos import sample_photo
from ispine.protocol.errors import TaskRejected


def encoded(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    target = io.BytesIO()
    picture.save(target, kind, **options)
    return target.getvalue()


def quarters() -> Image.Image:
    """80 x 40: red, green above blue, white."""
    picture = Image.new("RGB", (80, 40))
    colours = ("red", "lime", "blue", "white")
    for number, colour in enumerate(colours):
        x, y = number % 2 * 40, number // 2 * 20
        picture.paste(colour, (x, y, x + 40, y + 20))
    return picture


def png_header(width: int, height: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    )


def jpeg_header(width: int, height: int) -> bytes:
    frame = struct.pack(">BHHB", 8, height, width, 3) + b"\x01\x22\x00\x02\x11\x01\x03\x11\x01"
    return b"\xff\xd8\xff\xc0" + struct.pack(">H", len(frame) + 2) + frame + b"\xff\xda"


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_pixels_come_out_as_they_went_in(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    rgb = decode_rgb(encoded(quarters(), kind, **options))
    assert rgb.shape == (40, 80, 3) and rgb.dtype == np.uint8
    assert np.abs(rgb.astype(int) - np.asarray(quarters()).astype(int)).max() <= (
        0 if kind != "JPEG" else 255
    )
    assert np.abs(rgb[5, 5].astype(int) - (255, 0, 0)).max() < 12
    assert image_size(encoded(quarters(), kind, **options)) == (80, 40)


@pytest.mark.parametrize(
    "options", [{"quality": 80}, {"lossless": True}, {"exif": b"Exif\0\0MM\0*"}]
)
def test_every_form_of_webp_has_a_size(options: dict[str, object]) -> None:
    assert image_size(encoded(quarters(), "WEBP", **options)) == (80, 40)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK", "I;16"])
def test_other_colour_modes_become_rgb(mode: str) -> None:
    picture = quarters().convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture).astype(np.uint16) * 257)
    rgb = decode_rgb(encoded(picture, "JPEG" if mode == "CMYK" else "PNG"))
    assert rgb.shape == (40, 80, 3)
    assert rgb[30, 60].min() > 245, "white stays white"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(orientation: int) -> None:
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = quarters().transpose(undo[orientation]) if orientation > 1 else quarters()
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(stored, "JPEG", exif=exif, quality=95)
    image = decode_image(data)
    assert (image.width, image.height) == (80, 40)
    assert image.rgb.shape == (40, 80, 3)
    for (y, x), colour in {
        (5, 10): (255, 0, 0),
        (5, 70): (0, 255, 0),
        (35, 10): (0, 0, 255),
    }.items():
        assert np.abs(image.rgb[y, x].astype(int) - colour).max() < 20
    assert encode_jpeg(data) == data, "bytes pass through untouched"
    turned = Image.open(io.BytesIO(data))
    assert decode_rgb(encode_jpeg(turned)).shape == (40, 80, 3), "a Pillow image is turned"


def test_a_damaged_exif_block_does_not_matter() -> None:
    for block in (b"MM\0*\0\0\xff\xff\x00\x09", b"MM\0*", b"II*\0\x08\0\0\0\xff\xff", b"?"):
        data = encoded(quarters(), "JPEG", exif=b"Exif\0\0" + block)
        assert decode_rgb(data).shape == (40, 80, 3)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_orientation_counts_in_every_kind_of_file(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = decode_image(encoded(quarters(), kind, exif=exif))
    assert (image.width, image.height) == (40, 80)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_large_pictures_are_reduced_and_scale_back(kind: str) -> None:
    picture = quarters().resize((2000, 1000), Image.Resampling.NEAREST)
    image = decode_image(encoded(picture, kind), at_least=224)
    assert min(image.rgb.shape[:2]) >= 224
    assert max(image.rgb.shape[:2]) < 1000
    assert (image.width, image.height) == (2000, 1000)
    across, down = image.scale
    assert image.rgb.shape[1] * across == pytest.approx(2000)
    assert image.rgb.shape[0] * down == pytest.approx(1000)


def long_photo() -> bytes:
    return sample_photo() + b"\0" * (60 * 1024 * 1024)


BAD: dict[str, Callable[[], bytes]] = {
    "zero bytes": lambda: b"",
    "text": lambda: b"hello, this is not an image at all",
    "a signature only": lambda: b"\x89PNG\r\n\x1a\n",
    "half a photo": lambda: sample_photo()[: len(sample_photo()) // 2],
    "a photo without its end": lambda: sample_photo()[:-2000],
    "half a png": lambda: encoded(quarters().resize((800, 400)))[:1500],
    "60 MB": long_photo,
    "30,000 square": lambda: png_header(30_000, 30_000),
    "30,000 square jpeg": lambda: jpeg_header(30_000, 30_000),
    "41 megapixels": lambda: png_header(16_000, 2_600),
    "no pixels": lambda: png_header(0, 40),
    "a gif": lambda: encoded(quarters(), "GIF"),
    "a header without data": lambda: png_header(64, 64),
    "a jpeg header": lambda: jpeg_header(64, 64),
    "a wav": lambda: b"RIFF\x24\0\0\0WAVEfmt " + b"\0" * 40,
}


@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_refused_in_time(name: str) -> None:
    data = BAD[name]()
    started = time.monotonic()
    for refuse in (decode_rgb, open_image, lambda d: decode_image(d, at_least=224)):
        with pytest.raises(TaskRejected, match=r"expected .*; got .*;"):
            refuse(data)
    assert time.monotonic() - started < 3.0


def test_sniffing_goes_by_the_whole_signature() -> None:
    assert sniff(encoded(quarters(), "JPEG")) == "image/jpeg"
    assert sniff(encoded(quarters(), "PNG")) == "image/png"
    assert sniff(encoded(quarters(), "WEBP")) == "image/webp"
    assert sniff(b"RIFF\x24\0\0\0WAVEfmt ") == "audio/wav"
    assert sniff(b"\x89PNG") is None


def test_everything_an_image_can_be_is_encoded(tmp_path: Path) -> None:
    array = np.asarray(quarters())
    for image in (array, array[..., 0], array[..., :1], quarters(), quarters().convert("RGBA")):
        assert image_size(encode_jpeg(image)) == (80, 40)
    assert image_size(encode_jpeg(array[::-1, ::-1])) == (80, 40), "views need no copy"
    photo = encoded(quarters(), "PNG")
    path = tmp_path / "photo.png"
    path.write_bytes(photo)
    for given in (photo, bytearray(photo), memoryview(photo), path, str(path)):
        assert encode_jpeg(given) == photo  # type: ignore[arg-type]


def test_max_side_scales_down_only() -> None:
    assert image_size(encode_jpeg(quarters(), max_side=40)) == (40, 20)
    assert image_size(encode_jpeg(quarters(), max_side=400)) == (80, 40)
    assert image_size(encode_jpeg(encoded(quarters()), max_side=40)) == (40, 20)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((3, 40, 80), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4,), np.uint8),
        [[1, 2], [3, 4]],
        b"not an image",
        Path("no-such-file.jpg"),
        None,
    ],
)
def test_what_is_no_image_is_refused(image: object) -> None:
    with pytest.raises(TaskRejected, match="expected"):
        encode_jpeg(image)  # type: ignore[arg-type]
