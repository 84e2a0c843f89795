"""A model is a folder: `model.toml`, its labels, and one ONNX file per variant and stage."""

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ispine.protocol.errors import ModelUnavailable

FILE = "model.toml"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stage(_Strict):
    """One ONNX file of a variant."""

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=1)]


class Variant(_Strict):
    """One precision of a model.

    Attributes:
        name: such as `int8`.
        quality: 0 to 1, agreement with the reference.
        stages: files by stage, such as `detect`, or `palm` and `hand`.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    quality: Annotated[float, Field(ge=0, le=1)]
    stages: dict[str, Stage]


class Manifest(_Strict):
    """What `model.toml` says.

    Attributes:
        id: of the model.
        capability: `detect`, `gesture` or `classify`.
        label_set: variants and models with the same one can stand in for each other.
        licence: of the weights.
        source: where the weights come from.
        input: of the graph, for people.
        output: likewise.
        decode_side: pixels that the shorter side of a decoded picture must keep, 0 for all.
        is_default: the capability's own choice.
    """

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    capability: str
    label_set: str
    licence: str
    source: str
    input: str = ""
    output: str = ""
    decode_side: Annotated[int, Field(ge=0)] = 0
    is_default: bool = False
    variants: tuple[Variant, ...]


def read_manifest(folder: Path) -> Manifest:
    """Read a model's folder.

    Raises:
        ModelUnavailable: `model.toml` is missing or wrong.
    """
    path = folder / FILE
    try:
        return Manifest.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ModelUnavailable(f"expected {path}; {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelUnavailable(f"expected {path} to be TOML; {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ModelUnavailable(f"expected a model in {path}; {where}: {first['msg']}") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `model.toml`."""
    lines = [
        f"{name} = {_toml(value)}"
        for name, value in manifest.model_dump(exclude={"variants"}).items()
    ]
    for variant in manifest.variants:
        lines += ["", "[[variants]]", f"name = {_toml(variant.name)}"]
        lines.append(f"quality = {variant.quality}")
        for stage, file in variant.stages.items():
            lines += [f"[variants.stages.{stage}]", f"file = {_toml(file.file)}"]
            lines += [f"sha256 = {_toml(file.sha256)}", f"size_bytes = {file.size_bytes}"]
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{text}"'
