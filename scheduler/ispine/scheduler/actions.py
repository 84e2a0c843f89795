"""What the service has to do, in this order: imperative, each with the event that caused it."""

from dataclasses import dataclass, field
from typing import Literal

from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.protocol.messages import Options, ResultStatus


@dataclass(frozen=True, slots=True)
class AssignTask:
    """Give an attempt of a task to a device.

    Attributes:
        ttl_ms: time left for it, at least 1.
        is_resent: the same attempt once more; the device drops it if it has it.
    """

    event_id: int
    task_id: TaskId
    client_id: ClientId
    device_id: DeviceId
    capability: Capability
    attempt: int
    variant: str
    ttl_ms: int
    priority: int
    is_hedge: bool = False
    is_resent: bool = False


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """Tell a device that this attempt is no longer wanted."""

    event_id: int
    task_id: TaskId
    client_id: ClientId
    device_id: DeviceId
    attempt: int


@dataclass(frozen=True, slots=True)
class AcknowledgeReply:
    """Tell a device that it may forget this reply."""

    event_id: int
    task_id: TaskId
    client_id: ClientId
    device_id: DeviceId
    attempt: int


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The one terminal decision of a task. For `done` the data is that of the causing reply."""

    event_id: int
    task_id: TaskId
    client_id: ClientId
    status: ResultStatus
    code: str = ""
    message: str = ""
    fields: Options = field(default_factory=dict)
    device_id: str = ""
    variant: str = ""
    attempts: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    total_ms: float = 0.0
    predicted_ms: float = 0.0
    is_durable: bool = False


@dataclass(frozen=True, slots=True)
class RepeatResult:
    """Publish the kept result of an earlier decision again, unchanged."""

    event_id: int
    task_id: TaskId
    client_id: ClientId


@dataclass(frozen=True, slots=True)
class RefuseDuplicate:
    """Answer a task whose id stands for other data; the task that has the id is not touched."""

    event_id: int
    task_id: TaskId
    client_id: ClientId
    message: str


@dataclass(frozen=True, slots=True)
class PublishEvent:
    """Tell the wearable what happens to its task."""

    event_id: int
    task_id: TaskId
    client_id: ClientId
    kind: Literal["accepted", "progress"]
    progress: float = 0.0


@dataclass(frozen=True, slots=True)
class ForgetPayload:
    """The task's input is no longer needed."""

    event_id: int
    task_id: TaskId
    client_id: ClientId


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """The task's kept result is no longer needed."""

    event_id: int
    task_id: TaskId
    client_id: ClientId


@dataclass(frozen=True, slots=True)
class ProbeDevice:
    """Ask a device for a heartbeat now."""

    event_id: int
    device_id: DeviceId


@dataclass(frozen=True, slots=True)
class TellDevice:
    """Tell a device that an admin drained or resumed it."""

    event_id: int
    device_id: DeviceId
    order: Literal["drain", "resume"]


@dataclass(frozen=True, slots=True)
class ReportDevice:
    """A device changed its standing; for the log and the dashboard."""

    event_id: int
    device_id: DeviceId
    standing: str
    reason: str


Action = (
    AssignTask
    | CancelAttempt
    | AcknowledgeReply
    | PublishResult
    | RepeatResult
    | RefuseDuplicate
    | PublishEvent
    | ForgetPayload
    | ForgetResult
    | ProbeDevice
    | TellDevice
    | ReportDevice
)
