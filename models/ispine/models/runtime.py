"""ONNX sessions: providers, threads, and typed errors for files that cannot run."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ispine.protocol.errors import ExecutionFailed, ModelUnavailable

if TYPE_CHECKING:
    from numpy.typing import NDArray

CPU = "CPUExecutionProvider"
PREFERENCE = (
    "CUDAExecutionProvider",
    "CoreMLExecutionProvider",
    "DmlExecutionProvider",
    "XnnpackExecutionProvider",
    CPU,
)


def available_providers() -> tuple[str, ...]:
    """Execution providers that onnxruntime offers here, the preferred one first."""
    try:
        import onnxruntime
    except ImportError:
        return ()
    offered = set(onnxruntime.get_available_providers())
    return tuple(name for name in PREFERENCE if name in offered)


def check_digest(path: Path, sha256: str) -> bytes:
    """The bytes of a model file whose digest is the expected one.

    Raises:
        ModelUnavailable: it is missing, or another file.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelUnavailable(
            f"expected the model file {path.name}; {error.strerror}; install the model again"
        ) from error
    seen = hashlib.sha256(data).hexdigest()
    if seen != sha256:
        raise ModelUnavailable(
            f"expected {path.name} with SHA-256 {sha256[:12]}…; got {seen[:12]}…;"
            " the file is damaged or another one; install the model again"
        )
    return data


class Session:
    """One loaded graph; safe for several threads at once.

    Args:
        data: the ONNX file.
        name: for messages.
        threads: of one run.
        providers: in order of preference.
    """

    def __init__(
        self, data: bytes, name: str, *, threads: int = 1, providers: Sequence[str] = (CPU,)
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # A spinning pool burns a core between frames.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = onnxruntime.InferenceSession(
                data, options, providers=list(providers)
            )
        except Exception as error:
            raise ModelUnavailable(
                f"expected {name} to load; {type(error).__name__}: {str(error)[:160]};"
                " the file is no ONNX model that runs here"
            ) from error
        self._name = name
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, "NDArray[Any]"]) -> dict[str, "NDArray[Any]"]:
        """One run; every output by name.

        Raises:
            ExecutionFailed: onnxruntime raised.
        """
        try:
            answers = self._session.run(self._outputs, dict(inputs))
        except Exception as error:
            raise ExecutionFailed(
                f"expected {self._name} to run; {type(error).__name__}: {str(error)[:160]}"
            ) from error
        return dict(zip(self._outputs, answers, strict=True))
