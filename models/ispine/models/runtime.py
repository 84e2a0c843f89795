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
    """Execution providers of iSpine's list that onnxruntime offers here, preferred one first."""
    offered = offered_providers()
    return tuple(name for name in PREFERENCE if name in offered)


def offered_providers() -> frozenset[str]:
    """Every execution provider that onnxruntime offers here; none without onnxruntime."""
    try:
        import onnxruntime
    except ImportError:
        return frozenset()
    return frozenset(onnxruntime.get_available_providers())


def candidate_providers(wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Providers worth a try beside the CPU: those the owner wants, else those of the list."""
    if wanted is None:
        return tuple(name for name in available_providers() if name != CPU)
    offered = offered_providers()
    return tuple(name for name in wanted if name in offered and name != CPU)


def check_digest(path: Path, sha256: str) -> bytes:
    """The bytes of a model file whose digest is the expected one.

    Raises:
        ModelUnavailable: it is missing, or another file.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelUnavailable(
            f"expected the model file {path}; {error.strerror}; install the model again"
        ) from error
    seen = hashlib.sha256(data).hexdigest()
    if seen != sha256:
        raise ModelUnavailable(
            f"expected {path} with SHA-256 {sha256[:12]}…; got {seen[:12]}…;"
            " the file is damaged or another one; install the model again"
        )
    return data


class Session:
    """One loaded graph; safe for several threads at once.

    Args:
        data: the ONNX file; external data is never looked for, since no path is given.
        name: for messages.
        threads: of one run.
        providers: in order of preference.

    Raises:
        ModelUnavailable: onnxruntime is missing, or refuses the file.
    """

    def __init__(
        self, data: bytes, name: str, *, threads: int = 1, providers: Sequence[str] = (CPU,)
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ModelUnavailable(
                f"expected onnxruntime to run {name}; {error};"
                " install it with: pip install 'ispine[agent]'"
            ) from error
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
        except Exception as error:  # onnxruntime's errors share no base class
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
        except Exception as error:  # onnxruntime's errors share no base class
            raise ExecutionFailed(
                f"expected {self._name} to run; {type(error).__name__}: {str(error)[:160]};"
                " check the model with: ispine models verify"
            ) from error
        return dict(zip(self._outputs, answers, strict=True))
