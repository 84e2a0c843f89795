"""A capability of your own is a function from bytes to bytes.

    PYTHONPATH=examples ispine agent --capability colour=custom_capability:colour

Then any wearable can ask for it:

    spine.call("colour", Path("photo.jpg").read_bytes()).data    # b"mostly green"

Packages register theirs with an entry point in the group `ispine.capabilities` instead.
"""

from ispine.models.images import decode_image

NAMES = ("red", "green", "blue")


def colour(data: bytes) -> bytes:
    """Which of red, green and blue is strongest in a picture.

    What is no picture makes `decode_image` raise `TaskRejected`, which the wearable then gets;
    any other exception reaches it as `ExecutionFailed`.
    """
    rgb = decode_image(data, at_least=32).rgb
    means = rgb.reshape(-1, 3).mean(axis=0)
    if means.max() - means.min() < 8:
        return b"grey"
    return f"mostly {NAMES[int(means.argmax())]}".encode()
