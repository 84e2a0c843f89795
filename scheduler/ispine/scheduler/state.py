"""Everything the core remembers, and the action list of the event it handles."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ispine.protocol.ids import Capability, DeviceId
from ispine.scheduler.actions import Action
from ispine.scheduler.candidate import Candidate
from ispine.scheduler.config import CoreConfig
from ispine.scheduler.device import Device, Skill
from ispine.scheduler.ledger import Ledger
from ispine.scheduler.order import WaitingLine
from ispine.scheduler.quota import HedgeBudget, Quotas
from ispine.scheduler.task import Attempt, AttemptState, Lane, TaskKey, TaskRecord
from ispine.scheduler.timers import Due, Timers
from ispine.scheduler.trace import Traces

Subject = Attempt | TaskRecord | Device | None

_MASK = 2**64 - 1
_MAX_DEVICES = 4096


class Dice:
    """A xorshift generator: the core's only chance, from a seed."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + 1) & _MASK or 1

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        x = self._state
        x ^= (x << 13) & _MASK
        x ^= x >> 7
        x ^= (x << 17) & _MASK
        self._state = x
        return x % limit


class Terms(NamedTuple):
    """What all devices of a capability have in common.

    Attributes:
        largest_input: bytes that the most generous of them takes, 0 when there is none.
        is_idempotent: all of them say that running a task twice does no harm.
    """

    largest_input: int
    is_idempotent: bool


class Fleet:
    """Devices, by id and by capability."""

    def __init__(self) -> None:
        self.devices: dict[DeviceId, Device] = {}
        self._members: dict[Capability, dict[Device, Skill]] = {}
        self._open: dict[Capability, dict[Device, Skill]] = {}
        self._terms: dict[Capability, Terms] = {}
        self.last_capable_ns: dict[Capability, int] = {}

    def get(self, device_id: DeviceId) -> Device:
        """The device; a new record when it was unknown."""
        device = self.devices.get(device_id)
        if device is None:
            if len(self.devices) >= _MAX_DEVICES:
                self._drop_one()
            device = self.devices[device_id] = Device(device_id)
        return device

    def _drop_one(self) -> None:
        """Forget a device that is offline and holds nothing, the one known longest."""
        for device_id, device in self.devices.items():
            if not device.is_online and not device.held and not device.is_drained:
                for capability in device.skills:
                    self._members[capability].pop(device, None)
                    self._open.get(capability, {}).pop(device, None)
                    self._terms.pop(capability, None)
                del self.devices[device_id]
                return

    def members(self, capability: Capability) -> dict[Device, Skill]:
        """Devices that offer a capability, whatever their standing."""
        return self._members.get(capability, _NOBODY)

    def open(self, capability: Capability) -> dict[Device, Skill]:
        """Devices of a capability that may be given work now."""
        return self._open.get(capability, _NOBODY)

    def terms(self, capability: Capability) -> Terms:
        """What all devices of a capability have in common."""
        known = self._terms.get(capability)
        if known is None:
            skills = self.members(capability).values()
            known = Terms(
                max((skill.max_input_bytes for skill in skills), default=0),
                all(skill.is_idempotent for skill in skills),
            )
            if skills:
                self._terms[capability] = known
        return known

    def rejoin(self, device: Device, before: Iterable[Capability]) -> None:
        """The device's capabilities changed."""
        for capability in (*before, *device.skills):
            self._terms.pop(capability, None)
        for capability in before:
            self._members.get(capability, {}).pop(device, None)
            self._open.get(capability, {}).pop(device, None)
        for capability, skill in device.skills.items():
            self._members.setdefault(capability, {})[device] = skill
        self.update(device)

    def update(self, device: Device) -> None:
        """The device's standing or places changed."""
        blocked = bool(device.block)
        held = len(device.held)
        for capability, skill in device.skills.items():
            opened = self._open.setdefault(capability, {})
            if blocked or held >= device.limit(skill):
                opened.pop(device, None)
            else:
                opened[device] = skill

    def has_usable(self, lane: Lane) -> bool:
        """Whether some device may run tasks of this lane, now or later."""
        if lane.is_plain and self._open.get(lane.capability):
            return True
        return any(
            not device.block and is_admitted(lane, device, skill)
            for device, skill in self.members(lane.capability).items()
        )

    def usable(self, lane: Lane) -> list[tuple[Device, Skill]]:
        """Devices that may run tasks of this lane, with or without a place now."""
        return [
            (device, skill)
            for device, skill in self.members(lane.capability).items()
            if not device.block and is_admitted(lane, device, skill)
        ]


_NOBODY: dict[Device, Skill] = {}


def is_admitted(lane: Lane, device: Device, skill: Skill) -> bool:
    """Whether the lane's owner and pinned variant allow the device."""
    if lane.is_plain:
        return True
    if lane.owner is not None and device.known.owner != lane.owner:
        return False
    return skill.rung(0, lane.variant) is not None


@dataclass(slots=True)
class Counters:
    """What happened so far; for `stats`."""

    submitted: int = 0
    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    assigned: int = 0
    hedged: int = 0
    resent: int = 0
    reassigned: int = 0
    suspected: int = 0
    quarantined: int = 0
    late_answers: int = 0
    stray_answers: int = 0
    degraded: int = 0
    done: int = 0
    failed: int = 0
    expired: int = 0
    rejected: int = 0
    cancelled: int = 0


@dataclass(slots=True)
class CoreState:
    """The state of one core.

    Attributes:
        now_ns: time of the event that is handled.
        event_id: number of the event that is handled.
        out: actions of that event.
        missed: attempts that were given up because they were late, not yet judged.
        mean_service_ns: by lane, fading mean of what its tasks were expected to take.
        looks: by lane, (time, scores) of the last admission behind a long line.
        arrivals: by capability, (time, fading rate per second) of what was submitted.
    """

    config: CoreConfig
    fleet: Fleet
    waiting: WaitingLine
    ledger: Ledger
    timers: Timers[Subject]
    budget: HedgeBudget
    quotas: Quotas
    traces: Traces
    dice: Dice
    open: dict[TaskKey, TaskRecord] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    out: list[Action] = field(default_factory=list)
    now_ns: int = 0
    started_ns: int = 0
    event_id: int = 0
    seq: int = 0
    needs_dispatch: bool = False
    dispatch_at_ns: int = 0
    missed: list[Attempt] = field(default_factory=list)
    ledger_at_ns: int = 0
    mean_service_ns: dict[Lane, float] = field(default_factory=dict)
    looks: dict[Lane, tuple[int, list[Candidate]]] = field(default_factory=dict)
    arrivals: dict[Capability, tuple[int, float]] = field(default_factory=dict)

    @staticmethod
    def fresh(config: CoreConfig) -> "CoreState":
        """An empty state."""
        return CoreState(
            config,
            Fleet(),
            WaitingLine(config.fair_window_ns, config.weights),
            Ledger(config.keep_ns, config.keep_bytes, config.keep_count),
            Timers(_is_alive),
            HedgeBudget(config.hedge_share, config.hedge_burst),
            Quotas(config),
            Traces(config.traces),
            Dice(config.seed),
        )


def _is_alive(due: Due, subject: Subject) -> bool:
    if isinstance(subject, Attempt):
        if subject.task.is_decided or subject.state is not AttemptState.ACTIVE:
            return False
        return due is not Due.ACCEPT or not subject.accepted_ns
    if isinstance(subject, TaskRecord):
        return not subject.is_decided
    return True
