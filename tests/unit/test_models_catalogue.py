"""Model folders: reading, ladders, digests, and adding nets of every known layout."""

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ispine.models.adding import add_model
from ispine.models.capability import RuntimeConfig, discover
from ispine.models.catalogue import Catalogue, shipped_dir
from ispine.models.detect import DetectCapability
from ispine.models.images import encode_jpeg
from ispine.models.manifest import read_manifest, write_manifest
from ispine.models.results import Detection, parse_detections, parse_labels
from ispine.protocol.errors import ConfigError, ModelUnavailable

Outputs = dict[str, NDArray[np.float32]]


def net(size: int, outputs: Outputs, *, is_nhwc: bool = False, opset: int = 17) -> onnx.ModelProto:
    """A net that answers the same whatever it sees."""
    shape = [1, size, size, 3] if is_nhwc else [1, 3, size, size]
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", [f"{name}/c"], [name]) for name in outputs],
            "constant",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape)
                for name, value in outputs.items()
            ],
            [numpy_helper.from_array(value, f"{name}/c") for name, value in outputs.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


def zeros(*shape: int) -> NDArray[np.float32]:
    return np.zeros(shape, np.float32)


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.txt"
    path.write_text("cup\nlamp\n", encoding="utf-8")
    return path


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def detect_with(
    model: onnx.ModelProto, labels: Path, folder: Path, width: int = 128, height: int = 64
) -> list[Detection]:
    """Add a net, then detect in a picture of that size."""
    models = folder / "models"
    add_model(saved(model, folder), "detect", labels, "mine", model_dir=models)
    capability = discover()["detect"](RuntimeConfig(model_dir=models))
    picture = encode_jpeg(np.full((height, width, 3), 90, np.uint8))
    return parse_detections(capability.run(picture, options={"model": "mine"}).data)


def check_one(found: list[Detection], label: str, score: float, box: tuple[float, ...]) -> None:
    assert [item.label for item in found] == [label]
    assert found[0].score == pytest.approx(score, abs=0.002)
    assert found[0].box_xyxy == pytest.approx(box, abs=0.1)


# At 64 pixels: 8 x 8, 4 x 4 and 2 x 2 cells. Cell (x 3, y 2) of the finest level is number 19; its
# middle is (28, 20). A picture of 128 x 64 is stretched, so x counts twice.
CELL = 19


def sides(cells: int, bins: int, *steps: int) -> NDArray[np.float32]:
    """Logits that put all weight of each side on one bin, in the cell of the test."""
    logits = zeros(1, cells, 4 * bins)
    for side, step in enumerate(steps):
        logits[0, CELL, side * bins + step] = 50
    return logits


def test_nanodet_with_an_output_per_level(labels: Path, tmp_path: Path) -> None:
    scores = zeros(1, 64, 2)
    scores[0, CELL, 1] = 0.9
    outputs = {
        "a": zeros(1, 4, 2),
        "b": zeros(1, 4, 44),
        "c": scores,
        "d": sides(64, 11, 1, 2, 3, 4),
        "e": zeros(1, 16, 44),
        "f": zeros(1, 16, 2),
    }
    found = detect_with(net(64, outputs), labels, tmp_path)
    check_one(found, "lamp", 0.9, (2 * (28 - 8), 20 - 16, 2 * (28 + 24), 20 + 32))


def test_nanodet_with_one_output(labels: Path, tmp_path: Path) -> None:
    rows = np.concatenate([zeros(1, 84, 2), sides(84, 8, 1, 1, 1, 1)], axis=2)
    rows[0, CELL, 0] = 0.8
    found = detect_with(net(64, {"output": rows}), labels, tmp_path)
    check_one(found, "cup", 0.8, (40, 12, 72, 28))


def test_nanodet_plus_measures_from_the_corner(labels: Path, tmp_path: Path) -> None:
    rows = np.concatenate([zeros(1, 85, 2), sides(85, 8, 1, 1, 1, 1)], axis=2)
    rows[0, CELL, 0] = 0.8
    found = detect_with(net(64, {"output": rows}), labels, tmp_path)
    check_one(found, "cup", 0.8, (2 * 16, 8, 2 * 32, 24))


def test_yolox_keeps_the_shape_of_the_picture(labels: Path, tmp_path: Path) -> None:
    rows = zeros(1, 84, 7)
    rows[0, CELL] = (0.5, 0.5, math.log(2), math.log(1), 0.9, 0.1, 0.8)
    found = detect_with(net(64, {"output": rows}), labels, tmp_path)
    # 128 x 64 fits as 64 x 32: every pixel there is two of the picture.
    check_one(found, "lamp", 0.72, (2 * (28 - 8), 2 * (20 - 4), 2 * (28 + 8), 2 * (20 + 4)))


def test_yolox_that_is_decoded_inside(labels: Path, tmp_path: Path) -> None:
    rows = zeros(1, 84, 7)
    rows[0, CELL] = (28, 20, 16, 8, 0.9, 0.1, 0.8)
    model = net(64, {"output": rows})
    # An exponential somewhere in the net says so; here it only adds exp(-1000) = 0.
    model.graph.initializer.append(numpy_helper.from_array(np.array(-1000, np.float32), "low"))
    model.graph.node[0].output[0] = "raw"
    model.graph.node.append(helper.make_node("Exp", ["low"], ["nothing"]))
    model.graph.node.append(helper.make_node("Add", ["raw", "nothing"], ["output"]))
    found = detect_with(model, labels, tmp_path)
    check_one(found, "lamp", 0.72, (40, 32, 72, 48))


@pytest.mark.parametrize("is_logit", [True, False])
def test_ssd(labels: Path, tmp_path: Path, is_logit: bool) -> None:
    scores, codes = np.full((1, 1917, 3), -9, np.float32), zeros(1, 1917, 4)
    # The last anchor of the one-cell level: a square around the middle, its scale 0.975.
    scores[0, 1916, 2] = 2
    codes[0, 1916] = (1, 2, 5 * math.log(0.5), 5 * math.log(0.25))
    model = net(300, {"scores": scores, "codes": codes}, is_nhwc=True)
    if not is_logit:
        model.graph.node[0].output[0] = "logits"
        model.graph.node.append(helper.make_node("Sigmoid", ["logits"], ["scores"]))
    found = detect_with(model, labels, tmp_path, width=600, height=300)
    side = math.sqrt(0.95)
    x, y, half_width, half_height = 0.5 + 0.2 * side, 0.5 + 0.1 * side, side / 8, side / 4
    box = (x - half_width, y - half_height, x + half_width, y + half_height)
    check_one(found, "lamp", 0.8808, tuple(e * n for e, n in zip(box, (600, 300) * 2, strict=True)))


def brightest_channel(*, is_nhwc: bool = False, has_softmax: bool = False) -> onnx.ModelProto:
    """A classifier whose classes are red, green and blue: 30 times the mean of each plane."""
    shape = [1, 32, 32, 3] if is_nhwc else [1, 3, 32, 32]
    axes = [1, 2] if is_nhwc else [2, 3]
    nodes = [
        helper.make_node("ReduceMean", ["input"], ["mean"], axes=axes, keepdims=0),
        helper.make_node("Mul", ["mean", "factor"], ["large"]),
        helper.make_node("Softmax" if has_softmax else "Identity", ["large"], ["out"]),
    ]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "brightest",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 3])],
            [numpy_helper.from_array(np.array(30, np.float32), "factor")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


@pytest.mark.parametrize("is_nhwc", [True, False])
@pytest.mark.parametrize("has_softmax", [True, False])
def test_a_classifier_sees_the_middle_in_rgb(
    tmp_path: Path, is_nhwc: bool, has_softmax: bool
) -> None:
    names = tmp_path / "colours.txt"
    names.write_text("red\ngreen\nblue\n")
    models = tmp_path / "models"
    file = saved(brightest_channel(is_nhwc=is_nhwc, has_softmax=has_softmax), tmp_path)
    add_model(file, "classify", names, "colours", model_dir=models)
    capability = discover()["classify"](RuntimeConfig(model_dir=models))
    picture = np.zeros((60, 180, 3), np.uint8)
    picture[:, :60, 0] = picture[:, 120:, 1] = 250
    picture[:, 60:120, 2] = 250
    found = parse_labels(capability.run(encode_jpeg(picture), options={"model": "colours"}).data)
    assert found[0].label == "blue"
    assert found[0].score > 0.99
    assert len(found) == 3


def test_nothing_found_is_an_empty_answer(labels: Path, tmp_path: Path) -> None:
    assert detect_with(net(64, {"output": zeros(1, 84, 7)}), labels, tmp_path) == []


def test_an_old_opset_is_raised(labels: Path, tmp_path: Path) -> None:
    model = net(64, {"output": zeros(1, 84, 7)}, opset=11)
    assert detect_with(model, labels, tmp_path) == []


def test_a_finished_graph_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = shipped_dir() / "nanodet-g"
    file = folder / "detect-int8.onnx"
    added = add_model(file, "detect", folder / "labels.txt", "again", model_dir=tmp_path / "m")
    assert added.variants[0].stages["detect"].size_bytes == file.stat().st_size


def with_external_data(model: onnx.ModelProto) -> onnx.ModelProto:
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    return model


def with_custom_operator(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.node.append(helper.make_node("Evil", ["output"], ["x"], domain="com.example"))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    return model


def yolox(columns: int = 7) -> onnx.ModelProto:
    return net(64, {"output": zeros(1, 84, columns)})


def no_net() -> onnx.ModelProto:
    return onnx.ModelProto()


REFUSED: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "text": lambda: b"this is no model",
    "random": lambda: bytes(range(256)) * 4000,
    "like protobuf": lambda: b"\x08" * 1_000_000,
    "half a model": lambda: yolox().SerializeToString()[:-100],
    "an empty model": lambda: no_net().SerializeToString() + b"\x08\x08",
    "a photograph": lambda: encode_jpeg(np.zeros((32, 32, 3), np.uint8)),
    "external data": lambda: with_external_data(yolox()).SerializeToString(),
    "a custom operator": lambda: with_custom_operator(yolox()).SerializeToString(),
    "other classes": lambda: yolox(9).SerializeToString(),
    "a wrong input": lambda: net(8, {"output": zeros(1, 84, 7)}).SerializeToString(),
    "nested groups": lambda: b"\x0b" * 10_000,
    "deep messages": lambda: nested(2_000),
}


def nested(depth: int) -> bytes:
    """A graph in an attribute of a node of a graph in … ."""
    data = b""
    for _ in range(depth):
        for tag in (0x32, 0x2A, 0x0A):
            data = bytes([tag]) + varint(len(data)) + data
    return b"\x3a" + varint(len(data)) + data


def varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_model_is_refused_in_time(name: str, labels: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.onnx"
    file.write_bytes(REFUSED[name]())
    started = time.monotonic()
    with pytest.raises(ModelUnavailable, match="expected"):
        add_model(file, "detect", labels, "bad", model_dir=tmp_path / "models")
    assert time.monotonic() - started < 2.0
    assert not (tmp_path / "models").exists() or not list((tmp_path / "models").iterdir())


def test_a_file_above_the_limit_is_not_read(labels: Path, tmp_path: Path) -> None:
    file = tmp_path / "huge.onnx"
    with file.open("wb") as target:
        target.truncate(600 * 1024 * 1024)
    with pytest.raises(ModelUnavailable, match="536,870,912"):
        add_model(file, "detect", labels, "huge", model_dir=tmp_path / "models")


def test_wrong_arguments_are_named(labels: Path, tmp_path: Path) -> None:
    file, models = saved(yolox(), tmp_path), tmp_path / "models"
    with pytest.raises(ConfigError, match="--task"):
        add_model(file, "segment", labels, "x", model_dir=models)
    with pytest.raises(ConfigError, match="--name"):
        add_model(file, "detect", labels, "../x", model_dir=models)
    with pytest.raises(ConfigError, match="already"):
        add_model(file, "detect", labels, "nanodet-g", model_dir=models)
    with pytest.raises(ConfigError, match="labels"):
        add_model(file, "detect", tmp_path / "none.txt", "x", model_dir=models)
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ConfigError, match="got 0"):
        add_model(file, "detect", tmp_path / "empty.txt", "x", model_dir=models)
    with pytest.raises(ModelUnavailable, match="check the path"):
        add_model(tmp_path / "none.onnx", "detect", labels, "x", model_dir=models)
    (tmp_path / "a file").write_text("")
    with pytest.raises(ConfigError, match="expected to write"):
        add_model(file, "detect", labels, "x", model_dir=tmp_path / "a file" / "models")


def test_manifests_round_trip(tmp_path: Path) -> None:
    for folder in shipped_dir().iterdir():
        manifest = read_manifest(folder)
        odd = manifest.model_copy(update={"source": 'a "quoted" \\ path\nand more'})
        write_manifest(tmp_path, odd)
        again = read_manifest(tmp_path)
        assert again.variants == manifest.variants
        assert again.source == 'a "quoted" \\ path and more'


@pytest.mark.parametrize(
    "text", ["", "id = 3", "= =", 'id = "a"\nunknown = 1', "\x00", 'id = "../a"']
)
def test_a_broken_manifest_is_left_out_and_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "model.toml").write_text(text)
    catalogue = Catalogue((shipped_dir(), tmp_path))
    assert {model.id for model in catalogue} >= {"nanodet-g", "efficientnet-lite0"}
    assert "expected" in catalogue.broken["bad"]


def copied(model: str, folder: Path) -> Path:
    target = folder / model
    shutil.copytree(shipped_dir() / model, target)
    return target


def test_a_folder_of_the_same_model_extends_the_ladder(tmp_path: Path) -> None:
    folder = copied("nanodet-g", tmp_path)
    manifest = read_manifest(folder)
    better = manifest.variants[0].model_copy(update={"name": "better", "quality": 0.99})
    write_manifest(folder, manifest.model_copy(update={"variants": (better,)}))
    model = Catalogue((shipped_dir(), tmp_path)).get("nanodet-g")
    assert [variant.name for variant, _ in model.variants] == ["better", "int8"]
    capability = DetectCapability(RuntimeConfig(model_dir=tmp_path))
    assert [(v.name, v.label_set) for v in capability.variants] == [
        ("better", "coco-80"),
        ("int8", "coco-80"),
    ]


def test_another_label_set_does_not_join_a_ladder(tmp_path: Path) -> None:
    folder = copied("nanodet-g", tmp_path)
    write_manifest(folder, read_manifest(folder).model_copy(update={"label_set": "mine"}))
    catalogue = Catalogue((shipped_dir(), tmp_path))
    assert "another id" in catalogue.broken["nanodet-g"]
    assert len(catalogue.get("nanodet-g").variants) == 1


def test_a_damaged_file_is_not_loaded(tmp_path: Path) -> None:
    file = copied("nanodet-g", tmp_path) / "detect-int8.onnx"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    model = Catalogue((tmp_path,)).get("nanodet-g")
    with pytest.raises(ModelUnavailable, match="SHA-256"):
        model.read("int8", "detect")
    file.unlink()
    with pytest.raises(ModelUnavailable, match="expected the model file"):
        model.read("int8", "detect")
    with pytest.raises(ModelUnavailable, match="out of int8"):
        model.read("fp64", "detect")


def test_unknown_models_and_capabilities_are_named(tmp_path: Path) -> None:
    catalogue = Catalogue((tmp_path,))
    with pytest.raises(ModelUnavailable, match="none"):
        catalogue.get("nanodet-g")
    with pytest.raises(ModelUnavailable, match="models add"):
        catalogue.of("detect")


def test_the_users_folder_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied("nanodet-g", tmp_path).rename(tmp_path / "mine")
    manifest = read_manifest(tmp_path / "mine")
    write_manifest(tmp_path / "mine", manifest.model_copy(update={"id": "mine"}))
    monkeypatch.setenv("ISPINE_MODELS_DIR", str(tmp_path))
    assert Catalogue.default().get("mine").manifest.capability == "detect"


def test_every_shipped_file_is_what_its_manifest_says() -> None:
    for model in Catalogue((shipped_dir(),)):
        assert model.manifest.licence == "Apache-2.0"
        for variant, folder in model.variants:
            for stage, file in variant.stages.items():
                assert len(model.read(variant.name, stage)) == file.size_bytes
                graph = onnx.load(folder / file.file).graph
                assert graph.input[0].name == "image"
                assert graph.input[0].type.tensor_type.elem_type == TensorProto.UINT8
        if model.manifest.capability != "gesture":
            assert len(set(model.labels())) == len(model.labels())
