"""The graphs around the hand nets, on nets whose answers are known."""

import math

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ispine.models.gesture import crop_of
from ispine.models.hand_layouts import palm_anchors, wrap_hand, wrap_palm
from ispine.models.runtime import Session


def model(
    nodes: list[onnx.NodeProto], size: int, outputs: list[str], **weights: NDArray[np.generic]
) -> onnx.ModelProto:
    return helper.make_model(
        helper.make_graph(
            nodes,
            "known",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, size, size, 3])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def top_row_net() -> onnx.ModelProto:
    """A hand net whose landmarks are the colours of the crop's first 21 pixels."""
    nodes = [
        helper.make_node("Reshape", ["input", "flat"], ["row"]),
        helper.make_node("Slice", ["row", "zero", "end", "axis"], ["part"]),
        helper.make_node("Mul", ["part", "scale"], ["points"]),
        helper.make_node("Identity", ["half"], ["is_hand"]),
        helper.make_node("Identity", ["half"], ["side"]),
    ]
    return model(
        nodes,
        224,
        ["points", "is_hand", "side"],
        flat=np.array([1, -1]),
        zero=np.array([0]),
        end=np.array([63]),
        axis=np.array([1]),
        scale=np.array(255, np.float32),
        half=np.full((1, 1), 0.5, np.float32),
    )


def colours_of_top_row(image: NDArray[np.uint8], crop: NDArray[np.float32]) -> NDArray[np.float32]:
    session = Session(
        wrap_hand(top_row_net(), "points", "is_hand", "side").SerializeToString(), "hand"
    )
    answer = session.run({"image": image, "crop": crop})
    assert answer["presence"].shape == answer["handedness"].shape == (1,)
    # The graph moves landmarks from the crop to the picture; undo it to see what the net said.
    linear, shift = crop[:, :2], crop[:, 2]
    said = answer["landmarks"].copy()
    said[:, :2] = (answer["landmarks"][:, :2] - shift) @ np.linalg.inv(linear).T
    said[:, 2] /= math.hypot(linear[0, 0], linear[1, 0])
    return np.asarray(said, np.float32)


def expected(image: NDArray[np.uint8], crop: NDArray[np.float32]) -> NDArray[np.float32]:
    """Bilinear samples in plain numpy, edges repeated."""
    height, width = image.shape[:2]
    rows = []
    for column in range(21):
        x, y = crop[:, :2] @ np.array([column, 0], np.float32) + crop[:, 2]
        x, y = min(max(x, 0), width - 1), min(max(y, 0), height - 1)
        left, top = int(x), int(y)
        right, bottom = min(left + 1, width - 1), min(top + 1, height - 1)
        upper = image[top, left] * (1 - x + left) + image[top, right] * (x - left)
        lower = image[bottom, left] * (1 - x + left) + image[bottom, right] * (x - left)
        rows.append(upper * (1 - y + top) + lower * (y - top))
    return np.array(rows, np.float32)


@pytest.mark.parametrize(
    "crop",
    [
        [[1, 0, 5], [0, 1, 7]],
        [[0, -1.5, 30], [1.5, 0, 2]],
        [[0.7, 0.3, 3.25], [-0.3, 0.7, 20.5]],
        [[2, 0, -9], [0, 2, -3]],
        [[3, 1, 38], [-1, 3, 26]],
    ],
)
def test_the_crop_samples_between_pixels_and_repeats_edges(crop: list[list[float]]) -> None:
    image = np.random.default_rng(3).integers(0, 256, (30, 44, 3), np.uint8)
    affine = np.array(crop, np.float32)
    assert np.abs(colours_of_top_row(image, affine) - expected(image, affine)).max() < 0.6


def test_a_crop_turns_the_hand_upright() -> None:
    """Wherever the fingers point, the middle of the square's top edge lies that way."""
    for degrees in range(0, 360, 15):
        angle = math.radians(degrees)
        toward = np.array([math.cos(angle), math.sin(angle)])
        points = [(100.0, 100.0), (0.0, 0.0), tuple(np.array([100.0, 100.0]) + 40 * toward)]
        crop = crop_of((80, 80, 120, 120), points).astype(float)
        centre = crop @ np.array([112, 112, 1])
        top = crop @ np.array([112, 0, 1])
        assert (top - centre) / np.linalg.norm(top - centre) == pytest.approx(toward, abs=1e-4)
        assert np.linalg.norm(top - centre) == pytest.approx(2.6 * 40 / 2, rel=1e-4)
        assert centre == pytest.approx(np.array([100, 100]) + 20 * toward, abs=1e-3)


@pytest.mark.parametrize(("width", "height"), [(384, 192), (192, 384), (96, 96), (500, 300)])
def test_palms_come_back_in_pixels_of_the_picture(width: int, height: int) -> None:
    codes, logits = np.zeros((1, 2016, 18), np.float32), np.full((1, 2016, 1), -9, np.float32)
    number = 600
    logits[0, number] = 2
    codes[0, number, :4] = (4, -2, 20, 10)
    codes[0, number, 4:6] = (1, 3)
    nodes = [helper.make_node("Identity", [f"{n}/c"], [n]) for n in ("codes", "logits")]
    net = model(nodes, 192, ["codes", "logits"], **{"codes/c": codes, "logits/c": logits})
    session = Session(wrap_palm(net, "codes", "logits").SerializeToString(), "palm")
    found = session.run({"image": np.zeros((height, width, 3), np.uint8)})
    scale = max(width, height) / 192
    border = np.array([(192 - width / scale) // 2, (192 - height / scale) // 2])
    centre = (palm_anchors()[number] + (4, -2) - border) * scale
    half = np.array([10, 5]) * scale
    assert found["scores"] == pytest.approx([0.8808], abs=1e-3)
    assert found["boxes"][0] == pytest.approx([*(centre - half), *(centre + half)], abs=1.5)
    first = (palm_anchors()[number] + (1, 3) - border) * scale
    assert found["points"][0, 0] == pytest.approx(first, abs=1.5)


def test_anchors_cover_the_square() -> None:
    anchors = palm_anchors()
    assert anchors.shape == (2016, 2)
    assert anchors.min() == 4 and anchors.max() == 188
