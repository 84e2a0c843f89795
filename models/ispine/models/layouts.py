"""The families of nets that iSpine can wrap, each as one function from a bare net to a graph.

What every family's raw outputs mean is said, with its source, in the function's docstring.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from ispine.models.graphs import (
    TOP_LABELS,
    Candidates,
    Preprocess,
    Wrapper,
    candidates,
    cell_centres,
    columns,
    emit_detections,
    from_centres,
    image_input,
    normalise,
    resize,
    stretched,
    suppress,
)

THRESHOLD = 0.2
END = 2**31 - 1
NANODET_STRIDES = (8, 16, 32)
YOLOX_STRIDES = (8, 16, 32)

NANODET_416 = Preprocess(416, 416, (103.53, 116.28, 123.675), (57.375, 57.12, 58.395), is_bgr=True)
SSD_300 = Preprocess(300, 300, (127.5,) * 3, (127.5,) * 3, is_nchw=False)
LITE0_224 = Preprocess(224, 224, (127.0,) * 3, (128.0,) * 3)
PALM_192 = Preprocess(192, 192, (0.0,) * 3, (255.0,) * 3, is_nchw=False)
HAND_224 = Preprocess(224, 224, (0.0,) * 3, (255.0,) * 3, is_nchw=False)


def wrap_nanodet(
    net: onnx.ModelProto,
    want: Preprocess,
    class_outputs: Sequence[str],
    box_outputs: Sequence[str],
    threshold: float = THRESHOLD,
) -> onnx.ModelProto:
    """NanoDet: anchor-free, a distribution over distances for each side.

    Each level gives class probabilities [1, cells, classes] and [1, cells, 4 * bins] logits; the
    distance to a side is the softmax expectation over the bins 0 to bins-1, times the stride
    (generalised focal loss, Li et al. 2020, as in RangiLyu/nanodet). Outputs come finest first.
    """
    wrap = Wrapper(net)
    image = stretched(wrap, want)
    scores = wrap.node("Squeeze", wrap.node("Concat", *class_outputs, axis=1), wrap.ints(0))
    found = candidates(wrap, scores, threshold)
    raw = wrap.node("Squeeze", wrap.node("Concat", *box_outputs, axis=1), wrap.ints(0))
    logits = wrap.node(
        "Reshape",
        wrap.node("Gather", raw, found.rows),
        wrap.ints(-1, 4, _bins(net, box_outputs[0])),
    )
    bins = np.arange(_bins(net, box_outputs[0]), dtype=np.float32)
    steps = wrap.node(
        "Squeeze",
        wrap.node(
            "MatMul", wrap.node("Softmax", logits, axis=2), wrap.constant(bins.reshape(-1, 1))
        ),
        wrap.ints(2),
    )
    cells = cell_centres(want.width, want.height, NANODET_STRIDES)
    size = np.array([want.width, want.height], np.float32)
    centres = wrap.node(
        "Gather", wrap.constant((cells[:, :2] / size).astype(np.float32)), found.rows
    )
    strides = wrap.node(
        "Gather", wrap.constant((cells[:, 2:] / np.tile(size, 2)).astype(np.float32)), found.rows
    )
    sides = wrap.node("Mul", steps, strides)
    near, far = wrap.split("Split", sides, wrap.ints(2, 2), outputs=2, axis=1)
    boxes = wrap.node(
        "Concat", wrap.node("Sub", centres, near), wrap.node("Add", centres, far), axis=1
    )
    emit_detections(wrap, boxes, found, image, iou=0.6)
    return wrap.finish("detect")


def _bins(net: onnx.ModelProto, output: str) -> int:
    info = next(value for value in net.graph.output if value.name == output)
    return int(info.type.tensor_type.shape.dim[2].dim_value) // 4


def ssd_anchors() -> NDArray[np.float32]:
    """Float32 [1917, 4] centre x, centre y, width, height, relative, of SSD-MobileNetV2 at 300.

    Six levels of 19, 10, 5, 3, 2, 1 cells; scales 0.2 to 0.95, aspect ratios 1, 2, 1/2, 3, 1/3
    and one more square between the scales; the lowest level has three (Liu et al. 2016, with the
    settings of the TensorFlow object detection API).
    """
    levels = (19, 10, 5, 3, 2, 1)
    scales = [*np.linspace(0.2, 0.95, len(levels)), 1.0]
    rows: list[NDArray[np.float64]] = []
    for level, cells in enumerate(levels):
        scale = scales[level]
        shapes = [(ratio, scale) for ratio in (1.0, 2.0, 0.5, 3.0, 0.3333)]
        shapes.append((1.0, float(np.sqrt(scale * scales[level + 1]))))
        if level == 0:
            shapes = [(1.0, 0.1), (2.0, scale), (0.5, scale)]
        sizes = np.array([(s * np.sqrt(r), s / np.sqrt(r)) for r, s in shapes])
        y, x = np.mgrid[0:cells, 0:cells]
        centres = (np.stack([x.ravel(), y.ravel()], axis=1) + 0.5) / cells
        rows.append(
            np.column_stack(
                [np.repeat(centres, len(sizes), axis=0), np.tile(sizes, (len(centres), 1))]
            )
        )
    return np.concatenate(rows).astype(np.float32)


def wrap_ssd(
    net: onnx.ModelProto,
    want: Preprocess,
    class_output: str,
    box_output: str,
    threshold: float = THRESHOLD,
) -> onnx.ModelProto:
    """SSD with 1,917 anchors: box codes [1, n, 4] and class logits [1, n, 1 + classes].

    A code is (y, x, height, width), offsets over anchor size times 10 and logarithms times 5
    (Liu et al. 2016). Class 0 is the background, so label 0 of the answer is class 1.
    """
    wrap = Wrapper(net)
    image = stretched(wrap, want)
    logits = wrap.node("Squeeze", class_output, wrap.ints(0))
    objects = columns(wrap, logits, 1, END)
    found = candidates(wrap, objects, float(np.log(threshold / (1 - threshold))))
    found = Candidates(found.rows, wrap.node("Sigmoid", found.scores), found.labels)
    code = wrap.node("Gather", wrap.node("Squeeze", box_output, wrap.ints(0)), found.rows)
    code = wrap.node("Gather", code, wrap.ints(1, 0, 3, 2), axis=1)
    offset, log_size = wrap.split("Split", code, wrap.ints(2, 2), outputs=2, axis=1)
    anchors = ssd_anchors()
    centre = wrap.node("Gather", wrap.constant(anchors[:, :2]), found.rows)
    size = wrap.node("Gather", wrap.constant(anchors[:, 2:]), found.rows)
    moved = wrap.node("Mul", wrap.node("Mul", offset, wrap.floats(0.1)), size)
    halves = wrap.node(
        "Mul",
        wrap.node("Mul", wrap.node("Exp", wrap.node("Mul", log_size, wrap.floats(0.2))), size),
        wrap.floats(0.5),
    )
    boxes = from_centres(wrap, wrap.node("Add", centre, moved), halves)
    emit_detections(wrap, boxes, found, image, iou=0.5)
    return wrap.finish("detect")


def wrap_yolox(
    net: onnx.ModelProto, want: Preprocess, output: str, threshold: float = THRESHOLD
) -> onnx.ModelProto:
    """YOLOX: [1, cells, 5 + classes], not decoded in the net (the usual export).

    Columns are offset x, offset y in strides from the cell's corner, log width, log height in
    strides, objectness, class probabilities; the score is objectness times class (Ge et al. 2021).
    The picture is stretched, not padded.
    """
    wrap = Wrapper(net)
    image = stretched(wrap, want)
    rows = wrap.node("Squeeze", output, wrap.ints(0))
    objectness = columns(wrap, rows, 4, 5)
    classes = columns(wrap, rows, 5, END)
    found = candidates(wrap, wrap.node("Mul", classes, objectness), threshold)
    code = wrap.node("Gather", rows, found.rows)
    code = columns(wrap, code, 0, 4)
    offset, log_size = wrap.split("Split", code, wrap.ints(2, 2), outputs=2, axis=1)
    cells = cell_centres(want.width, want.height, YOLOX_STRIDES)
    size = np.array([want.width, want.height], np.float32)
    corners = wrap.node(
        "Gather",
        wrap.constant(((cells[:, :2] - cells[:, 2:] / 2) / size).astype(np.float32)),
        found.rows,
    )
    strides = wrap.node(
        "Gather", wrap.constant((cells[:, 2:] / size).astype(np.float32)), found.rows
    )
    centres = wrap.node("Add", corners, wrap.node("Mul", offset, strides))
    halves = wrap.node(
        "Mul", wrap.node("Mul", wrap.node("Exp", log_size), strides), wrap.floats(0.5)
    )
    emit_detections(wrap, from_centres(wrap, centres, halves), found, image, iou=0.45)
    return wrap.finish("detect")


def wrap_classifier(
    net: onnx.ModelProto, want: Preprocess, output: str, top: int = TOP_LABELS
) -> onnx.ModelProto:
    """A classifier's logits [1, classes]: central square in, best five of a softmax out."""
    wrap = Wrapper(net)
    image = image_input(wrap)
    small = resize(wrap, _central_square(wrap, image), wrap.ints(1, want.height, want.width, 3))
    wrap.feed_net(normalise(wrap, small, want))
    shares = wrap.node("Squeeze", wrap.node("Softmax", output, axis=1), wrap.ints(0))
    scores, labels = wrap.split("TopK", shares, wrap.ints(top), outputs=2, axis=0)
    wrap.output("labels", labels, TensorProto.INT64, [top])
    wrap.output("scores", scores, TensorProto.FLOAT, [top])
    return wrap.finish("classify")


def _central_square(wrap: Wrapper, image: str) -> str:
    sides = wrap.node("Gather", wrap.node("Shape", image), wrap.ints(1, 2))
    side = wrap.node("ReduceMin", sides, keepdims=1)
    start = wrap.node("Div", wrap.node("Sub", sides, side), wrap.ints(2))
    return wrap.node("Slice", image, start, wrap.node("Add", start, side), wrap.ints(1, 2))


def palm_anchors() -> NDArray[np.float32]:
    """Float32 [2016, 2]: relative centres of MediaPipe's palm anchors at 192, all of size 1.

    Strides 8, 16, 16, 16; two anchors a cell for each level, levels of one stride interleaved.
    """
    fine = np.repeat(cell_centres(192, 192, (8,))[:, :2], 2, axis=0)
    coarse = np.repeat(cell_centres(192, 192, (16,))[:, :2], 6, axis=0)
    return (np.concatenate([fine, coarse]) / 192).astype(np.float32)


def wrap_palm(
    net: onnx.ModelProto, codes: str, logits: str, threshold: float = 0.5
) -> onnx.ModelProto:
    """MediaPipe palm detection: the picture letterboxed to 192, 2,016 anchors.

    A code is centre x, y, width, height and seven points (x, y), in pixels of the 192 square
    relative to the anchor's centre. Answers `boxes` [n, 4], `scores` [n] and `points` [n, 7, 2]
    in pixels of the picture, not clipped, since the hand may reach out of it.
    """
    wrap = Wrapper(net)
    image = image_input(wrap)
    shape = wrap.node(
        "Cast",
        wrap.node("Gather", wrap.node("Shape", image), wrap.ints(1, 2)),
        to=TensorProto.FLOAT,
    )
    longest = wrap.node("ReduceMax", shape, keepdims=1)
    fitted = wrap.node(
        "Round", wrap.node("Div", wrap.node("Mul", shape, wrap.floats(192)), longest)
    )
    fitted = wrap.node("Cast", wrap.node("Max", fitted, wrap.floats(1)), to=TensorProto.INT64)
    sizes = wrap.node("Concat", wrap.ints(1), fitted, wrap.ints(3), axis=0)
    rest = wrap.node("Sub", wrap.ints(192, 192), fitted)
    before = wrap.node("Div", rest, wrap.ints(2))
    zero = wrap.ints(0)
    pads = wrap.node(
        "Concat", zero, before, zero, zero, wrap.node("Sub", rest, before), zero, axis=0
    )
    pixels = normalise(wrap, resize(wrap, image, sizes), PALM_192)
    wrap.feed_net(wrap.node("Pad", pixels, pads))

    raw = wrap.node("Squeeze", logits, wrap.ints(0))
    found = candidates(wrap, raw, float(np.log(threshold / (1 - threshold))))
    found = Candidates(found.rows, wrap.node("Sigmoid", found.scores), found.labels)
    code = wrap.node("Gather", wrap.node("Squeeze", codes, wrap.ints(0)), found.rows)
    points = wrap.node("Reshape", code, wrap.ints(-1, 9, 2))
    anchors = wrap.constant(palm_anchors()[:, None, :] * np.float32(192))
    anchor = wrap.node("Gather", anchors, found.rows)
    # Undo the letterbox: minus the border (x first), times longest side / 192.
    border = wrap.node("Cast", wrap.node("Gather", before, wrap.ints(1, 0)), to=TensorProto.FLOAT)
    factor = wrap.node("Div", longest, wrap.floats(192))
    size = wrap.node("Mul", columns(wrap, points, 1, 2), factor)
    where = wrap.node("Mul", wrap.node("Sub", wrap.node("Add", points, anchor), border), factor)
    centre = wrap.node("Gather", where, wrap.constant(np.array(0, np.int64)), axis=1)
    halves = wrap.node("Mul", wrap.node("Squeeze", size, wrap.ints(1)), wrap.floats(0.5))
    boxes = from_centres(wrap, centre, halves)
    kept = suppress(wrap, boxes, found.scores, iou=0.3)
    marks = columns(wrap, where, 2, 9)
    wrap.output("boxes", wrap.node("Gather", boxes, kept), TensorProto.FLOAT, ["n", 4])
    wrap.output("scores", wrap.node("Gather", found.scores, kept), TensorProto.FLOAT, ["n"])
    wrap.output("points", wrap.node("Gather", marks, kept), TensorProto.FLOAT, ["n", 7, 2])
    return wrap.finish("palm")


def wrap_hand(net: onnx.ModelProto, points: str, presence: str, handedness: str) -> onnx.ModelProto:
    """MediaPipe hand landmarks, with the crop inside.

    Inputs are `image` and `crop`, float32 [2, 3]: the affine map from pixels of the 224 square to
    pixels of the picture, which turns the hand upright. Pixels outside repeat the edge. Answers
    `landmarks` [21, 3] in pixels of the picture (z scaled alike), `presence` and `handedness`
    [1], 0 to 1 (handedness towards 1 is a right hand in a mirrored picture).
    """
    wrap = Wrapper(net)
    image = image_input(wrap)
    crop = wrap.input("crop", TensorProto.FLOAT, [2, 3])
    wrap.feed_net(normalise(wrap, _cropped(wrap, image, crop, HAND_224), HAND_224))
    marks = wrap.node("Reshape", points, wrap.ints(21, 3))
    flat, depth = wrap.split("Split", marks, wrap.ints(2, 1), outputs=2, axis=1)
    linear, shift = wrap.split("Split", crop, wrap.ints(2, 1), outputs=2, axis=1)
    turned = wrap.node("MatMul", flat, wrap.node("Transpose", linear, perm=[1, 0]))
    placed = wrap.node("Add", turned, wrap.node("Transpose", shift, perm=[1, 0]))
    scale = wrap.node("ReduceL2", columns(wrap, linear, 0, 1), keepdims=0)
    marks = wrap.node("Concat", placed, wrap.node("Mul", depth, scale), axis=1)
    wrap.output("landmarks", marks, TensorProto.FLOAT, [21, 3])
    for name, value in (("presence", presence), ("handedness", handedness)):
        wrap.output(name, wrap.node("Reshape", value, wrap.ints(1)), TensorProto.FLOAT, [1])
    return wrap.finish("hand")


def _cropped(wrap: Wrapper, image: str, crop: str, want: Preprocess) -> str:
    """Bilinear samples of `image` on the square that `crop` maps: uint8 NHWC."""
    y, x = np.mgrid[0 : want.height, 0 : want.width]
    grid = np.stack([x.ravel(), y.ravel(), np.ones(x.size)], axis=1).astype(np.float32)
    where = wrap.node("MatMul", wrap.constant(grid), wrap.node("Transpose", crop, perm=[1, 0]))
    shape = wrap.node("Shape", image)
    last = wrap.node("Sub", wrap.node("Gather", shape, wrap.ints(2, 1)), wrap.ints(1))
    where = wrap.node("Max", where, wrap.floats(0))
    where = wrap.node("Min", where, wrap.node("Cast", last, to=TensorProto.FLOAT))
    base = wrap.node("Floor", where)
    part = wrap.node("Sub", where, base)
    near = wrap.node("Cast", base, to=TensorProto.INT64)
    far = wrap.node("Min", wrap.node("Add", near, wrap.ints(1)), last)
    pixels = wrap.node("Reshape", image, wrap.ints(-1, 3))
    width = wrap.node("Gather", shape, wrap.ints(2))
    left, top = wrap.split("Split", near, wrap.ints(1, 1), outputs=2, axis=1)
    right, bottom = wrap.split("Split", far, wrap.ints(1, 1), outputs=2, axis=1)
    across, down = wrap.split("Split", part, wrap.ints(1, 1), outputs=2, axis=1)
    rows = []
    for row in (wrap.node("Mul", top, width), wrap.node("Mul", bottom, width)):
        one, two = (_pixels_at(wrap, pixels, row, column) for column in (left, right))
        rows.append(_blend(wrap, one, two, across))
    mixed = wrap.node("Round", _blend(wrap, rows[0], rows[1], down))
    return wrap.node("Reshape", mixed, wrap.ints(1, want.height, want.width, 3))


def _pixels_at(wrap: Wrapper, pixels: str, row: str, column: str) -> str:
    index = wrap.node("Squeeze", wrap.node("Add", row, column), wrap.ints(1))
    return wrap.node("Cast", wrap.node("Gather", pixels, index), to=TensorProto.FLOAT)


def _blend(wrap: Wrapper, one: str, two: str, share: str) -> str:
    return wrap.node("Add", one, wrap.node("Mul", wrap.node("Sub", two, one), share))
