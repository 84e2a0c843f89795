"""What happened, as the core hears of it: past tense, with the time inside.

`now_ns` is the hub's `boot_ns`; a core never reads a clock. Payloads never come here: a task is its
size and its deadline.
"""

from dataclasses import dataclass

from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.protocol.messages import TaskMode


@dataclass(frozen=True, slots=True)
class VariantOffer:
    """One model variant on one device.

    Attributes:
        service_ns: measured by the device at registration; the prior of the estimate.
        load_ns: 0 when the model is in memory.
        is_usable: false where its answers deviated from the reference.
    """

    name: str
    service_ns: float
    quality: float = 1.0
    label_set: str = ""
    load_ns: float = 0.0
    is_usable: bool = True


@dataclass(frozen=True, slots=True)
class CapabilityOffer:
    """One capability of one device."""

    name: Capability
    variants: tuple[VariantOffer, ...]
    is_idempotent: bool = True
    max_batch: int = 1
    max_input_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """What a device says about itself; nothing of it is believed without a check."""

    boot: int = 0
    slots: int = 1
    offers: tuple[CapabilityOffer, ...] = ()
    owner: str = ""
    battery_pct: float | None = None
    is_charging: bool = True
    temp_c: float | None = None
    temp_soft_c: float = 70.0
    temp_hard_c: float = 85.0
    accepts: bool = True
    refusal: str = ""
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class HubStarted:
    """The scheduler began to listen; retained states are still arriving."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`next_wakeup_ns` was reached."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class TaskSubmitted:
    """A wearable asked for work.

    Attributes:
        deadline_ns: in the hub's time.
        owner: of the wearable, "" when unknown.
        is_private: only devices of the same owner may run it.
        variant: pinned by the wearable, "" for any.
        digest: of the payload; "" when not computed yet (`TaskDigested` follows), which is only
            allowed for a task id that the core does not know.
        is_recovered: it comes from the journal: it was accepted before, and attempts that this
            core did not make may still answer.
    """

    now_ns: int
    task_id: TaskId
    client_id: ClientId
    capability: Capability
    size_bytes: int
    deadline_ns: int
    mode: TaskMode = "realtime"
    priority: int = 1
    stream: str = ""
    owner: str = ""
    is_private: bool = False
    variant: str = ""
    digest: str = ""
    is_recovered: bool = False


@dataclass(frozen=True, slots=True)
class TaskDigested:
    """The digest of a payload became known."""

    now_ns: int
    task_id: TaskId
    client_id: ClientId
    digest: str


@dataclass(frozen=True, slots=True)
class TaskCancelled:
    """A wearable took a task back, perhaps before it arrived."""

    now_ns: int
    task_id: TaskId
    client_id: ClientId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReplyAccepted:
    """A device has the assignment."""

    now_ns: int
    task_id: TaskId
    client_id: ClientId
    device_id: DeviceId
    attempt: int


@dataclass(frozen=True, slots=True)
class ReplyProgressed:
    """A device is `progress` (0 to 1) of the way."""

    now_ns: int
    task_id: TaskId
    client_id: ClientId
    device_id: DeviceId
    attempt: int
    progress: float


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """A device answered. The lease was checked by the service."""

    now_ns: int
    task_id: TaskId
    client_id: ClientId
    device_id: DeviceId
    attempt: int
    size_bytes: int = 0
    variant: str = ""
    queue_ms: float = 0.0
    compute_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplyFailed:
    """A device gave an attempt back, with the wire code of an error."""

    now_ns: int
    task_id: TaskId
    client_id: ClientId
    device_id: DeviceId
    attempt: int
    code: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeviceOnline:
    """A device's status says online."""

    now_ns: int
    device_id: DeviceId


@dataclass(frozen=True, slots=True)
class DeviceOffline:
    """A device said goodbye, or its last will did."""

    now_ns: int
    device_id: DeviceId


@dataclass(frozen=True, slots=True)
class DeviceSeen:
    """A device described itself."""

    now_ns: int
    device_id: DeviceId
    description: DeviceDescription


@dataclass(frozen=True, slots=True)
class DeviceBeat:
    """A heartbeat: `held` are the task ids the device has, running or waiting."""

    now_ns: int
    device_id: DeviceId
    boot: int = 0
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceDrained:
    """An admin wants the device to take nothing new."""

    now_ns: int
    device_id: DeviceId


@dataclass(frozen=True, slots=True)
class DeviceResumed:
    """An admin wants the device to work again; this also ends a quarantine."""

    now_ns: int
    device_id: DeviceId


@dataclass(frozen=True, slots=True)
class AnswerRefuted:
    """An answer of the device turned out to be wrong."""

    now_ns: int
    device_id: DeviceId
    reason: str


Reply = ReplyAccepted | ReplyProgressed | ReplyDone | ReplyFailed

Event = (
    HubStarted
    | TimePassed
    | TaskSubmitted
    | TaskDigested
    | TaskCancelled
    | ReplyAccepted
    | ReplyProgressed
    | ReplyDone
    | ReplyFailed
    | DeviceOnline
    | DeviceOffline
    | DeviceSeen
    | DeviceBeat
    | DeviceDrained
    | DeviceResumed
    | AnswerRefuted
)
