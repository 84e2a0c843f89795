"""What kind of net an ONNX file holds, from the shapes of its inputs and outputs.

Nothing of the file is run. Where shapes cannot tell (colour order, normalisation), the families'
own usual settings are taken: NanoDet and YOLOX see BGR, SSD and classifiers RGB; YOLOX sees 0 to
255; a classifier with channels first sees ImageNet mean and deviation, with channels last -1 to 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from ispine.models import layouts
from ispine.models.graphs import Preprocess
from ispine.protocol.errors import ModelUnavailable

IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_DEVIATION = (58.395, 57.12, 57.375)
HALF = (127.5, 127.5, 127.5)
LEAST_SIDE = 16
MOST_BINS = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """Name and shape of an input or output; an axis of unknown length is 0."""

    name: str
    shape: tuple[int, ...]

    @property
    def last(self) -> int:
        """Length of the last axis, 0 for a scalar."""
        return self.shape[-1] if self.shape else 0


@dataclass(frozen=True, slots=True)
class Net:
    """A bare net, as far as recognising it goes."""

    model: onnx.ModelProto
    width: int
    height: int
    is_nchw: bool
    outputs: tuple[Tensor, ...]
    classes: int

    def makes(self, output: str) -> str:
        """The operator that makes an output."""
        found = (node.op_type for node in self.model.graph.node if output in node.output)
        return next(found, "")

    def preprocess(
        self,
        mean: tuple[float, float, float],
        deviation: tuple[float, float, float],
        *,
        is_bgr: bool = False,
    ) -> Preprocess:
        """Its input, with these settings."""
        return Preprocess(self.width, self.height, mean, deviation, is_bgr, self.is_nchw)


def complete(model: onnx.ModelProto, task: str, classes: int) -> onnx.ModelProto:
    """The model with pre- and post-processing inside; as it is where it has them already.

    Args:
        model: checked, all weights inside.
        task: `detect` or `classify`.
        classes: number of labels.

    Raises:
        ModelUnavailable: not a layout that is known.
    """
    if _is_complete(model, task):
        return model
    free_names(model)
    net = read_net(model, classes)
    tries = _DETECTORS if task == "detect" else (_classifier,)
    for attempt in tries:
        wrapped = attempt(net)
        if wrapped is not None:
            return wrapped
    wanted = "NanoDet, YOLOX or SSD" if task == "detect" else "a classifier"
    raise ModelUnavailable(
        f"expected the outputs of {wanted} for {classes} labels;"
        f" got {', '.join(f'{o.name[:40]} {list(o.shape)}' for o in net.outputs[:8])};"
        " is it the right label file?"
    )


def _is_complete(model: onnx.ModelProto, task: str) -> bool:
    inputs = [value.name for value in _true_inputs(model)]
    outputs = {output.name for output in model.graph.output}
    wanted = {"labels", "scores"} | ({"boxes"} if task == "detect" else set())
    return inputs == ["image"] and outputs == wanted


def free_names(model: onnx.ModelProto) -> None:
    """Rename the net's own tensors that are called like those of the finished graph; in place."""
    taken = {name: f"net/{name}" for name in ("image", "boxes", "labels", "scores")}
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for tensor in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
            tensor.name = taken.get(tensor.name, tensor.name)
        for node in graph.node:
            node.input[:] = [taken.get(name, name) for name in node.input]
            node.output[:] = [taken.get(name, name) for name in node.output]
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _true_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs without the weights, which old files list there too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    return Tensor(value.name, tuple(int(d.dim_value) for d in value.type.tensor_type.shape.dim))


def read_net(model: onnx.ModelProto, classes: int) -> Net:
    """Input size, layout and output shapes of a bare net.

    Raises:
        ModelUnavailable: not one image of known size in.
    """
    inputs = [_tensor(value) for value in _true_inputs(model)]
    shape = inputs[0].shape if len(inputs) == 1 else ()
    is_nchw = len(shape) == 4 and shape[1] == 3
    is_nhwc = len(shape) == 4 and shape[3] == 3
    height, width = (shape[2:4] if is_nchw else shape[1:3]) if is_nchw or is_nhwc else (0, 0)
    if min(height, width) < LEAST_SIDE:
        raise ModelUnavailable(
            "expected one input [1, 3, height, width] or [1, height, width, 3] of fixed size; got"
            f" {', '.join(str(list(tensor.shape)) for tensor in inputs[:4]) or 'none'};"
            " export the model with fixed sizes"
        )
    outputs = tuple(_tensor(value) for value in _with_shapes(model).graph.output)
    return Net(model, width, height, is_nchw, outputs, classes)


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with output shapes filled in, where the exporter left them open."""
    if all(len(_tensor(value).shape) > 1 for value in model.graph.output):
        return model
    return onnx.shape_inference.infer_shapes(model)


def _nanodet_levels(net: Net) -> onnx.ModelProto | None:
    """Three class and three box outputs, one pair a level."""
    if len(net.outputs) != 6 or any(len(output.shape) != 3 for output in net.outputs):
        return None
    scores = [output for output in net.outputs if output.last == net.classes]
    boxes = [output for output in net.outputs if output.last != net.classes]
    widths = {output.last for output in boxes}
    if len(scores) != 3 or len(widths) != 1 or min(widths) % 4 or min(widths) > 4 * MOST_BINS:
        return None
    names = [_finest_first(group) for group in (scores, boxes)]
    bins = min(widths) // 4
    want = _nanodet_input(net)
    return layouts.wrap_nanodet(net.model, want, names[0], names[1], net.classes, bins)


def _finest_first(tensors: list[Tensor]) -> list[str]:
    return [tensor.name for tensor in sorted(tensors, key=lambda tensor: -tensor.shape[1])]


def _nanodet_input(net: Net) -> Preprocess:
    usual = layouts.NANODET_416
    return net.preprocess(usual.mean, usual.deviation, is_bgr=True)


def _nanodet_joined(net: Net) -> onnx.ModelProto | None:
    """One output [1, cells, classes + 4 * bins], the usual export."""
    if len(net.outputs) != 1 or len(net.outputs[0].shape) != 3:
        return None
    output = net.outputs[0]
    rest = output.last - net.classes
    if rest <= 4 or rest % 4 or rest > 4 * MOST_BINS:
        return None
    want = _nanodet_input(net)
    if output.shape[1] not in layouts.nanodet_counts(want):
        return None
    return layouts.wrap_nanodet(net.model, want, [output.name], [], net.classes, rest // 4)


def _yolox(net: Net) -> onnx.ModelProto | None:
    """One output [1, cells, 5 + classes]; decoded inside when the net has an exponential."""
    if len(net.outputs) != 1 or len(net.outputs[0].shape) != 3:
        return None
    output = net.outputs[0]
    want = net.preprocess((0.0,) * 3, (1.0,) * 3, is_bgr=True)
    cells = len(layouts.yolox_cells(want).centres)
    if output.last != 5 + net.classes or output.shape[1] not in (0, cells):
        return None
    is_decoded = any(node.op_type == "Exp" for node in net.model.graph.node)
    return layouts.wrap_yolox(net.model, want, output.name, is_decoded=is_decoded)


def _ssd(net: Net) -> onnx.ModelProto | None:
    """Box codes and class scores for the 1,917 anchors of a 300 pixel SSD."""
    rows = len(layouts.ssd_anchors())
    fits = [output for output in net.outputs if rows in output.shape]
    boxes = [output for output in fits if output.last == 4]
    scores = [output for output in fits if output.last == 1 + net.classes]
    if (net.width, net.height) != (300, 300) or len(boxes) != 1 or len(scores) != 1:
        return None
    is_logit = net.makes(scores[0].name) not in ("Sigmoid", "Softmax")
    want = net.preprocess(HALF, HALF)
    return layouts.wrap_ssd(net.model, want, scores[0].name, boxes[0].name, is_logit=is_logit)


def _classifier(net: Net) -> onnx.ModelProto | None:
    """One output [1, classes]."""
    if len(net.outputs) != 1 or len(net.outputs[0].shape) != 2:
        return None
    output = net.outputs[0]
    if output.last != net.classes:
        return None
    mean, deviation = (IMAGENET_MEAN, IMAGENET_DEVIATION) if net.is_nchw else (HALF, HALF)
    return layouts.wrap_classifier(
        net.model,
        net.preprocess(mean, deviation),
        output.name,
        min(layouts.BEST, net.classes),
        is_logit=net.makes(output.name) != "Softmax",
    )


_DETECTORS: tuple[Callable[[Net], onnx.ModelProto | None], ...] = (
    _nanodet_levels,
    _yolox,
    _nanodet_joined,
    _ssd,
)
