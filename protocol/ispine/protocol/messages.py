"""The messages of the wire protocol, version 1.

Hot messages are frozen dataclasses; `ispine.protocol.codec` reads the annotations below, with the
limits in `Field`, to check what arrives. Optional fields that hold their default are left out on
the wire; fields that this version does not know are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from ispine.protocol.ids import Capability, ClientId, DeviceId, LeaseId, TaskId

PROTOCOL_VERSION = 1
MAX_TTL_MS = 24 * 3600 * 1000
MAX_TEXT_CHARS = 2048

Scalar = str | int | float | bool | None
Options = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Limit:
    """Range of a number, or longest text or list, of one field."""

    low: float = 0
    high: float = 2**63 - 1


Id = Annotated[str, "id"]
Text = Annotated[str, Limit(high=MAX_TEXT_CHARS)]
ShortText = Annotated[str, Limit(high=128)]
Count = Annotated[int, Limit(high=2**31 - 1)]
Nanoseconds = Annotated[int, Limit()]
Milliseconds = Annotated[float, Limit(high=1e9)]
TtlMs = Annotated[int, Limit(low=1, high=MAX_TTL_MS)]
Attempt = Annotated[int, Limit(low=1, high=1000)]


@dataclass(frozen=True, slots=True)
class Head:
    """What every message carries about its sender.

    Attributes:
        sender: device, client or hub id.
        boot: random number of this run of the sender.
        seq: counts up with each message of this run.
        sent_ns: the sender's `boot_ns` at sending; only differences mean anything.
        term: term of the hub the sender follows, 0 before any.
        trace: joins the messages of one request across components.
    """

    sender: Id
    boot: Count = 0
    seq: Nanoseconds = 0
    sent_ns: Nanoseconds = 0
    term: Count = 0
    trace: ShortText = ""


TaskMode = Literal["realtime", "durable"]
Priority = Annotated[int, Limit(low=0, high=2)]
"""0 background, 1 normal, 2 urgent."""


@dataclass(frozen=True, slots=True)
class Task:
    """Work that a wearable asks for.

    Attributes:
        task_id: unique; the same id with the same data is the same task.
        client_id: who asks; must equal the topic and the authenticated identity.
        capability: what is to be done.
        data: the input, opaque to the hub.
        content_type: what `data` is, such as `image/jpeg`.
        ttl_ms: time left until the answer is worthless, counted from sending.
        mode: `realtime` dies with its deadline; `durable` survives the hub.
        priority: 0 background, 1 normal, 2 urgent.
        stream: id of the stream it is a frame of, "" for a single call.
        private: only devices of the same owner may run it.
        options: for the capability, scalars only.
    """

    task_id: Id
    client_id: Id
    capability: Id
    data: bytes
    ttl_ms: TtlMs
    content_type: ShortText = "application/octet-stream"
    mode: TaskMode = "realtime"
    priority: Priority = 1
    stream: ShortText = ""
    private: bool = False
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task given to one device under a lease.

    Attributes:
        attempt: counts the assignments of this task from 1.
        lease: proves the right to answer this attempt.
        ttl_ms: time left until the answer is worthless, counted from sending.
        variant: the model variant to use, "" for the only one.
    """

    task_id: Id
    client_id: Id
    capability: Id
    attempt: Attempt
    lease: Id
    data: bytes
    ttl_ms: TtlMs
    content_type: ShortText = "application/octet-stream"
    variant: ShortText = ""
    priority: Priority = 1
    options: Options = field(default_factory=dict)


ReplyKind = Literal["accepted", "progress", "done", "failed", "missing"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a device says about an assignment.

    `accepted` comes at once, then any number of `progress`, then one `done` or `failed`, repeated
    until the scheduler acknowledges it. `missing` asks for chunks.

    Attributes:
        code: for `failed`, the wire code of `ispine.protocol.errors`.
        queue_ms: how long the assignment waited on the device.
        compute_ms: how long the capability ran.
        link_ms: delay of the assignment on its way above the smallest seen.
        progress: 0 to 1.
        missing: chunk numbers that did not arrive.
    """

    kind: ReplyKind
    task_id: Id
    client_id: Id
    attempt: Attempt
    lease: Id
    code: ShortText = ""
    message: Text = ""
    data: bytes = b""
    content_type: ShortText = "application/octet-stream"
    variant: ShortText = ""
    queue_ms: Milliseconds = 0.0
    compute_ms: Milliseconds = 0.0
    link_ms: Milliseconds = 0.0
    progress: Annotated[float, Limit(high=1)] = 0.0
    missing: tuple[Count, ...] = ()


ResultStatus = Literal["done", "failed", "expired", "rejected", "cancelled"]


@dataclass(frozen=True, slots=True)
class Result:
    """The one terminal outcome of a task.

    Attributes:
        status: `done` carries `data`; every other status carries `code` and `message`.
        code: wire code of `ispine.protocol.errors`, "" when done.
        fields: details of an error by name, such as `predicted_ms` and `suggestion`.
        device: who answered, "" when nobody did.
        variant: the model variant that answered.
        attempts: how many assignments were made.
        queue_ms: time in the scheduler and on the device before running.
        compute_ms: time in the capability.
        total_ms: from the task's arrival at the scheduler to this decision.
        predicted_ms: what the scheduler expected `total_ms` to be, 0 when it could not.
    """

    task_id: Id
    client_id: Id
    status: ResultStatus
    code: ShortText = ""
    message: Text = ""
    fields: Options = field(default_factory=dict)
    data: bytes = b""
    content_type: ShortText = "application/octet-stream"
    device: ShortText = ""
    variant: ShortText = ""
    attempts: Count = 0
    queue_ms: Milliseconds = 0.0
    compute_ms: Milliseconds = 0.0
    total_ms: Milliseconds = 0.0
    predicted_ms: Milliseconds = 0.0


EventKind = Literal["accepted", "progress", "missing"]


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """What happens to a task before its result."""

    kind: EventKind
    task_id: Id
    client_id: Id
    progress: Annotated[float, Limit(high=1)] = 0.0
    missing: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """A wearable takes a task back. It may overtake the task."""

    task_id: Id
    client_id: Id
    reason: ShortText = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A device is alive; once a second.

    Attributes:
        outstanding: assignments it holds, running or waiting.
        free_slots: assignments it could start at once.
        held: task ids of those assignments.
    """

    device_id: Id
    outstanding: Count
    free_slots: Count
    held: tuple[str, ...] = ()


ControlKind = Literal["ack", "cancel", "drain", "resume", "missing", "ping", "load"]


@dataclass(frozen=True, slots=True)
class Control:
    """The scheduler tells a device something.

    `ack`: the reply to this attempt arrived, forget it. `cancel`: stop this attempt. `drain`: take
    no more. `resume`: take work again. `missing`: send these chunks of the reply again. `ping`:
    send a heartbeat now. `load`: load this capability's variant.
    """

    kind: ControlKind
    task_id: ShortText = ""
    attempt: Count = 0
    capability: ShortText = ""
    variant: ShortText = ""
    missing: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a framed message that is too big for one packet.

    Attributes:
        attempt: 0 for a task, else the attempt of the assignment or reply.
        index: 0-based.
        total: how many pieces.
        size: bytes of the whole message.
    """

    task_id: Id
    attempt: Count
    index: Count
    total: Annotated[int, Limit(low=1, high=64)]
    size: Annotated[int, Limit(low=1, high=2**31 - 1)]
    data: bytes


AnyMessage = Task | Assignment | Reply | Result | TaskEvent | Cancel | Heartbeat | Control | Chunk

__all__ = [
    "PROTOCOL_VERSION",
    "AnyMessage",
    "Assignment",
    "Cancel",
    "Capability",
    "Chunk",
    "ClientId",
    "Control",
    "DeviceId",
    "Head",
    "Heartbeat",
    "LeaseId",
    "Limit",
    "Options",
    "Reply",
    "Result",
    "Scalar",
    "Task",
    "TaskEvent",
    "TaskId",
]
