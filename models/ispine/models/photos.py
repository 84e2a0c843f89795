"""Photographs that ship with iSpine, each under a licence that allows it (see `models/NOTICE`)."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Photo:
    """One photograph.

    Attributes:
        name: without an ending.
        data: JPEG.
        licence: of the photograph.
        source: who made it, and where it comes from.
        contains: labels of objects that are surely in it, by `detect`.
    """

    name: str
    data: bytes
    licence: str
    source: str
    contains: tuple[str, ...] = ()


def demo_photos() -> list[Photo]:
    """All of them."""
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


def sample_photo() -> bytes:
    """One of them, for warming up and timing."""
    folder = files("ispine.models") / "data" / "photos"
    return (folder / "coffee.jpg").read_bytes()
