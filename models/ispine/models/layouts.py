"""The families of nets that iSpine can wrap, each as one function from a bare net to a graph.

What every family's raw outputs mean is said, with its source, in the function's docstring.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from ispine.models.graphs import (
    Candidates,
    Cells,
    Preprocess,
    Wrapper,
    candidates,
    cell_centres,
    columns,
    emit_detections,
    fit_into,
    from_centres,
    image_input,
    logit,
    normalise,
    resize,
    scalar,
    stretched,
)

THRESHOLD = 0.2
BEST = 5
END = 2**31 - 1
NANODET_STRIDES = (8, 16, 32)
NANODET_PLUS_STRIDES = (8, 16, 32, 64)
YOLOX_STRIDES = (8, 16, 32)

NANODET_416 = Preprocess(416, 416, (103.53, 116.28, 123.675), (57.375, 57.12, 58.395), is_bgr=True)
SSD_300 = Preprocess(300, 300, (127.5,) * 3, (127.5,) * 3, is_nchw=False)
LITE0_224 = Preprocess(224, 224, (127.0,) * 3, (128.0,) * 3)


def wrap_nanodet(
    net: onnx.ModelProto,
    want: Preprocess,
    class_outputs: Sequence[str],
    box_outputs: Sequence[str],
    classes: int,
    bins: int,
    threshold: float = THRESHOLD,
) -> onnx.ModelProto:
    """NanoDet: anchor-free, a distribution over distances for each side.

    Each cell gives class probabilities and 4 * bins logits; the distance to a side is the softmax
    expectation over the bins 0 to bins-1, times the stride (generalised focal loss, Li et al.
    2020, as in RangiLyu/nanodet).

    Args:
        net: the bare net.
        want: its input.
        class_outputs: [1, cells, classes] per level, finest first; or the one output
            [1, cells, classes + 4 * bins] of the usual export.
        box_outputs: [1, cells, 4 * bins] per level; empty for the one output.
        classes: number of labels.
        bins: per side.
        threshold: least score.
    """
    wrap = Wrapper(net)
    image = stretched(wrap, want)
    scores = wrap.node("Squeeze", wrap.join(class_outputs, axis=1), wrap.ints(0))
    raw = scores
    if box_outputs:
        raw = wrap.node("Squeeze", wrap.join(box_outputs, axis=1), wrap.ints(0))
    else:
        raw = columns(wrap, scores, classes, END)
        scores = columns(wrap, scores, 0, classes)
    found = candidates(wrap, scores, threshold)
    logits = wrap.node("Reshape", wrap.node("Gather", raw, found.rows), wrap.ints(-1, 4, bins))
    shares = wrap.node("Softmax", logits, axis=2)
    weights = wrap.constant(np.arange(bins, dtype=np.float32)[:, None])
    steps = wrap.node("Squeeze", wrap.node("MatMul", shares, weights), wrap.ints(2))
    cells = nanodet_cells(want, None if box_outputs else cell_count(net, class_outputs[0]))
    size = np.array([want.width, want.height], np.float32)
    centres = wrap.node("Gather", wrap.constant(cells.centres / size), found.rows)
    strides = wrap.node("Gather", wrap.constant(cells.strides / size), found.rows)
    near, far = wrap.split("Split", steps, wrap.ints(2, 2), outputs=2, axis=1)
    corners = (
        wrap.node("Sub", centres, wrap.node("Mul", near, strides)),
        wrap.node("Add", centres, wrap.node("Mul", far, strides)),
    )
    emit_detections(wrap, wrap.node("Concat", *corners, axis=1), found, image, iou=0.6)
    return wrap.finish("detect")


def nanodet_cells(want: Preprocess, count: int | None) -> Cells:
    """Centres and strides of the cells; NanoDet-Plus is known by its fourth level.

    NanoDet measures from the middle of a cell, NanoDet-Plus from its corner.
    """
    plain = cell_centres(want.width, want.height, NANODET_STRIDES)
    if count is None or count == len(plain.centres):
        return plain
    plus = cell_centres(want.width, want.height, NANODET_PLUS_STRIDES)
    return Cells(plus.corners, plus.strides)


def nanodet_counts(want: Preprocess) -> tuple[int, int]:
    """How many cells NanoDet and NanoDet-Plus have at that input size."""
    plain, plus = (
        cell_centres(want.width, want.height, strides)
        for strides in (NANODET_STRIDES, NANODET_PLUS_STRIDES)
    )
    return len(plain.centres), len(plus.centres)


def yolox_cells(want: Preprocess) -> Cells:
    """Centres and strides of YOLOX's cells."""
    return cell_centres(want.width, want.height, YOLOX_STRIDES)


def cell_count(net: onnx.ModelProto, output: str) -> int:
    """Rows of an output [1, rows, …]; 0 when the graph does not say."""
    info = next(value for value in net.graph.output if value.name == output)
    return int(info.type.tensor_type.shape.dim[1].dim_value)


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
    *,
    is_logit: bool = True,
) -> onnx.ModelProto:
    """SSD with 1,917 anchors: box codes [1, n, 4] and class logits [1, n, 1 + classes].

    A code is (y, x, height, width), offsets over anchor size times 10 and logarithms times 5
    (Liu et al. 2016). Class 0 is the background, so label 0 of the answer is class 1.
    `is_logit` is false when the net ends in its own sigmoid.
    """
    wrap = Wrapper(net)
    image = stretched(wrap, want)
    flat = wrap.node("Reshape", class_output, wrap.ints(len(ssd_anchors()), -1))
    objects = columns(wrap, flat, 1, END)
    found = candidates(wrap, objects, logit(threshold) if is_logit else threshold)
    if is_logit:
        found = Candidates(found.rows, wrap.node("Sigmoid", found.scores), found.labels)
    codes = wrap.node("Reshape", box_output, wrap.ints(-1, 4))
    code = wrap.node(
        "Gather", wrap.node("Gather", codes, found.rows), wrap.ints(1, 0, 3, 2), axis=1
    )
    offset, log_size = wrap.split("Split", code, wrap.ints(2, 2), outputs=2, axis=1)
    anchors = ssd_anchors()
    centre = wrap.node("Gather", wrap.constant(anchors[:, :2]), found.rows)
    size = wrap.node("Gather", wrap.constant(anchors[:, 2:]), found.rows)
    moved = wrap.node("Mul", wrap.node("Mul", offset, wrap.floats(0.1)), size)
    grown = wrap.node("Exp", wrap.node("Mul", log_size, wrap.floats(0.2)))
    halves = wrap.node("Mul", wrap.node("Mul", grown, size), wrap.floats(0.5))
    boxes = from_centres(wrap, wrap.node("Add", centre, moved), halves)
    emit_detections(wrap, boxes, found, image, iou=0.5)
    return wrap.finish("detect")


def wrap_yolox(
    net: onnx.ModelProto,
    want: Preprocess,
    output: str,
    threshold: float = THRESHOLD,
    *,
    is_decoded: bool = False,
) -> onnx.ModelProto:
    """YOLOX: [1, cells, 5 + classes], the picture at the top left of a grey square.

    Columns are offset x, offset y in strides from the cell's corner, log width, log height in
    strides, objectness, class probabilities; the score is objectness times class (Ge et al. 2021).
    With `is_decoded` the first four are centre and size in pixels of the net's input.
    """
    wrap = Wrapper(net)
    image = image_input(wrap)
    fitted = fit_into(wrap, image, want)
    grey = scalar(wrap, 114.0)
    pads = wrap.node("Concat", wrap.ints(0, 0, 0, 0, 0, 0), fitted.rest, axis=0)
    padded = wrap.node("Pad", fitted.image, pads, grey)
    wrap.feed_net(normalise(wrap, padded, want))
    rows = wrap.node("Squeeze", output, wrap.ints(0))
    scores = wrap.node("Mul", columns(wrap, rows, 5, END), columns(wrap, rows, 4, 5))
    found = candidates(wrap, scores, threshold)
    code = columns(wrap, wrap.node("Gather", rows, found.rows), 0, 4)
    centres, size = wrap.split("Split", code, wrap.ints(2, 2), outputs=2, axis=1)
    if not is_decoded:
        cells = yolox_cells(want)
        corners = wrap.constant(cells.corners)
        strides = wrap.node("Gather", wrap.constant(cells.strides), found.rows)
        offset = wrap.node("Mul", centres, strides)
        centres = wrap.node("Add", wrap.node("Gather", corners, found.rows), offset)
        size = wrap.node("Mul", wrap.node("Exp", size), strides)
    boxes = from_centres(wrap, centres, wrap.node("Mul", size, wrap.floats(0.5)))
    used = wrap.node("Gather", fitted.size, wrap.ints(1, 0, 1, 0))
    emit_detections(wrap, wrap.node("Div", boxes, used), found, image, iou=0.45)
    return wrap.finish("detect")


def wrap_classifier(
    net: onnx.ModelProto,
    want: Preprocess,
    output: str,
    top: int = BEST,
    *,
    is_logit: bool = True,
) -> onnx.ModelProto:
    """A classifier's logits [1, classes]: central square in, best five of a softmax out.

    `is_logit` is false when the net ends in its own softmax.
    """
    wrap = Wrapper(net)
    image = image_input(wrap)
    small = resize(wrap, _central_square(wrap, image), wrap.ints(1, 3, want.height, want.width))
    wrap.feed_net(normalise(wrap, small, want))
    values = wrap.node("Softmax", output, axis=1) if is_logit else output
    shares = wrap.node("Squeeze", values, wrap.ints(0))
    scores, labels = wrap.split("TopK", shares, wrap.ints(top), outputs=2, axis=0)
    wrap.output("labels", labels, TensorProto.INT64, [top])
    wrap.output("scores", scores, TensorProto.FLOAT, [top])
    return wrap.finish("classify")


def _central_square(wrap: Wrapper, image: str) -> str:
    sides = wrap.node("Gather", wrap.node("Shape", image), wrap.ints(2, 3))
    side = wrap.node("ReduceMin", sides, keepdims=1)
    start = wrap.node("Div", wrap.node("Sub", sides, side), wrap.ints(2))
    return wrap.node("Slice", image, start, wrap.node("Add", start, side), wrap.ints(2, 3))
