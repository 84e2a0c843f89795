"""Adding an ONNX file of somebody's own: checked, recognised, completed, written down.

Untrusted: size, external data, custom operators and nested graphs are looked at before anything
else. Only the finished model is run, once, to see that it runs.
"""

import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from ispine.models.catalogue import Catalogue, user_dir
from ispine.models.manifest import Manifest, Stage, Variant, write_manifest
from ispine.models.photos import sample_photo
from ispine.protocol.errors import ConfigError, ModelUnavailable

if TYPE_CHECKING:
    import onnx

MAX_BYTES = 512 * 1024 * 1024
MAX_LABELS = 100_000
TASKS = ("detect", "classify")
OWN = "own"
OLDEST_OPSET, NEWEST_OPSET = 13, 21
_DOMAINS = {"", "ai.onnx", "com.microsoft"}
_MAGIC_FIELDS = (b"\x08", b"\x12", b"\x3a", b"\x42")


def add_model(
    file: Path,
    task: str,
    labels: Path,
    name: str = "",
    licence: str = "unknown",
    model_dir: Path | None = None,
) -> Manifest:
    """Put a model into the user's folder; nothing is left behind when it is refused.

    Args:
        file: ONNX, without external data.
        task: `detect` (NanoDet, YOLOX or SSD layout) or `classify` (scores [1, classes]).
        labels: text, one label a line.
        name: model id, "" for the file's name.
        licence: of the weights.
        model_dir: where to put it, None for the user's folder.

    Raises:
        ModelUnavailable: not an ONNX model of a known layout, or it does not run.
        ConfigError: a wrong task, name or folder; the extra `models` is missing.
    """
    if task not in TASKS:
        raise ConfigError(f"expected --task {' or '.join(TASKS)}; got {task!r}")
    model_id = _id(name or re.sub(r"[^A-Za-z0-9_-]+", "-", file.stem)[:64], model_dir)
    names = _labels(labels)
    data = _completed(file, task, len(names))
    _try_out(data, file.name)
    stage = Stage(file=f"{task}-{OWN}.onnx", sha256=sha256(data).hexdigest(), size_bytes=len(data))
    manifest = Manifest(
        id=model_id,
        capability=task,
        label_set=f"{model_id}-labels",
        licence=licence,
        source=file.name,
        input="image uint8 [height, width, 3] RGB",
        variants=(Variant(name=OWN, quality=1.0, stages={task: stage}),),
    )
    _write(manifest, data, names, model_dir or user_dir())
    return manifest


def _id(model_id: str, model_dir: Path | None) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", model_id):
        raise ConfigError(
            f"expected a name of 1 to 64 letters, digits, '_' or '-'; got {model_id[:70]!r};"
            " choose one with --name"
        )
    if any(model.id == model_id for model in Catalogue.default(model_dir)):
        raise ConfigError(
            f"expected a name that is free; there is a model {model_id!r} already;"
            " choose another one with --name"
        )
    return model_id


def _labels(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"expected a text file with labels at {path}; {error}; write one label a line"
        ) from error
    names = [line.strip()[:200] for line in text.splitlines() if line.strip()]
    if not 0 < len(names) <= MAX_LABELS:
        raise ConfigError(
            f"expected 1 to {MAX_LABELS:,} labels in {path}, one a line; got {len(names):,}"
        )
    return names


def _completed(file: Path, task: str, classes: int) -> bytes:
    model = read_model(file)
    from ispine.models.recognise import complete

    try:
        return bytes(complete(model, task, classes).SerializeToString())
    except ModelUnavailable:
        raise
    except Exception as error:  # the checker and shape inference raise unrelated classes
        raise _refused(file.name, "a graph that can be completed", error) from error


def read_model(path: Path) -> "onnx.ModelProto":
    """Read and check an ONNX file; its opset is raised where it is old.

    Raises:
        ModelUnavailable: missing, too large, not ONNX, or not safe.
        ConfigError: the extra `models` is missing.
    """
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(
            f"expected the package onnx; {error}; install it with: pip install 'ispine[models]'"
        ) from error
    data = _bytes(path)
    try:
        model = onnx.load_model_from_string(data)
        refuse_unsafe(model, path.name)
        onnx.checker.check_model(model)
        return _with_opset(model)
    except ModelUnavailable:
        raise
    except Exception as error:  # protobuf, checker and converter raise unrelated classes
        raise _refused(path.name, "an ONNX model", error) from error


def _bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ModelUnavailable(
                f"expected a model of at most {MAX_BYTES:,} bytes; {path.name} has {size:,};"
                " use a smaller or a quantised one"
            )
        with path.open("rb") as file:
            if not file.read(1).startswith(_MAGIC_FIELDS):
                raise ModelUnavailable(
                    f"expected an ONNX model in {path.name}; it does not begin like one"
                    f" ({size:,} bytes); export it with your framework's ONNX exporter"
                )
            file.seek(0)
            return file.read(MAX_BYTES)
    except OSError as error:
        raise ModelUnavailable(
            f"expected an ONNX file at {path}; {error.strerror}; check the path"
        ) from error


def _refused(name: str, expected: str, error: BaseException) -> ModelUnavailable:
    return ModelUnavailable(
        f"expected {expected} in {name}; {type(error).__name__}: {str(error)[:160]};"
        " export it again with your framework's ONNX exporter"
    )


def refuse_unsafe(model: "onnx.ModelProto", name: str) -> None:
    """Refuse what would read other files or run code that onnxruntime does not bring along.

    Raises:
        ModelUnavailable: no nodes, external data, custom operators, or functions of its own.
    """
    if not model.graph.node or not model.opset_import:
        raise ModelUnavailable(f"expected an ONNX model in {name}; it holds no graph")
    if model.functions:
        raise ModelUnavailable(
            f"expected standard operators in {name}; it defines functions; export it inlined"
        )
    for graph in _graphs(model.graph):
        if any(tensor.external_data or tensor.data_location for tensor in _tensors(graph)):
            raise ModelUnavailable(
                f"expected all weights inside {name}; it refers to other files; save it as one file"
            )
        odd = sorted({node.domain for node in graph.node} - _DOMAINS)
        if odd:
            raise ModelUnavailable(
                f"expected standard operators in {name}; it uses those of {odd[0][:60]!r};"
                " export it without custom operators"
            )


def _graphs(graph: "onnx.GraphProto") -> "Iterator[onnx.GraphProto]":
    """The graph and those inside its loops and branches."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                waiting.extend(attribute.graphs)
                if attribute.HasField("g"):
                    waiting.append(attribute.g)


def _tensors(graph: "onnx.GraphProto") -> "Iterator[onnx.TensorProto]":
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t


def _with_opset(model: "onnx.ModelProto") -> "onnx.ModelProto":
    """The model with an opset that the completing nodes are written for."""
    import onnx

    opset = next((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), 0)
    if OLDEST_OPSET <= opset <= NEWEST_OPSET:
        return model
    return onnx.version_converter.convert_version(model, 17)


def _try_out(data: bytes, name: str) -> None:
    """Run the finished model once on a photograph of the package."""
    from ispine.models.images import decode_rgb
    from ispine.models.runtime import Session
    from ispine.protocol.errors import ExecutionFailed

    try:
        Session(data, name).run({"image": decode_rgb(sample_photo())})
    except ExecutionFailed as error:
        raise ModelUnavailable(str(error)) from error


def _write(manifest: Manifest, data: bytes, names: list[str], target: Path) -> None:
    """Write the folder beside its place, then move it there in one step."""
    stage = next(iter(manifest.variants[0].stages.values()))
    try:
        target.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=".adding-", dir=target))
        try:
            (folder / stage.file).write_bytes(data)
            (folder / "labels.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
            write_manifest(folder, manifest)
            folder.chmod(0o755)
            folder.rename(target / manifest.id)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise ConfigError(
            f"expected to write {len(data):,} bytes to {target}; {error.strerror};"
            " free space there or name another folder with ISPINE_MODELS_DIR"
        ) from error
