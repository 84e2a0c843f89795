"""Open tasks and their attempts."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.scheduler.events import TaskSubmitted

TaskKey = tuple[ClientId, TaskId]
"""Ids of tasks are the wearable's own, so two wearables may use the same one."""


class AttemptState(Enum):
    """Where one attempt stands.

    `ACTIVE`: the device works on it as far as is known. `DOUBTFUL`: its device is suspect, gone or
    late; it may still win, but the task waits for another device. `UNWANTED`: the task is decided
    or was taken back, but the device has not yet said that its place is free.
    """

    ACTIVE = "active"
    DOUBTFUL = "doubtful"
    UNWANTED = "unwanted"


@dataclass(slots=True, eq=False)
class Attempt:
    """One assignment of a task to a device.

    Attributes:
        expected_ns: when the answer was expected, at assignment.
        service_ns: device time that was expected.
        deviation_ns: expected error of `expected_ns`.
        hedge_at_ns: when a second device is asked, 0 for never.
        lease_ends_ns: when the device loses the task.
        accepted_ns: 0 until the device said that it has it.
        is_resent: the assignment was sent a second time.
        is_held: it takes one of the device's places.
    """

    task: "TaskRecord"
    number: int
    device_id: DeviceId
    variant: str
    assigned_ns: int
    expected_ns: int
    service_ns: float
    deviation_ns: float
    hedge_at_ns: int = 0
    lease_ends_ns: int = 0
    accepted_ns: int = 0
    accept_by_ns: int = 0
    is_hedge: bool = False
    is_resent: bool = False
    is_held: bool = True
    state: AttemptState = AttemptState.ACTIVE


class Lane(NamedTuple):
    """Tasks that the same devices can run: they wait in one line."""

    capability: Capability
    owner: str | None
    variant: str

    @property
    def is_plain(self) -> bool:
        """Whether every device with the capability will do."""
        return self.owner is None and not self.variant


@dataclass(slots=True, eq=False)
class TaskRecord:
    """A task that is not yet decided.

    Attributes:
        seq: order of arrival.
        line_ns: place in the line; its deadline, or its arrival once it lost a device.
        attempts: every attempt ever made, by number.
        runs: attempts that a device accepted.
        level: how many rungs below the best variant the deadline asks for.
        is_waiting: it stands in the line.
        is_decided: it is over; only timers still know it.
        is_hedged: it had its one hedge.
        avoid: devices that failed it.
        failed_on: devices whose capability raised.
        predicted_ns: expected time from arrival to answer, at admission.
    """

    key: TaskKey
    lane: Lane
    seq: int
    size_bytes: int
    submitted_ns: int
    deadline_ns: int
    line_ns: int
    is_durable: bool
    priority: int
    owner: str
    stream: str
    digest: str
    is_recovered: bool = False
    born_event_id: int = 0
    is_idempotent: bool = True
    attempts: dict[int, Attempt] = field(default_factory=dict)
    runs: int = 0
    level: int = 0
    is_waiting: bool = False
    is_decided: bool = False
    is_hedged: bool = False
    avoid: set[DeviceId] = field(default_factory=set)
    failed_on: set[DeviceId] = field(default_factory=set)
    predicted_ns: float = 0.0
    first_assigned_ns: int = 0
    last_message: str = ""

    @property
    def client_id(self) -> ClientId:
        """Who asked."""
        return self.key[0]

    @property
    def task_id(self) -> TaskId:
        """The id that the wearable gave it."""
        return self.key[1]

    def active(self) -> list[Attempt]:
        """Attempts that are expected to answer."""
        return [a for a in self.attempts.values() if a.state is AttemptState.ACTIVE]

    @staticmethod
    def of(event: TaskSubmitted, seq: int) -> "TaskRecord":
        """The record of a task that just arrived."""
        owner = event.owner if event.is_private else None
        return TaskRecord(
            (event.client_id, event.task_id),
            Lane(event.capability, owner, event.variant),
            seq,
            event.size_bytes,
            event.now_ns,
            event.deadline_ns,
            event.deadline_ns,
            event.mode == "durable",
            min(max(event.priority, 0), 2),
            event.owner,
            event.stream,
            event.digest,
            event.is_recovered,
        )
