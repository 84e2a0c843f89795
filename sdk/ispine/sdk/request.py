"""A call turned into a task, checked before anything is sent."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ispine.protocol.codec import MAX_MESSAGE_BYTES, check_options
from ispine.protocol.errors import IspineError, RemoteProtocolError, TaskRejected
from ispine.protocol.ids import check_id, new_task_id
from ispine.protocol.messages import MAX_TTL_MS, Options, Scalar, Task
from ispine.protocol.plain import BYTES_TYPE, sniff

DEFAULT_WITHIN_MS = 2_000.0
DURABLE_WITHIN_MS = 600_000.0
IMAGE_CAPABILITIES = frozenset({"detect", "gesture", "classify"})


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked for.

    Attributes:
        capability: what is to be done.
        data: the input.
        within_ms: deadline from now, None for 2 s (durable: 10 minutes).
        content_type: "" lets the signature of the data say.
        options: for the capability.
        durable: survives the hub.
        priority: 0 background, 1 normal, 2 urgent.
        private: only on devices of the same owner.
        stream: id of the stream it belongs to.
        task_id: "" makes a new one.
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

    def to_task(self, client_id: str) -> Task:
        """The task.

        Raises:
            TaskRejected: a deadline, id, option or size that cannot be.
        """
        try:
            check_id(self.capability, "capability")
            if self.task_id:
                check_id(self.task_id, "task id")
            options: Options = check_options("options", dict(self.options or {}))
        except RemoteProtocolError as error:
            raise _rejected(error) from error
        if len(self.data) > MAX_MESSAGE_BYTES - 4096:
            raise TaskRejected(
                f"expected at most {MAX_MESSAGE_BYTES - 4096:,} bytes; got {len(self.data):,};"
                " send a smaller image or compress it"
            )
        if self.priority not in (0, 1, 2):
            raise TaskRejected(f"expected a priority of 0, 1 or 2; got {self.priority!r}")
        return Task(
            self.task_id or new_task_id(),
            client_id,
            self.capability,
            bytes(self.data),
            self._ttl_ms(),
            self.content_type or sniff(self.data) or BYTES_TYPE,
            "durable" if self.durable else "realtime",
            self.priority,
            self.stream,
            self.private,
            options,
        )

    def _ttl_ms(self) -> int:
        default = DURABLE_WITHIN_MS if self.durable else DEFAULT_WITHIN_MS
        within = default if self.within_ms is None else self.within_ms
        is_number = isinstance(within, int | float) and math.isfinite(within)
        if not is_number or not 1 <= within <= MAX_TTL_MS:
            raise TaskRejected(
                f"expected within_ms from 1 to {MAX_TTL_MS:,}; got {within!r};"
                " it is the time from now until the answer is worthless"
            )
        return int(within)


def _rejected(error: IspineError) -> TaskRejected:
    return TaskRejected(str(error), fields={"code": error.code})


def image_bytes(image: object) -> bytes:
    """Any image the caller may have, as JPEG or PNG bytes.

    Raises:
        TaskRejected: not an image, damaged, or above the limits.
    """
    from ispine.models.images import encode_jpeg

    return encode_jpeg(image)  # type: ignore[arg-type]  # it refuses what is no image
