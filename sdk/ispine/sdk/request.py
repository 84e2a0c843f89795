"""A call turned into a task, checked before anything is sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real

from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import MAX_MESSAGE_BYTES, check_options
from ispine.protocol.errors import (
    DeadlineExceeded,
    IspineError,
    RemoteProtocolError,
    TaskRejected,
)
from ispine.protocol.ids import check_id, new_task_id
from ispine.protocol.messages import MAX_TTL_MS, Options, Scalar, Task
from ispine.protocol.plain import BYTES_TYPE, sniff
from ispine.sdk.media import IMAGE_CAPABILITIES, image_bytes, raw_bytes

DEFAULT_WITHIN_MS = 2_000.0
DURABLE_WITHIN_MS = 600_000.0
MAX_TASK_BYTES = MAX_MESSAGE_BYTES - 4096
MAX_OPTIONS_CHARS = 64 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked for.

    Attributes:
        capability: what is to be done.
        data: the input.
        within_ms: deadline from `called_ns`, None for 2 s (durable: 10 minutes).
        content_type: "" lets the signature of the data say.
        options: for the capability.
        durable: survives the hub.
        priority: 0 background, 1 normal, 2 urgent.
        private: only on devices of the same owner.
        stream: id of the stream it belongs to.
        task_id: "" makes a new one.
        called_ns: `boot_ns` of the call, before the input was encoded.
    """

    capability: str
    data: bytes
    within_ms: float | None = None
    content_type: str = ""
    options: Mapping[str, Scalar] | None = None
    durable: bool = False
    priority: int = 1
    private: bool = False
    stream: str = ""
    task_id: str = ""
    called_ns: int = field(default_factory=boot_ns)

    def to_task(self, client_id: str) -> Task:
        """The task.

        Raises:
            TaskRejected: a deadline, id, option or size that cannot be.
            DeadlineExceeded: the deadline passed while the input was encoded.
        """
        task_id, options = self._checked()
        data = raw_bytes(self.data)
        _check_size(len(data), options)
        if self.priority not in (0, 1, 2):
            raise TaskRejected(f"expected a priority of 0, 1 or 2; got {_shown(self.priority)}")
        if not isinstance(self.content_type, str) or len(self.content_type) > 128:
            raise TaskRejected(
                "expected a content type of at most 128 characters, such as image/jpeg;"
                f" got {str(self.content_type)[:40]!r}"
            )
        return Task(
            task_id,
            client_id,
            self.capability,
            data,
            self._ttl_ms(),
            self.content_type or sniff(data) or BYTES_TYPE,
            "durable" if self.durable else "realtime",
            int(self.priority),
            self.stream,
            self.private,
            options,
        )

    def _checked(self) -> tuple[str, Options]:
        try:
            check_id(_text(self.capability, "capability"), "capability")
            if self.task_id:
                check_id(_text(self.task_id, "task id"), "task id")
            options = check_options("options", dict(self.options or {}))
        except RemoteProtocolError as error:
            raise _rejected(error) from error
        return self.task_id or new_task_id(), options

    def _ttl_ms(self) -> int:
        default = DURABLE_WITHIN_MS if self.durable else DEFAULT_WITHIN_MS
        within = default if self.within_ms is None else self.within_ms
        is_number = isinstance(within, Real) and not isinstance(within, bool)
        if not is_number or not 1 <= within <= MAX_TTL_MS:  # nor is NaN in that range
            raise TaskRejected(
                f"expected within_ms from 1 to {MAX_TTL_MS:,}; got {_shown(within)};"
                " it is the time from now until the answer is worthless"
            )
        spent_ms = (boot_ns() - self.called_ns) / 1e6
        if spent_ms >= within:
            raise DeadlineExceeded(
                f"expected an answer within {within:g} ms; preparing the input alone took"
                f" {spent_ms:.0f} ms; allow more time or send JPEG bytes"
            )
        return max(int(within - spent_ms + 0.5), 1)


def _text(value: object, kind: str) -> str:
    if not isinstance(value, str):
        raise TaskRejected(f"expected a {kind} as text; got {type(value).__name__}")
    return value


def _check_size(data_bytes: int, options: Options) -> None:
    if data_bytes > MAX_TASK_BYTES:
        raise TaskRejected(
            f"expected at most {MAX_TASK_BYTES:,} bytes; got {data_bytes:,};"
            " send a smaller image or compress it"
        )
    chars = sum(len(value) for value in options.values() if isinstance(value, str))
    # Four bytes a character at worst: so much less may the data be where there is much text.
    if chars > MAX_OPTIONS_CHARS or (chars > 512 and data_bytes + 4 * chars > MAX_TASK_BYTES):
        raise TaskRejected(
            f"expected options of at most {MAX_OPTIONS_CHARS:,} characters; got {chars:,};"
            " put long text into the data"
        )
    for name, value in options.items():
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise TaskRejected(f"expected option {name!r} to fit into 64 bits; got {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 64:
        return f"one of {value.bit_length()} bits"
    return repr(value)[:40]


def _rejected(error: IspineError) -> TaskRejected:
    return TaskRejected(str(error), fields={"code": error.code})


__all__ = [
    "DEFAULT_WITHIN_MS",
    "DURABLE_WITHIN_MS",
    "IMAGE_CAPABILITIES",
    "MAX_TASK_BYTES",
    "Request",
    "image_bytes",
]
