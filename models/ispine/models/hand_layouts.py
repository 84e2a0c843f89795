"""MediaPipe's two hand nets: palms in a picture, then 21 landmarks in an upright crop.

Both are wrapped like the families of `layouts.py`; the crop is part of the second graph, so that
every runtime samples the same pixels.
"""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from ispine.models.graphs import (
    Preprocess,
    Wrapper,
    candidates,
    cell_centres,
    columns,
    fit_into,
    from_centres,
    image_input,
    logit,
    normalise,
    suppress,
)

PALM_192 = Preprocess(192, 192, (0.0,) * 3, (255.0,) * 3, is_nchw=False)
HAND_224 = Preprocess(224, 224, (0.0,) * 3, (255.0,) * 3, is_nchw=False)


def palm_anchors() -> NDArray[np.float32]:
    """Float32 [2016, 2]: centres of MediaPipe's palm anchors in pixels of the 192 square.

    Strides 8, 16, 16, 16; two anchors a cell for each level, levels of one stride interleaved.
    """
    fine = np.repeat(cell_centres(192, 192, (8,)).centres, 2, axis=0)
    coarse = np.repeat(cell_centres(192, 192, (16,)).centres, 6, axis=0)
    return np.concatenate([fine, coarse]).astype(np.float32)


def wrap_palm(
    net: onnx.ModelProto, codes: str, logits: str, threshold: float = 0.5
) -> onnx.ModelProto:
    """MediaPipe palm detection: the picture in the middle of a black square, 2,016 anchors.

    A code is centre x, y, width, height and seven points (x, y), in pixels of the 192 square
    relative to the anchor's centre. Answers `boxes` [n, 4], `scores` [n] and `points` [n, 7, 2]
    in pixels of the picture, not clipped, since the hand may reach out of it.
    """
    wrap = Wrapper(net)
    image = image_input(wrap)
    fitted = fit_into(wrap, image, PALM_192)
    before = wrap.node("Div", fitted.rest, wrap.ints(2))
    after = wrap.node("Sub", fitted.rest, before)
    none = wrap.ints(0, 0)
    pads = wrap.node("Concat", none, before, none, after, axis=0)
    wrap.feed_net(normalise(wrap, wrap.node("Pad", fitted.image, pads), PALM_192))

    raw = wrap.node("Squeeze", logits, wrap.ints(0))
    found = candidates(wrap, raw, logit(threshold))
    scores = wrap.node("Sigmoid", found.scores)
    code = wrap.node("Gather", wrap.node("Squeeze", codes, wrap.ints(0)), found.rows)
    points = wrap.node("Reshape", code, wrap.ints(-1, 9, 2))
    anchor = wrap.node("Gather", wrap.constant(palm_anchors()[:, None, :]), found.rows)
    # Undo the border (x first), then the scale.
    border = wrap.node("Cast", wrap.node("Gather", before, wrap.ints(1, 0)), to=TensorProto.FLOAT)
    where = wrap.node("Sub", wrap.node("Add", points, anchor), border)
    where = wrap.node("Mul", where, fitted.pixels_per_pixel)
    size = wrap.node("Squeeze", columns(wrap, points, 1, 2), wrap.ints(1))
    halves = wrap.node("Mul", wrap.node("Mul", size, fitted.pixels_per_pixel), wrap.floats(0.5))
    centre = wrap.node("Squeeze", columns(wrap, where, 0, 1), wrap.ints(1))
    boxes = from_centres(wrap, centre, halves)
    kept = suppress(wrap, boxes, scores, iou=0.3)
    marks = columns(wrap, where, 2, 9)
    wrap.output("boxes", wrap.node("Gather", boxes, kept), TensorProto.FLOAT, ["n", 4])
    wrap.output("scores", wrap.node("Gather", scores, kept), TensorProto.FLOAT, ["n"])
    wrap.output("points", wrap.node("Gather", marks, kept), TensorProto.FLOAT, ["n", 7, 2])
    return wrap.finish("palm")


def wrap_hand(net: onnx.ModelProto, points: str, presence: str, handedness: str) -> onnx.ModelProto:
    """MediaPipe hand landmarks, with the crop inside.

    Inputs are `image` and `crop`, float32 [2, 3]: the affine map from pixels of the 224 square to
    pixels of the picture, which turns the hand upright. Pixels outside repeat the edge. Answers
    `landmarks` [21, 3] in pixels of the picture (z scaled alike), `presence` and `handedness`
    [1], 0 to 1 (handedness towards 1 is a right hand in a picture that is not mirrored).
    """
    wrap = Wrapper(net)
    image = wrap.input("image", TensorProto.UINT8, ["height", "width", 3])
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
    """Bilinear samples of `image` on the square that `crop` maps: float NCHW, whole numbers.

    Everything is kept as one long row per coordinate and colour: operators that broadcast along a
    last axis of two or three are five times slower.
    """
    down, across = _sample_points(wrap, crop, want)
    shape = wrap.node("Shape", image)
    top, bottom, low = _neighbours(wrap, down, wrap.node("Gather", shape, wrap.ints(0)))
    width = wrap.node("Gather", shape, wrap.ints(1))
    left, right, aside = _neighbours(wrap, across, width)
    pixels = wrap.node("Reshape", image, wrap.ints(-1, 3))
    rows = []
    for line in (wrap.node("Mul", top, width), wrap.node("Mul", bottom, width)):
        one, two = (_colours_at(wrap, pixels, line, column) for column in (left, right))
        rows.append(_blend(wrap, one, two, aside))
    mixed = wrap.node("Round", _blend(wrap, rows[0], rows[1], low))
    return wrap.node("Reshape", mixed, wrap.ints(1, 3, want.height, want.width))


def _sample_points(wrap: Wrapper, crop: str, want: Preprocess) -> tuple[str, str]:
    """Float32 [pixels] each: y and x in the picture of every pixel of the square."""
    y, x = np.mgrid[0 : want.height, 0 : want.width]
    points = []
    for row in (1, 0):
        factors = wrap.node("Gather", crop, wrap.constant(np.array(row, np.int64)))
        along, upon, shift = wrap.split("Split", factors, wrap.ints(1, 1, 1), outputs=3, axis=0)
        columns_part = wrap.node("Mul", along, wrap.constant(x[0].astype(np.float32)[None, :]))
        rows_part = wrap.node("Mul", upon, wrap.constant(y[:, 0].astype(np.float32)[:, None]))
        place = wrap.node("Add", wrap.node("Add", rows_part, shift), columns_part)
        points.append(wrap.node("Reshape", place, wrap.ints(-1)))
    return points[0], points[1]


def _neighbours(wrap: Wrapper, place: str, length: str) -> tuple[str, str, str]:
    """The two whole numbers around each place, kept inside 0 to length-1, and the share."""
    last = wrap.node("Sub", length, wrap.ints(1))
    place = wrap.node("Max", place, wrap.floats(0))
    place = wrap.node("Min", place, wrap.node("Cast", last, to=TensorProto.FLOAT))
    near = wrap.node("Cast", place, to=TensorProto.INT64)
    share = wrap.node("Sub", place, wrap.node("Cast", near, to=TensorProto.FLOAT))
    return near, wrap.node("Min", wrap.node("Add", near, wrap.ints(1)), last), share


def _colours_at(wrap: Wrapper, pixels: str, row: str, column: str) -> str:
    """Float32 [3, n]."""
    found = wrap.node("Gather", pixels, wrap.node("Add", row, column))
    return wrap.node("Cast", wrap.node("Transpose", found, perm=[1, 0]), to=TensorProto.FLOAT)


def _blend(wrap: Wrapper, one: str, two: str, share: str) -> str:
    return wrap.node("Add", one, wrap.node("Mul", wrap.node("Sub", two, one), share))
