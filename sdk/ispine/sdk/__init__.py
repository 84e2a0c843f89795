"""What a wearable imports: `from ispine.sdk import Spine`.

Light: no onnxruntime, no broker; numpy, Pillow and zeroconf are imported only where they are used.
"""

from typing import TYPE_CHECKING

from ispine.protocol.errors import (
    ConfigError,
    ConnectionLost,
    DeadlineExceeded,
    ExecutionFailed,
    IspineError,
    ModelUnavailable,
    NoCapableDevice,
    TaskCancelled,
    TaskError,
    TaskRejected,
    TooBusy,
)
from ispine.sdk.answers import Answer, Outcome

if TYPE_CHECKING:
    from ispine.models.results import Detection, Hand, Label
    from ispine.sdk.client import AsyncSpine
    from ispine.sdk.sync import Future, Spine

_LAZY = {
    "AsyncSpine": "ispine.sdk.client",
    "Spine": "ispine.sdk.sync",
    "Future": "ispine.sdk.sync",
    "Detection": "ispine.models.results",
    "Hand": "ispine.models.results",
    "Label": "ispine.models.results",
}

__all__ = [
    "Answer",
    "AsyncSpine",
    "ConfigError",
    "ConnectionLost",
    "DeadlineExceeded",
    "Detection",
    "ExecutionFailed",
    "Future",
    "Hand",
    "IspineError",
    "Label",
    "ModelUnavailable",
    "NoCapableDevice",
    "Outcome",
    "Spine",
    "TaskCancelled",
    "TaskError",
    "TaskRejected",
    "TooBusy",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
