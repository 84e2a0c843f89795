"""Adding an ONNX file of somebody's own: its layout is recognised, the graph completed.

Untrusted: size, external data and custom operators are checked before anything else, and nothing
of the file is run here.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ispine.models.catalogue import user_dir
from ispine.models.manifest import Manifest, Stage, Variant, write_manifest
from ispine.protocol.errors import ConfigError, ModelUnavailable

if TYPE_CHECKING:
    import onnx

MAX_BYTES = 512 * 1024 * 1024
TASKS = ("detect", "classify")
_STANDARD_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}


def add_model(
    file: Path,
    task: str,
    labels: Path,
    name: str = "",
    licence: str = "unknown",
    model_dir: Path | None = None,
) -> Manifest:
    """Put a model into the user's folder.

    Args:
        file: ONNX, without external data.
        task: `detect` (NanoDet, YOLOX or SSD layout) or `classify` (logits [1, classes]).
        labels: text, one label a line.
        name: model id, "" for the file's name.
        licence: of the weights.
        model_dir: where to put it, None for the user's folder.

    Raises:
        ModelUnavailable: not an ONNX model of a known layout.
        ConfigError: a wrong task, name or folder; the extra `models` is missing.
    """
    if task not in TASKS:
        raise ConfigError(f"expected --task {' or '.join(TASKS)}; got {task!r}")
    model_id = name or re.sub(r"[^A-Za-z0-9_-]+", "-", file.stem)[:64]
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", model_id):
        raise ConfigError(f"expected a name of letters, digits, '_' and '-'; got {model_id!r}")
    names = _labels(labels)
    data = _finished(_load(file), task, len(names))
    folder = (model_dir or user_dir()) / model_id
    digest = hashlib.sha256(data).hexdigest()
    stage = Stage(file=f"{task}.onnx", sha256=digest, size_bytes=len(data))
    manifest = Manifest(
        id=model_id,
        capability=task,
        label_set=f"{model_id}-labels",
        licence=licence,
        source=file.name,
        input="image uint8 [height, width, 3] RGB",
        variants=(Variant(name="own", quality=1.0, stages={task: stage}),),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / stage.file).write_bytes(data)
        (folder / "labels.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
        write_manifest(folder, manifest)
    except OSError as error:
        raise ConfigError(f"expected to write to {folder}; {error.strerror}") from error
    return manifest


def _labels(path: Path) -> list[str]:
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected a text file with labels at {path}; {error}") from error
    names = [name for name in names if name]
    if not names:
        raise ConfigError(f"expected one label a line in {path}; it is empty")
    return names


def _load(path: Path) -> "onnx.ModelProto":
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(
            f"expected the package onnx; {error}; install it with: pip install 'ispine[models]'"
        ) from error
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ModelUnavailable(
                f"expected a model of at most {MAX_BYTES:,} bytes; {path.name} has {size:,}"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ModelUnavailable(f"expected an ONNX file at {path}; {error.strerror}") from error
    try:
        model = onnx.load_model_from_string(data)
        is_model = bool(model.graph.node and model.opset_import)
        if is_model:
            onnx.checker.check_model(model)
    except Exception as error:  # protobuf and the checker raise classes without a common base
        raise ModelUnavailable(
            f"expected an ONNX model in {path.name}; {type(error).__name__}: {str(error)[:120]}"
        ) from error
    if not is_model:
        raise ModelUnavailable(f"expected an ONNX model in {path.name}; it holds no graph")
    _refuse_unsafe(model, path.name)
    return model


def _refuse_unsafe(model: "onnx.ModelProto", name: str) -> None:
    if any(tensor.external_data for tensor in model.graph.initializer):
        raise ModelUnavailable(f"expected all weights inside {name}; it refers to other files")
    odd = {node.domain for node in model.graph.node} - _STANDARD_DOMAINS
    if odd:
        raise ModelUnavailable(f"expected standard operators in {name}; it uses {sorted(odd)}")


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(int(dim.dim_value) for dim in value.type.tensor_type.shape.dim)


def _finished(model: "onnx.ModelProto", task: str, classes: int) -> bytes:
    """The file with pre- and post-processing in the graph, or as it is when it has them."""
    inputs = list(model.graph.input)
    from onnx import TensorProto

    if len(inputs) == 1 and inputs[0].type.tensor_type.elem_type == TensorProto.UINT8:
        wanted = {"boxes", "labels", "scores"} if task == "detect" else {"labels", "scores"}
        if wanted <= {output.name for output in model.graph.output}:
            return bytes(model.SerializeToString())
    if len(inputs) != 1 or len(_shape(inputs[0])) != 4:
        raise ModelUnavailable(
            f"expected one image input of four axes; got {[_shape(i) for i in inputs]}"
        )
    wrapped = _wrap(model, task, classes)
    return bytes(wrapped.SerializeToString())


def _wrap(model: "onnx.ModelProto", task: str, classes: int) -> "onnx.ModelProto":
    from ispine.models import layouts
    from ispine.models.graphs import Preprocess

    shape = _shape(model.graph.input[0])
    is_nchw = shape[1] == 3
    height, width = (shape[2], shape[3]) if is_nchw else (shape[1], shape[2])
    if 3 not in (shape[1], shape[3]) or min(height, width) < 16:
        raise ModelUnavailable(f"expected an input [1, 3, H, W] or [1, H, W, 3]; got {shape}")
    outputs = [(output.name, _shape(output)) for output in model.graph.output]
    if task == "classify":
        name = _only(outputs, lambda s: len(s) == 2 and s[1] == classes, "logits [1, classes]")
        mean, deviation = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
        want = Preprocess(width, height, mean, deviation, is_nchw=is_nchw)
        return layouts.wrap_classifier(model, want, name, top=min(5, classes))
    if len(outputs) == 1 and outputs[0][1][-1] == 5 + classes:
        raw = Preprocess(width, height, (0.0,) * 3, (1.0,) * 3, is_bgr=True, is_nchw=is_nchw)
        return layouts.wrap_yolox(model, raw, outputs[0][0])
    scores = sorted((o for o in outputs if o[1][-1] == classes), key=lambda o: -o[1][1])
    boxes = sorted((o for o in outputs if o not in scores), key=lambda o: -o[1][1])
    if len(scores) == len(boxes) == 3:
        want = Preprocess(
            width,
            height,
            layouts.NANODET_416.mean,
            layouts.NANODET_416.deviation,
            is_bgr=True,
            is_nchw=is_nchw,
        )
        return layouts.wrap_nanodet(model, want, [o[0] for o in scores], [o[0] for o in boxes])
    if {o[1][-1] for o in outputs} == {4, 1 + classes} and (width, height) == (300, 300):
        logits = _only(outputs, lambda s: s[-1] == 1 + classes, "class logits")
        codes = _only(outputs, lambda s: s[-1] == 4, "box codes")
        want = Preprocess(width, height, (127.5,) * 3, (127.5,) * 3, is_nchw=is_nchw)
        return layouts.wrap_ssd(model, want, logits, codes)
    raise ModelUnavailable(
        f"expected the outputs of NanoDet, YOLOX or SSD for {classes} labels;"
        f" got {[shape for _, shape in outputs]}; is the label file the right one?"
    )


def _only(outputs: Sequence[tuple[str, tuple[int, ...]]], fits: Any, what: str) -> str:
    found = [name for name, shape in outputs if fits(shape)]
    if len(found) != 1:
        raise ModelUnavailable(
            f"expected one output with {what}; got {[shape for _, shape in outputs]};"
            " is the label file the right one?"
        )
    return found[0]
