"""`ispine models verify`: every file's digest, and every model's answers against the reference."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ispine.models.capability import CapabilityImpl, RuntimeConfig, discover
from ispine.models.catalogue import Catalogue, Model
from ispine.models.golden import LOOSE, deviation
from ispine.protocol.errors import IspineError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of checking one variant; `problem` is "" when it is as it should be."""

    model: str
    variant: str
    problem: str


def verify_all(model_dir: Path | None = None) -> Iterable[Verdict]:
    """Check every variant of every model, one after the other."""
    catalogue = Catalogue.default(model_dir)
    for name, why in catalogue.broken.items():
        yield Verdict(name, "", why)
    made: dict[str, CapabilityImpl] = {}
    for model in catalogue:
        for variant, _ in model.variants:
            yield Verdict(model.id, variant.name, _problem(model, variant.name, made, model_dir))


def _problem(
    model: Model, variant: str, made: dict[str, CapabilityImpl], model_dir: Path | None
) -> str:
    name = model.manifest.capability
    try:
        for stage in model.variant(variant)[0].stages:
            model.read(variant, stage)
        if name not in made:
            factory = discover().get(name)
            if factory is None:
                return f"expected a capability of this device; got {name!r}"
            made[name] = factory(RuntimeConfig(model_dir=model_dir))
        return compare(made[name], model.id, variant)
    except IspineError as error:
        return str(error)


def compare(capability: CapabilityImpl, model: str, variant: str) -> str:
    """Why a variant's answers are not those of the reference, "" when they are."""
    options: Mapping[str, object] = {"model": model}
    if capability.name == "detect":
        options = {"model": model, "min_score": LOOSE}
    return deviation(
        capability.name,
        model,
        lambda data: capability.run(data, variant=variant, options=options).data,
    )
