"""Every error iSpine raises, sorted by who must act.

    IspineError
    ├── ConfigError              the operator: a setting, a port, a file, a missing package
    ├── ConnectionLost           nobody: retry, the network or the hub is away
    ├── ProtocolError
    │   ├── LocalProtocolError   us: this program tried to send something illegal
    │   └── RemoteProtocolError  them: a peer sent something illegal
    │       ├── BadId            an identifier that may not stand in a topic
    │       └── TooLarge         a message above a limit
    └── TaskError                the caller of a task
        ├── TaskRejected         the task itself is wrong: no retry will help
        ├── TooBusy              the fleet is full: lower the rate or wait
        ├── DeadlineExceeded     no answer in time
        ├── NoCapableDevice      no device offers the capability
        ├── ModelUnavailable     the model is missing, damaged or switched off
        ├── ExecutionFailed      the capability ran and raised
        └── TaskCancelled        the caller took it back

Each class has a stable wire `code`. A message says what was expected, what was seen and what to do.
"""

from collections.abc import Mapping
from typing import ClassVar


class IspineError(Exception):
    """Root of the tree."""

    code: ClassVar[str] = "error"


class ConfigError(IspineError):
    """The operator must change a setting, free a port, or install something."""

    code = "config"


class ConnectionLost(IspineError):
    """The link to the hub is down; the operation can be retried."""

    code = "connection_lost"


class ProtocolError(IspineError):
    """A message broke the wire protocol."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """This program tried to send something illegal."""

    code = "local_protocol"


class RemoteProtocolError(ProtocolError):
    """A peer sent something illegal."""

    code = "bad_message"


class BadId(RemoteProtocolError):
    """An identifier that may not stand in a topic."""

    code = "bad_id"

    def __init__(self, *, kind: str, seen: str) -> None:
        shown = seen[:32] + ("…" if len(seen) > 32 else "")
        super().__init__(
            f"expected a {kind} of 1 to 64 letters, digits, '_' or '-'; got {shown!r}"
            f" ({len(seen)} characters); choose another {kind}"
        )


class TooLarge(RemoteProtocolError):
    """A message above a limit."""

    code = "too_large"

    def __init__(self, *, what: str, limit: int, seen: int) -> None:
        super().__init__(
            f"expected {what} of at most {limit:,} bytes; got {seen:,};"
            " send a smaller image or compress it"
        )


class TaskError(IspineError):
    """A task ended without a result.

    Attributes:
        task_id: the task, "" when it never got an id.
        fields: details by name: `predicted_ms`, `suggestion`, `capability`, …
    """

    code = "task"

    def __init__(
        self, message: str, *, task_id: str = "", fields: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.fields: Mapping[str, object] = dict(fields or {})


class TaskRejected(TaskError):
    """The task itself is wrong: bad image, bad id, bad deadline. No retry will help."""

    code = "rejected"


class TooBusy(TaskError):
    """No device can make the deadline now.

    Attributes:
        predicted_ms: when the best device would have answered, None when unknown.
        suggestion: what the caller can do, in words.
    """

    code = "too_busy"

    @property
    def predicted_ms(self) -> float | None:
        """Predicted time to the answer in milliseconds, None when unknown."""
        value = self.fields.get("predicted_ms")
        return float(value) if isinstance(value, int | float) else None

    @property
    def suggestion(self) -> str:
        """What the caller can do."""
        return str(self.fields.get("suggestion", ""))


class DeadlineExceeded(TaskError):
    """No answer arrived before the deadline."""

    code = "expired"


class NoCapableDevice(TaskError):
    """No device in the fleet offers the capability."""

    code = "no_capable_device"


class ModelUnavailable(TaskError):
    """The model is missing, damaged, or switched off on that device."""

    code = "model_unavailable"


class ExecutionFailed(TaskError):
    """The capability ran and raised."""

    code = "execution_failed"


class TaskCancelled(TaskError):
    """The caller cancelled the task."""

    code = "cancelled"


_BY_CODE: Mapping[str, type[TaskError]] = {
    error.code: error
    for error in (
        TaskError,
        TaskRejected,
        TooBusy,
        DeadlineExceeded,
        NoCapableDevice,
        ModelUnavailable,
        ExecutionFailed,
        TaskCancelled,
    )
}


def task_error(
    code: str, message: str, *, task_id: str = "", fields: Mapping[str, object] | None = None
) -> TaskError:
    """The error for a wire code.

    Codes that this version does not know, and protocol codes such as `bad_message`, `bad_id` and
    `too_large`, become `TaskRejected` with the code in `fields["code"]`.
    """
    known = _BY_CODE.get(code)
    if known is not None:
        return known(message, task_id=task_id, fields=fields)
    return TaskRejected(message, task_id=task_id, fields={**(fields or {}), "code": code})
