"""What the caller hands over, as bytes; refused here when it cannot be, before anything is sent.

numpy and Pillow are imported only for what has to be encoded.
"""

import asyncio

from ispine.protocol.errors import TaskRejected

IMAGE_CAPABILITIES = frozenset({"detect", "gesture", "classify"})

Buffer = bytes | bytearray | memoryview


def image_bytes(image: object) -> bytes:
    """Any image the caller may have, as JPEG, PNG or WebP bytes.

    Args:
        image: uint8 HWC RGB array, Pillow image, path, or the bytes of a file.

    Raises:
        TaskRejected: not an image, damaged at first sight, or above the limits.
    """
    from ispine.models.images import encode_jpeg

    return encode_jpeg(image)  # type: ignore[arg-type]  # it refuses what is no image


def raw_bytes(data: object) -> bytes:
    """Input of `call`: bytes as they are.

    Raises:
        TaskRejected: something else than bytes.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TaskRejected(
        f"expected bytes; got {type(data).__name__}; encode it first, text with .encode()"
    )


def payload_of(capability: str, item: object) -> bytes:
    """One frame or item: an image for the built-in capabilities, else bytes or an image.

    Raises:
        TaskRejected: neither.
    """
    if capability not in IMAGE_CAPABILITIES and isinstance(item, Buffer):
        return raw_bytes(item)
    return image_bytes(item)


async def payload_aside(capability: str, item: object) -> bytes:
    """`payload_of` that keeps reading files and encoding off the event loop."""
    if isinstance(item, Buffer):
        return payload_of(capability, item)
    return await asyncio.to_thread(payload_of, capability, item)
