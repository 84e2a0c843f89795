"""The models on this device: those of the package, and those the owner added."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ispine.models.manifest import FILE, Manifest, Variant, read_manifest
from ispine.models.runtime import check_digest
from ispine.protocol.errors import ModelUnavailable


def shipped_dir() -> Path:
    """Where the package keeps its models."""
    return Path(str(files("ispine.models") / "data" / "models"))


def user_dir() -> Path:
    """Where the owner's own models are kept: `ISPINE_MODELS_DIR`, or the user's data folder."""
    named = os.environ.get("ISPINE_MODELS_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "ispine" / "models"


@dataclass(frozen=True, slots=True)
class Model:
    """One model: manifests of the same id in several folders are one ladder of variants.

    Attributes:
        manifest: of the first folder.
        variants: all, best quality first, each with its folder.
        folder: where the labels are.
    """

    manifest: Manifest
    variants: tuple[tuple[Variant, Path], ...]
    folder: Path

    @property
    def id(self) -> str:
        """Of the model."""
        return self.manifest.id

    def goes_with(self, manifest: Manifest) -> bool:
        """Whether variants of that manifest can stand in for those of this model."""
        mine = (self.manifest.capability, self.manifest.label_set)
        return mine == (manifest.capability, manifest.label_set)

    def labels(self) -> tuple[str, ...]:
        """Names by class number; empty for a model without classes.

        Raises:
            ModelUnavailable: the file is missing.
        """
        path = self.folder / "labels.txt"
        try:
            return tuple(path.read_text(encoding="utf-8").splitlines())
        except OSError as error:
            raise ModelUnavailable(
                f"expected the labels of {self.id} in {path.name}; {error.strerror}"
            ) from error

    def variant(self, name: str) -> tuple[Variant, Path]:
        """A variant by name.

        Raises:
            ModelUnavailable: there is none of that name.
        """
        for variant, folder in self.variants:
            if variant.name == name:
                return variant, folder
        known = ", ".join(variant.name for variant, _ in self.variants)
        raise ModelUnavailable(f"expected a variant of {self.id} out of {known}; got {name!r}")

    def read(self, variant: str, stage: str) -> bytes:
        """The ONNX file of a stage, its digest checked.

        Raises:
            ModelUnavailable: it is missing or damaged.
        """
        found, folder = self.variant(variant)
        if stage not in found.stages:
            raise ModelUnavailable(f"expected the stage {stage!r} in {self.id} {variant}")
        return check_digest(folder / found.stages[stage].file, found.stages[stage].sha256)


class Catalogue:
    """All models in some folders.

    Args:
        folders: each holds one folder per model; earlier ones win.
    """

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._models: dict[str, Model] = {}
        self.broken: dict[str, str] = {}
        for folder in folders:
            self._read(folder)

    @classmethod
    def default(cls, model_dir: Path | None = None) -> "Catalogue":
        """The package's models and those in `model_dir`, else in the user's folder."""
        return cls((shipped_dir(), model_dir or user_dir()))

    def _read(self, folder: Path) -> None:
        for path in sorted(folder.glob(f"[!.]*/{FILE}")):
            try:
                self._add(read_manifest(path.parent), path.parent)
            except ModelUnavailable as error:
                self.broken[path.parent.name] = str(error)

    def _add(self, manifest: Manifest, folder: Path) -> None:
        known = self._models.get(manifest.id)
        if known is not None and not known.goes_with(manifest):
            raise ModelUnavailable(
                f"expected {manifest.id} in {folder} to have the capability and label set of the"
                f" model of that name; it has {manifest.capability} and {manifest.label_set};"
                " give it another id"
            )
        found = tuple((variant, folder) for variant in manifest.variants)
        if known is not None:
            names = {variant.name for variant, _ in known.variants}
            found = known.variants + tuple(v for v in found if v[0].name not in names)
        ladder = tuple(sorted(found, key=lambda entry: -entry[0].quality))
        first = known or Model(manifest, ladder, folder)
        self._models[manifest.id] = Model(first.manifest, ladder, first.folder)

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def get(self, model_id: str) -> Model:
        """A model by id.

        Raises:
            ModelUnavailable: there is none.
        """
        if model_id not in self._models:
            known = ", ".join(sorted(self._models)) or "none"
            raise ModelUnavailable(f"expected a model out of {known}; got {model_id!r}")
        return self._models[model_id]

    def of(self, capability: str) -> list[Model]:
        """The models of a capability, its default first.

        Raises:
            ModelUnavailable: there is none.
        """
        found = [model for model in self if model.manifest.capability == capability]
        if not found:
            raise ModelUnavailable(
                f"expected a model for {capability}; none is installed; see 'ispine models add'"
            )
        return sorted(found, key=lambda model: not model.manifest.is_default)
