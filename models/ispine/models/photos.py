"""Pictures that ship with iSpine, each under a licence that allows it (see `models/NOTICE`)."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Photo:
    """One picture.

    Attributes:
        name: without an ending.
        data: JPEG.
        licence: of the picture.
        source: who made it, and where it comes from.
        contains: labels of objects that are surely in it, by `detect`.
    """

    name: str
    data: bytes
    licence: str
    source: str
    contains: tuple[str, ...] = ()


def demo_photos() -> list[Photo]:
    """The photographs."""
    folder = files("ispine.models") / "data" / "photos"
    listed = tomllib.loads((folder / "photos.toml").read_text(encoding="utf-8"))
    return [
        Photo(
            name,
            (folder / f"{name}.jpg").read_bytes(),
            facts["licence"],
            facts["source"],
            tuple(facts.get("contains", ())),
        )
        for name, facts in listed.items()
    ]


def drawn_hand() -> Photo:
    """An open hand, drawn by `models/tools/draw_hand.py`; the gesture models know it as one."""
    data = (files("ispine.models") / "data" / "pictures" / "hand.jpg").read_bytes()
    return Photo("hand", data, "Apache-2.0", "drawn by models/tools/draw_hand.py")


def reference_pictures() -> list[Photo]:
    """What models are checked with: the photographs and the drawn hand."""
    return [*demo_photos(), drawn_hand()]


def sample_photo() -> bytes:
    """One photograph, for warming up and timing."""
    return (files("ispine.models") / "data" / "photos" / "coffee.jpg").read_bytes()
