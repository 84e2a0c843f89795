"""Pre- and post-processing as ONNX nodes around a bare net.

Theory of operation. A net as it comes from its makers wants a float tensor of a fixed size in its
own colour order, and answers raw tensors that only its own code can read. `Wrapper` puts nodes in
front and behind, so that every file of the catalogue speaks one contract on every runtime:

    image     uint8 [height, width, 3], RGB, any size           in
    boxes     float32 [n, 4], left top right bottom in pixels of that image, clipped to it
    labels    int64 [n], index into the label set
    scores    float32 [n], best first

(classifiers: labels and scores of the best five; palms and hands: see `wrap_palm`, `wrap_hand`).
Only operators of the standard domain that onnxruntime has on CPU and in wasm are used. The script
`models/tools/build_graphs.py` and `ispine models add` both use this module; needs `onnx`.

The resize samples bilinearly without antialiasing, so its cost depends on the size of the net's
input and not on that of the picture; large pictures are reduced while decoding (`images.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

MAX_BOXES = 100

Array = NDArray[np.float32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Preprocess:
    """What a net wants to see.

    Attributes:
        width: of its input in pixels.
        height: likewise.
        mean: subtracted, per channel of the net's own order.
        deviation: divided by, likewise.
        is_bgr: channel order of the net.
        is_nchw: layout of the net.
    """

    width: int
    height: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    is_bgr: bool = False
    is_nchw: bool = True


class Wrapper:
    """Builds nodes around the graph of one net.

    Node and tensor names get a prefix that the net cannot contain, so nothing collides.
    """

    def __init__(self, net: onnx.ModelProto) -> None:
        self._net = net
        weights = {tensor.name for tensor in net.graph.initializer}
        self._net_input = next(v.name for v in net.graph.input if v.name not in weights)
        self._before: list[onnx.NodeProto] = []
        self._after: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._nodes = self._before
        self._count = 0
        self.opset = next(
            entry.version for entry in net.opset_import if entry.domain in ("", "ai.onnx")
        )

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the name of that output."""
        return self.split(operator, *inputs, **attributes)[0]

    def split(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node with several outputs."""
        self._count += 1
        names = [f"ispine/{self._count}/{index}" for index in range(outputs)]
        self._nodes.append(
            helper.make_node(
                operator, inputs, names, name=f"ispine/{self._count}/{operator}", **attributes
            )
        )
        return names

    def join(self, values: Sequence[str], axis: int) -> str:
        """Several tensors as one; a single one as it is."""
        return values[0] if len(values) == 1 else self.node("Concat", *values, axis=axis)

    def constant(self, value: Array) -> str:
        """Add an initializer."""
        self._count += 1
        name = f"ispine/{self._count}/constant"
        self._constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def floats(self, *values: float) -> str:
        """A constant float32 vector."""
        return self.constant(np.array(values, np.float32))

    def ints(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.constant(np.array(values, np.int64))

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        """Declare an input of the finished graph."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, name: str, value: str, kind: int, shape: Sequence[int | str]) -> None:
        """Declare an output of the finished graph."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"ispine/{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, kind, list(shape)))

    def feed_net(self, value: str) -> None:
        """Connect `value` to the net's only input; nodes added later come behind the net."""
        self._before.append(
            helper.make_node("Identity", [value], [self._net_input], name="ispine/in")
        )
        self._nodes = self._after

    def finish(self, name: str) -> onnx.ModelProto:
        """The checked model."""
        net = self._net.graph
        graph = helper.make_graph(
            [*self._before, *net.node, *self._after],
            name,
            self._inputs,
            self._outputs,
            [*net.initializer, *self._constants],
        )
        used = {node.domain for node in graph.node} | {""}
        model = helper.make_model(
            graph,
            opset_imports=[entry for entry in self._net.opset_import if entry.domain in used],
            ir_version=self._net.ir_version,
            producer_name="ispine",
        )
        onnx.checker.check_model(model)
        return model

    def max_over(self, value: str, axis: int) -> str:
        """ReduceMax over one axis, in the form of the net's opset."""
        if self.opset >= 18:
            return self.node("ReduceMax", value, self.ints(axis), keepdims=0)
        return self.node("ReduceMax", value, axes=[axis], keepdims=0)


def image_input(wrap: Wrapper) -> str:
    """Declare `image` and return it as float32 [1, 3, height, width], RGB, 0 to 255."""
    image = wrap.input("image", TensorProto.UINT8, ["height", "width", 3])
    batched = wrap.node("Unsqueeze", image, wrap.ints(0))
    planes = wrap.node("Transpose", batched, perm=[0, 3, 1, 2])
    return wrap.node("Cast", planes, to=TensorProto.FLOAT)


def resize(wrap: Wrapper, image: str, sizes: str) -> str:
    """Bilinear resize of a float NCHW image to the int64 vector `sizes`, half-pixel centres.

    On floats with planes of their own: 1.7 times as fast in onnxruntime as on interleaved bytes.
    """
    mode = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return wrap.node("Resize", image, "", "", sizes, **mode)


def normalise(wrap: Wrapper, image: str, want: Preprocess) -> str:
    """Float NCHW RGB of the net's size to the tensor that the net wants.

    Colour order, mean and deviation are one convolution of 1 x 1, three to ten times as fast as
    operators that broadcast along the colours; where all colours are alike, two plain operators.
    """
    scale = 1 / np.array(want.deviation, np.float64)
    shift = -np.array(want.mean, np.float64) * scale
    if np.all(scale == scale[0]) and np.all(shift == shift[0]) and not want.is_bgr:
        scaled = wrap.node("Mul", image, scalar(wrap, float(scale[0])))
        image = wrap.node("Add", scaled, scalar(wrap, float(shift[0])))
    else:
        mix = np.diag(scale).astype(np.float32)
        mix = mix[:, ::-1] if want.is_bgr else mix
        weights = wrap.constant(np.ascontiguousarray(mix)[:, :, None, None])
        image = wrap.node("Conv", image, weights, wrap.constant(shift.astype(np.float32)))
    return image if want.is_nchw else wrap.node("Transpose", image, perm=[0, 2, 3, 1])


def stretched(wrap: Wrapper, want: Preprocess) -> str:
    """The whole picture, stretched to the net's size; returns the picture as it was."""
    image = image_input(wrap)
    small = resize(wrap, image, wrap.ints(1, 3, want.height, want.width))
    wrap.feed_net(normalise(wrap, small, want))
    return image


@dataclass(frozen=True, slots=True)
class Fitted:
    """A picture scaled to fit into the net's input, its shape kept.

    Attributes:
        image: float NCHW.
        size: float32 [2], its height and width.
        rest: int64 [2], rows and columns of the net's input that it leaves free.
        pixels_per_pixel: float32 [1], pixels of the picture for one of the scaled one.
    """

    image: str
    size: str
    rest: str
    pixels_per_pixel: str


def fit_into(wrap: Wrapper, image: str, want: Preprocess) -> Fitted:
    """Scale a float NCHW picture so that it just fits."""
    sides = wrap.node("Gather", wrap.node("Shape", image), wrap.ints(2, 3))
    sides = wrap.node("Cast", sides, to=TensorProto.FLOAT)
    ratios = wrap.node("Div", sides, wrap.floats(want.height, want.width))
    ratio = wrap.node("ReduceMax", ratios, keepdims=1)
    size = wrap.node("Round", wrap.node("Div", sides, ratio))
    size = wrap.node("Max", size, wrap.floats(1))
    whole = wrap.node("Cast", size, to=TensorProto.INT64)
    scaled = resize(wrap, image, wrap.node("Concat", wrap.ints(1, 3), whole, axis=0))
    rest = wrap.node("Sub", wrap.ints(want.height, want.width), whole)
    return Fitted(scaled, size, rest, ratio)


def picture_size(wrap: Wrapper, image: str) -> str:
    """Float32 [2]: width and height of an NCHW image."""
    shape = wrap.node("Shape", image)
    return wrap.node("Cast", wrap.node("Gather", shape, wrap.ints(3, 2)), to=TensorProto.FLOAT)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of a detector above its threshold, not yet suppressed.

    Attributes:
        rows: int64 [k], which rows of the net's output they are.
        scores: float32 [k].
        labels: int64 [k].
    """

    rows: str
    scores: str
    labels: str


def candidates(wrap: Wrapper, scores: str, threshold: float) -> Candidates:
    """Rows of `scores` [n, classes] whose best class is above the threshold, one label a row."""
    best = wrap.max_over(scores, 1)
    above = wrap.node("Greater", best, scalar(wrap, threshold))
    rows = wrap.node("Squeeze", wrap.node("NonZero", above), wrap.ints(0))
    labels = wrap.node("ArgMax", wrap.node("Gather", scores, rows), axis=1, keepdims=0)
    return Candidates(rows, wrap.node("Gather", best, rows), labels)


def suppress(wrap: Wrapper, boxes: str, scores: str, iou: float) -> str:
    """Greedy suppression of boxes [k, 4] by scores [k]; int64 indices, best first."""
    kept = wrap.node(
        "NonMaxSuppression",
        wrap.node("Unsqueeze", boxes, wrap.ints(0)),
        wrap.node("Unsqueeze", scores, wrap.ints(0, 1)),
        wrap.ints(MAX_BOXES),
        wrap.floats(iou),
    )
    return wrap.node("Squeeze", columns(wrap, kept, 2, 3), wrap.ints(1))


def columns(wrap: Wrapper, value: str, start: int, end: int) -> str:
    """Columns start to end-1 along axis 1."""
    return wrap.node("Slice", value, wrap.ints(start), wrap.ints(end), wrap.ints(1))


def emit_detections(wrap: Wrapper, boxes: str, found: Candidates, image: str, iou: float) -> None:
    """Suppress within each class and declare the outputs.

    Boxes [k, 4] are relative to the picture, 0 to 1. For the suppression, the boxes of each class
    are moved to a place of their own, so that one pass over all of them acts within each class.
    """
    bounded = wrap.node("Clip", boxes, scalar(wrap, -1.0), scalar(wrap, 2.0))
    classes = wrap.node("Cast", found.labels, to=TensorProto.FLOAT)
    offset = wrap.node("Unsqueeze", wrap.node("Mul", classes, wrap.floats(4.0)), wrap.ints(1))
    kept = suppress(wrap, wrap.node("Add", bounded, offset), found.scores, iou)
    size = picture_size(wrap, image)
    limits = wrap.node("Concat", size, size, axis=0)
    inside = wrap.node("Clip", boxes, scalar(wrap, 0.0), scalar(wrap, 1.0))
    pixels = wrap.node("Mul", wrap.node("Gather", inside, kept), limits)
    wrap.output("boxes", pixels, TensorProto.FLOAT, ["n", 4])
    wrap.output("labels", wrap.node("Gather", found.labels, kept), TensorProto.INT64, ["n"])
    wrap.output("scores", wrap.node("Gather", found.scores, kept), TensorProto.FLOAT, ["n"])


def scalar(wrap: Wrapper, value: float) -> str:
    """A constant float32 scalar."""
    return wrap.constant(np.array(value, np.float32))


def from_centres(wrap: Wrapper, centres: str, halves: str) -> str:
    """Corner boxes [k, 4] from centres [k, 2] and half sizes [k, 2]."""
    return wrap.node(
        "Concat",
        wrap.node("Sub", centres, halves),
        wrap.node("Add", centres, halves),
        axis=1,
    )


@dataclass(frozen=True, slots=True)
class Cells:
    """The grid of an anchor-free detector, level after level, row after row.

    Attributes:
        centres: float32 [n, 2], x and y in pixels of the net's input.
        strides: float32 [n, 1], likewise.
    """

    centres: NDArray[np.float32]
    strides: NDArray[np.float32]

    @property
    def corners(self) -> NDArray[np.float32]:
        """Top left corners, float32 [n, 2]."""
        return np.asarray(self.centres - self.strides / 2, np.float32)


def cell_centres(width: int, height: int, strides: Sequence[int]) -> Cells:
    """The cells of all levels; a level has as many as fit, the last one cut off."""
    centres, sizes = [], []
    for stride in strides:
        y, x = np.mgrid[0 : -(-height // stride), 0 : -(-width // stride)]
        centres.append((np.stack([x.ravel(), y.ravel()], axis=1) + 0.5) * stride)
        sizes.append(np.full((x.size, 1), stride))
    return Cells(
        np.concatenate(centres).astype(np.float32), np.concatenate(sizes).astype(np.float32)
    )


def logit(share: float) -> float:
    """The number whose sigmoid is `share`."""
    return float(np.log(share / (1 - share)))
