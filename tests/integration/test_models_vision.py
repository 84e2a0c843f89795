"""The shipped models on real pictures."""

import importlib.util
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ispine.models.annotate import annotate
from ispine.models.capability import CapabilityImpl, RuntimeConfig, discover
from ispine.models.catalogue import shipped_dir
from ispine.models.classify import ClassifyCapability
from ispine.models.detect import DetectCapability
from ispine.models.gesture import GestureCapability
from ispine.models.golden import iou, landmark_error, matches
from ispine.models.images import decode_image, encode_jpeg
from ispine.models.manifest import read_manifest, write_manifest
from ispine.models.photos import demo_photos, drawn_hand, reference_pictures
from ispine.models.results import parse_detections, parse_hands, parse_labels
from ispine.models.runtime import CPU, Session, available_providers, candidate_providers
from ispine.models.verifying import verify_all
from ispine.protocol.errors import ModelUnavailable, TaskRejected

OPTIONAL = Path(__file__).parents[2] / "models" / "optional"
PHOTOS = {photo.name: photo.data for photo in demo_photos()}
DEBIAN_HAND = Path("/usr/share/doc/opencv-doc/opencv4/html/handSrc.jpg")


@pytest.fixture(scope="module")
def detect() -> CapabilityImpl:
    return DetectCapability(RuntimeConfig(model_dir=OPTIONAL))


@pytest.fixture(scope="module")
def classify() -> CapabilityImpl:
    return ClassifyCapability(RuntimeConfig(model_dir=OPTIONAL))


@pytest.fixture(scope="module")
def gesture() -> CapabilityImpl:
    return GestureCapability(RuntimeConfig(model_dir=OPTIONAL))


def from_scikit_image(name: str) -> bytes:
    """A photograph of a test dependency; its package is found, not imported."""
    found = importlib.util.find_spec("skimage")
    assert found is not None and found.origin is not None, "install ispine[dev]"
    return (Path(found.origin).parent / "data" / name).read_bytes()


def hand_photo() -> bytes:
    if not DEBIAN_HAND.exists():
        reason = "needs the Debian package opencv-doc (apt-get install opencv-doc)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return DEBIAN_HAND.read_bytes()


@pytest.mark.parametrize("variant", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("photo", "label"),
    [("coffee.png", "cup"), ("motorcycle_left.png", "motorcycle"), ("astronaut.png", "person")],
)
def test_expected_objects_are_found(
    detect: CapabilityImpl, photo: str, label: str, variant: str
) -> None:
    output = detect.run(from_scikit_image(photo), variant=variant)
    assert (output.content_type, output.variant) == ("application/json", variant)
    found = parse_detections(output.data)
    assert [item.label for item in found].count(label) == 1
    assert [item.score for item in found] == sorted((i.score for i in found), reverse=True)


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_expected_scenes_are_named(classify: CapabilityImpl, variant: str) -> None:
    coffee = parse_labels(classify.run(from_scikit_image("coffee.png"), variant=variant).data)
    assert coffee[0].label == "espresso"
    assert len(coffee) == 5
    assert parse_labels(classify.run(PHOTOS["china"], variant=variant).data)[0].label == "palace"


@pytest.mark.parametrize("model", ["nanodet-g", "ssd-mobilenet-v2"])
def test_int8_finds_what_fp32_finds(detect: CapabilityImpl, model: str) -> None:
    """At least 90 % of the boxes above .5, over all pictures and their quarters."""
    strong = kept = 0
    pictures = [
        *PHOTOS.values(),
        *map(from_scikit_image, ("motorcycle_left.png", "motorcycle_right.png")),
    ]
    for data in [part for picture in pictures for part in (picture, *quarters(picture))]:
        options: dict[str, object] = {"model": model}
        expected = parse_detections(detect.run(data, variant="fp32", options=options).data)
        options["min_score"] = 0.3
        found = parse_detections(detect.run(data, variant="int8", options=options).data)
        for item in expected:
            if item.score > 0.5:
                strong += 1
                kept += matches(item, found)
    assert strong >= 5
    assert kept >= 0.9 * strong


def quarters(data: bytes) -> list[bytes]:
    rgb = decode_image(data).rgb
    height, width = rgb.shape[0] // 2, rgb.shape[1] // 2
    return [
        encode_jpeg(np.ascontiguousarray(rgb[y : y + height, x : x + width]))
        for y in (0, height)
        for x in (0, width)
    ]


def test_int8_names_what_fp32_names(classify: CapabilityImpl) -> None:
    same = 0
    for data in PHOTOS.values():
        one, two = (
            parse_labels(classify.run(data, variant=variant).data) for variant in ("fp32", "int8")
        )
        same += one[0].label in [label.label for label in two[:2]]
    assert same >= 4


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_a_real_open_hand_is_read(gesture: CapabilityImpl, variant: str) -> None:
    data = hand_photo()
    (hand,) = parse_hands(gesture.run(data, variant=variant).data)
    assert hand.gesture == "open_palm"
    assert hand.score > 0.9
    picture = Image.open(DEBIAN_HAND)
    # Which hand it is, the net says clearly only of these two; it is a left one.
    for turn, handedness in (
        (Image.Transpose.ROTATE_180, "left"),
        (Image.Transpose.FLIP_LEFT_RIGHT, "right"),
    ):
        turned = encode_jpeg(picture.transpose(turn))
        (hand,) = parse_hands(gesture.run(turned, variant=variant).data)
        assert (hand.gesture, hand.handedness) == ("open_palm", handedness)


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_a_mirrored_hand_is_the_other_one(gesture: CapabilityImpl, variant: str) -> None:
    picture = Image.fromarray(decode_image(drawn_hand().data).rgb)
    mirrored = encode_jpeg(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    one, two = (
        parse_hands(gesture.run(data, variant=variant).data)[0]
        for data in (drawn_hand().data, mirrored)
    )
    assert (one.handedness, two.handedness) == ("left", "right")


def test_a_drawn_hand_is_read_alike_by_both_variants(gesture: CapabilityImpl) -> None:
    one, two = (
        parse_hands(gesture.run(drawn_hand().data, variant=variant).data)[0]
        for variant in ("fp32", "int8")
    )
    assert one.gesture == two.gesture == "open_palm"
    assert landmark_error(one, two) < 0.03


def test_landmarks_follow_the_picture(gesture: CapabilityImpl) -> None:
    """Half the size, on a wider ground: the same hand, moved and scaled."""
    (hand,) = parse_hands(gesture.run(drawn_hand().data).data)
    ground = Image.new("RGB", (900, 700), (70, 90, 110))
    drawing = Image.fromarray(decode_image(drawn_hand().data).rgb).resize((480, 360))
    ground.paste(drawing, (300, 250))
    (moved,) = parse_hands(gesture.run(encode_jpeg(ground, quality=95)).data)
    for (x, y, _), (a, b, _) in zip(hand.landmarks, moved.landmarks, strict=True):
        assert abs(a - (300 + 0.75 * x)) < 12 and abs(b - (250 + 0.75 * y)) < 12


def test_boxes_are_in_pixels_of_the_upright_picture(detect: CapabilityImpl) -> None:
    """However large, turned by EXIF, and reduced while decoding."""
    base = parse_detections(detect.run(PHOTOS["astronaut"]).data)[0]
    photo = Image.fromarray(decode_image(PHOTOS["astronaut"]).rgb)
    large = photo.resize((2048, 2048))
    exif = Image.Exif()
    exif[0x0112] = 6
    path_free = encode_jpeg(large)
    turned = with_exif(large.transpose(Image.Transpose.ROTATE_90), exif)
    for data in (path_free, turned):
        result = detect.run(data).data
        found = parse_detections(result)[0]
        assert json.loads(result)["image"] == {"width": 2048, "height": 2048}
        assert found.label == base.label
        left, top, right, bottom = (4 * edge for edge in base.box_xyxy)
        assert iou(found.box_xyxy, (left, top, right, bottom)) > 0.85


def with_exif(picture: Image.Image, exif: Image.Exif) -> bytes:
    import io

    target = io.BytesIO()
    picture.save(target, "JPEG", exif=exif)
    return target.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1), (17, 5), (3000, 40)])
def test_pictures_of_any_shape_run(
    detect: CapabilityImpl, classify: CapabilityImpl, gesture: CapabilityImpl, size: tuple[int, int]
) -> None:
    picture = encode_jpeg(np.full((size[1], size[0], 3), 128, np.uint8))
    for item in parse_detections(detect.run(picture, options={"min_score": 0.0}).data):
        left, top, right, bottom = item.box_xyxy
        assert 0 <= left <= right <= size[0] and 0 <= top <= bottom <= size[1]
    assert len(parse_labels(classify.run(picture).data)) == 5
    assert parse_hands(gesture.run(picture).data) == []


def test_options_steer_the_answer(
    detect: CapabilityImpl, classify: CapabilityImpl, gesture: CapabilityImpl
) -> None:
    photo = PHOTOS["chelsea"]
    many = parse_detections(detect.run(photo, options={"min_score": 0.2}).data)
    assert (
        len(parse_detections(detect.run(photo, options={"min_score": 0.2, "max_results": 1}).data))
        == 1
    )
    assert (
        len(many) > len(parse_detections(detect.run(photo, options={"min_score": 0.99}).data)) == 0
    )
    assert len(parse_labels(classify.run(photo, options={"top": 2}).data)) == 2
    other = json.loads(detect.run(photo, options={"model": "ssd-mobilenet-v2"}).data)
    assert (other["model"], other["variant"]) == ("ssd-mobilenet-v2", "int8")
    for capability, options in (
        (detect, {"min_scor": 0.5}),
        (detect, {"min_score": 2}),
        (detect, {"model": "yolo"}),
        (detect, {"model": 5}),
        (classify, {"top": 6}),
        (gesture, {"max_hands": 0}),
    ):
        with pytest.raises(TaskRejected, match="expected"):
            capability.run(photo, options=options)
    with pytest.raises(ModelUnavailable, match="fp64"):
        detect.run(photo, variant="fp64")


def test_slots_share_one_capability(detect: CapabilityImpl) -> None:
    photos = [*PHOTOS.values()] * 2
    alone = [detect.run(photo).data for photo in photos]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda photo: detect.run(photo).data, photos)) == alone


@pytest.mark.parametrize("name", ["detect", "classify", "gesture"])
def test_loading_checks_and_times_every_variant(name: str) -> None:
    capability = discover()[name](RuntimeConfig(model_dir=OPTIONAL))
    capability.load()
    assert [variant.name for variant in capability.variants] == ["fp32", "int8"]
    assert all(variant.usable for variant in capability.variants)
    qualities = [variant.quality for variant in capability.variants]
    assert qualities == sorted(qualities, reverse=True)
    times = capability.benchmark()
    assert set(times) == {"fp32", "int8"} and min(times.values()) > 0


def test_the_package_alone_is_enough(tmp_path: Path) -> None:
    capability = DetectCapability(RuntimeConfig(model_dir=tmp_path))
    capability.load()
    assert [variant.name for variant in capability.variants] == ["int8"]
    assert capability.run(PHOTOS["coffee"]).variant == "int8"


def swapped_nanodet(folder: Path) -> None:
    """A variant `fast` of NanoDet that is really the classifier of another label set: SSD."""
    target = folder / "nanodet-g"
    shutil.copytree(shipped_dir() / "ssd-mobilenet-v2", target)
    shutil.copy(shipped_dir() / "nanodet-g" / "labels.txt", target)
    ssd, nanodet = read_manifest(target), read_manifest(shipped_dir() / "nanodet-g")
    wrong = ssd.variants[0].model_copy(update={"name": "wrong"})
    write_manifest(target, nanodet.model_copy(update={"variants": (wrong,)}))


def test_a_variant_that_deviates_is_switched_off(tmp_path: Path) -> None:
    swapped_nanodet(tmp_path)
    capability = DetectCapability(RuntimeConfig(model_dir=tmp_path))
    capability.load()
    assert {v.name: v.usable for v in capability.variants} == {"int8": True, "wrong": False}
    assert "wrong" not in capability.benchmark()
    with pytest.raises(ModelUnavailable, match="out of int8"):
        capability.run(PHOTOS["coffee"], variant="wrong")
    verdicts = {(v.model, v.variant): v.problem for v in verify_all(tmp_path)}
    assert "strong boxes" in verdicts["nanodet-g", "wrong"]
    assert verdicts["nanodet-g", "int8"] == ""


def test_verifying_finds_damage(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(shipped_dir() / "efficientnet-lite0", folder)
    write_manifest(
        folder, read_manifest(folder).model_copy(update={"id": "copy", "is_default": False})
    )
    (folder / "classify-int8.onnx").write_bytes(b"\x08\x08")
    verdicts = {(v.model, v.variant): v.problem for v in verify_all(tmp_path)}
    assert "SHA-256" in verdicts["copy", "int8"]
    assert [problem for key, problem in verdicts.items() if key[0] != "copy"] == [""] * 4


def test_everything_in_the_repository_agrees_with_the_reference() -> None:
    verdicts = list(verify_all(OPTIONAL))
    assert len(verdicts) == 8
    assert [v for v in verdicts if v.problem] == []


def test_providers_are_tried_and_the_cpu_stays(tmp_path: Path) -> None:
    assert available_providers()[-1] == CPU
    assert candidate_providers(("NoSuchProvider", CPU)) == ()
    capability = ClassifyCapability(
        RuntimeConfig(providers=("AzureExecutionProvider", "NoSuch"), model_dir=tmp_path)
    )
    capability.load()
    assert capability.providers[-1] == CPU
    assert capability.run(PHOTOS["coffee"]).variant == "int8"


def test_a_file_that_is_no_model_is_refused() -> None:
    with pytest.raises(ModelUnavailable, match="no ONNX model"):
        Session(b"not onnx", "mine")


def test_pictures_are_drawn_on(
    detect: CapabilityImpl, classify: CapabilityImpl, gesture: CapabilityImpl, tmp_path: Path
) -> None:
    for name, data, items in (
        ("boxes", PHOTOS["coffee"], parse_detections(detect.run(PHOTOS["coffee"]).data)),
        ("labels", PHOTOS["china"], parse_labels(classify.run(PHOTOS["china"]).data)),
        ("hands", drawn_hand().data, parse_hands(gesture.run(drawn_hand().data).data)),
    ):
        annotate(data, items, tmp_path / f"{name}.jpg")
        before, after = (
            decode_image(data).rgb,
            decode_image((tmp_path / f"{name}.jpg").read_bytes()).rgb,
        )
        assert before.shape == after.shape
        assert np.mean(np.abs(before.astype(int) - after).max(axis=2) > 60) > 0.001


def test_pictures_say_where_they_come_from() -> None:
    notice = (Path(__file__).parents[2] / "models" / "NOTICE").read_text(encoding="utf-8")
    for picture in reference_pictures():
        assert picture.licence and picture.source
        assert picture.name in notice
        assert len(picture.data) <= 110_000
    assert {"person", "cup"} <= {label for photo in demo_photos() for label in photo.contains}
