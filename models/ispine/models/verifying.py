"""Whether the models here answer as the reference did.

The reference is the fp32 variant on the photographs of the package, written down in
`data/golden.json` by `models/tools/make_golden.py`. A device on which a variant deviates
(int8 without the right instructions, say) finds out here.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ispine.models.capability import CapabilityImpl, RuntimeConfig, discover
from ispine.models.catalogue import Catalogue
from ispine.models.photos import demo_photos
from ispine.protocol.errors import IspineError

STRONG = 0.55
LEAST_IOU = 0.5
MATCHED = 0.75
SCORE_SLACK = 0.25


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of checking one variant; `problem` is "" when it is as it should be."""

    model: str
    variant: str
    problem: str


def golden() -> Mapping[str, Mapping[str, Any]]:
    """Reference answers: model id, then photograph, then the JSON of the result."""
    text = (files("ispine.models") / "data" / "golden.json").read_text(encoding="utf-8")
    reference: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return reference


def iou(one: list[float], two: list[float]) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, two))
    return shared / (areas - shared)


def verify_all(model_dir: Path | None = None) -> Iterable[Verdict]:
    """Check every variant of every model."""
    catalogue = Catalogue.default(model_dir)
    for name, why in catalogue.broken.items():
        yield Verdict(name, "", why)
    made: dict[str, CapabilityImpl] = {}
    for model in catalogue:
        capability = model.manifest.capability
        for variant, _ in model.variants:
            try:
                for stage in variant.stages:
                    model.read(variant.name, stage)
                if capability not in made:
                    made[capability] = discover()[capability](RuntimeConfig(model_dir=model_dir))
                problem = compare(made[capability], model.id, variant.name)
            except (IspineError, ImportError) as error:
                problem = str(error)
            yield Verdict(model.id, variant.name, problem)


def compare(capability: CapabilityImpl, model: str, variant: str) -> str:
    """Why a variant's answers are not those of the reference, "" when they are."""
    reference = golden().get(model)
    if reference is None:
        return ""
    for photo in demo_photos():
        options = {"model": model, **_LOOSE.get(capability.name, {})}
        output = capability.run(photo.data, variant=variant, options=options)
        problem = _deviation(reference[photo.name], json.loads(output.data))
        if problem:
            return f"{photo.name}: {problem}"
    return ""


_LOOSE: Mapping[str, Mapping[str, object]] = {"detect": {"min_score": STRONG - SCORE_SLACK}}


def _deviation(expected: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    if "detections" in expected:
        return _missing_boxes(expected["detections"], seen["detections"])
    if "labels" in expected:
        wanted = expected["labels"][0]
        names = [label["label"] for label in seen["labels"][:3]]
        unsure = wanted["score"] < STRONG
        return "" if unsure or wanted["label"] in names else f"expected {wanted['label']}: {names}"
    wanted_hands, hands = len(expected["hands"]), len(seen["hands"])
    return "" if wanted_hands == hands else f"expected {wanted_hands} hands; saw {hands}"


def _missing_boxes(expected: list[dict[str, Any]], seen: list[dict[str, Any]]) -> str:
    strong = [item for item in expected if item["score"] >= STRONG]
    missing = [item for item in strong if not any(_is_same(item, other) for other in seen)]
    if len(missing) > (1 - MATCHED) * len(strong):
        return f"expected {missing[0]['label']} at {missing[0]['box']}; it was not found"
    return ""


def _is_same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return bool(one["label"] == two["label"] and iou(one["box"], two["box"]) >= LEAST_IOU)
