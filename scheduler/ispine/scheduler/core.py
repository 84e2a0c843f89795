"""The scheduler's decisions: events in, actions out.

Theory of operation. `handle` is the only mutator. Each event carries its time; the core has no
clock, socket, thread, log or chance of its own (ties are broken by a generator with a seed).
A task is `waiting` in the line, or has an active attempt on a device, until it is decided exactly
once (`ending`). Tasks are admitted (`admission`), given to devices late (`placing`), rescued when
an answer does not come (`rescue`), and every answer teaches something (`learning`). `why`,
`devices` and the other questions are answered from the same state by `report`.

`check_invariants` says what must hold after every event.
"""

from typing import assert_never

from ispine.protocol.ids import DeviceId
from ispine.scheduler import admission, invariants, learning, placing, replies, rescue
from ispine.scheduler.actions import Action, AssignTask, PublishEvent, TellDevice
from ispine.scheduler.config import MS, CoreConfig
from ispine.scheduler.device import Device
from ispine.scheduler.ending import fail, forget_results, watch_ledger
from ispine.scheduler.events import (
    AnswerRefuted,
    DeviceBeat,
    DeviceDrained,
    DeviceOffline,
    DeviceOnline,
    DeviceResumed,
    DeviceSeen,
    Event,
    HubStarted,
    Reply,
    ReplyAccepted,
    ReplyDone,
    ReplyFailed,
    ReplyProgressed,
    TaskCancelled,
    TaskDigested,
    TaskSubmitted,
    TimePassed,
)
from ispine.scheduler.state import CoreState, Subject
from ispine.scheduler.task import Attempt, AttemptState, TaskKey, TaskRecord
from ispine.scheduler.timers import Due

_IN_TRANSIT_NS = 150 * MS
_GOODBYE_NS = 1_000 * MS
_FULL_LIST = 256


class SchedulerCore:
    """Decides which device runs what, and how each task ends.

    Args:
        config: the numbers of the policy.
    """

    def __init__(self, config: CoreConfig | None = None) -> None:
        self.state = CoreState.fresh(config or CoreConfig())

    @property
    def next_wakeup_ns(self) -> int | None:
        """When `TimePassed` is wanted next, None while nothing is due ever."""
        return self.state.timers.next_ns

    def knows(self, key: TaskKey) -> bool:
        """Whether a task is open or its outcome is kept, so that its digest will be compared."""
        return key in self.state.open or self.state.ledger.get(key) is not None

    def order_again(
        self, key: TaskKey, attempt_number: int, device_id: DeviceId, now_ns: int
    ) -> AssignTask | None:
        """The order of an open attempt, for a device that lacks chunks of it; None when it is over.

        Changes nothing.
        """
        task = self.state.open.get(key)
        attempt = None if task is None else task.attempts.get(attempt_number)
        if attempt is None or attempt.device_id != device_id or now_ns > attempt.task.deadline_ns:
            return None
        return placing.order_for(self.state, attempt, is_resent=True)

    def handle(self, event: Event) -> list[Action]:
        """Take one event.

        Args:
            event: its `now_ns` may not be earlier than that of the one before; where it is (a
                clock that jumped), the earlier time counts.

        Returns:
            What has to be done, in order.
        """
        state = self.state
        state.now_ns = max(state.now_ns, event.now_ns)
        state.event_id += 1
        state.out = []
        self._apply(event)
        if state.missed:
            learning.judge_misses(state)
        if state.needs_dispatch:
            placing.dispatch(state)
        if isinstance(event, TaskSubmitted):
            self._confirm(event)
        return state.out

    def check_invariants(self) -> None:
        """Raise AssertionError when the state breaks a rule; for tests."""
        invariants.check(self.state)

    def _apply(self, event: Event) -> None:
        state = self.state
        match event:
            case ReplyAccepted() | ReplyProgressed() | ReplyDone() | ReplyFailed():
                self._reply(event)
            case TaskSubmitted():
                admission.submit(state, event)
            case TimePassed():
                self._pass_time()
            case TaskCancelled():
                admission.cancel(state, event)
            case TaskDigested():
                self._digest(event)
            case HubStarted():
                state.started_ns = state.now_ns
            case AnswerRefuted():
                device = state.fleet.devices.get(event.device_id)
                if device is not None:
                    learning.strike(state, device, event.reason)
            case _:
                self._device(event)

    def _device(
        self,
        event: DeviceOnline
        | DeviceOffline
        | DeviceSeen
        | DeviceBeat
        | DeviceDrained
        | DeviceResumed,
    ) -> None:
        device = self.state.fleet.get(event.device_id)
        match event:
            case DeviceBeat():
                self._beat(device, event)
            case DeviceSeen():
                self._seen(device, event)
            case DeviceOnline():
                device.said_goodbye_ns = 0
                self._come_online(device)
            case DeviceOffline():
                device.said_goodbye_ns = self.state.now_ns
                rescue.lose(self.state, device, "it went offline")
            case DeviceDrained() | DeviceResumed():
                self._set_drained(device, isinstance(event, DeviceDrained))
            case _:
                assert_never(event)

    def _confirm(self, event: TaskSubmitted) -> None:
        """Tell the wearable that its task is in; after the assignment, which is in a hurry."""
        state = self.state
        task = state.open.get((event.client_id, event.task_id))
        if task is not None and task.born_event_id == state.event_id and not event.is_recovered:
            state.out.append(
                PublishEvent(state.event_id, event.task_id, event.client_id, "accepted")
            )

    def _digest(self, event: TaskDigested) -> None:
        key = (event.client_id, event.task_id)
        found = self.state.open.get(key) or self.state.ledger.get(key)
        if found is not None and not found.digest:
            found.digest = event.digest

    def _reply(self, event: Reply) -> None:
        device = self.state.fleet.devices.get(event.device_id)
        if device is None:
            device = self.state.fleet.get(event.device_id)
        self._hear(device)
        replies.reply(self.state, device, event)

    def _hear(self, device: Device) -> None:
        """A sign of life."""
        device.heard_ns = self.state.now_ns
        device.pinged_ns = 0
        if device.suspect_until_ns and device.is_silent:
            rescue.end_suspicion(self.state, device)

    def _measure(self, device: Device) -> None:
        """A heartbeat that was asked for tells the time on the link."""
        if device.probed_ns:
            round_trip = self.state.now_ns - device.probed_ns
            device.probed_ns = 0
            device.accept.add(round_trip, self.state.now_ns)
            device.link.seed(round_trip)
            device.learned()

    def _come_online(self, device: Device) -> None:
        was_online, device.is_online = device.is_online, True
        self._hear(device)
        if not was_online:
            rescue.ping(self.state, device)
        rescue.refresh(self.state, device)
        if not device.is_listened:
            device.is_listened = True
            gone_ns = device.heard_ns + self.state.config.offline_ns
            self.state.timers.add(gone_ns, Due.SILENCE, device)

    def _seen(self, device: Device, event: DeviceSeen) -> None:
        state = self.state
        if device.has_state and device.known.boot != event.description.boot:
            rescue.forsake(state, device, "it was restarted")
        before = list(device.skills)
        device.refused_until_ns = 0
        device.describe(event.description, state.now_ns, state.config)
        state.fleet.rejoin(device, before)
        rescue.refresh(state, device)
        if device.is_online:
            self._hear(device)
        state.needs_dispatch = True
        if device.temp.value is not None or device.battery.value is not None:
            fresh_until = state.now_ns + state.config.telemetry_fresh_ns + 1
            state.timers.add(fresh_until, Due.TELEMETRY, device)

    def _beat(self, device: Device, event: DeviceBeat) -> None:
        state = self.state
        if event.boot and device.has_state and event.boot != device.known.boot:
            rescue.forsake(state, device, "it was restarted")
        goodbye = device.said_goodbye_ns
        if not device.is_online and (not goodbye or state.now_ns - goodbye > _GOODBYE_NS):
            self._come_online(device)
        if device.suspect_until_ns:
            rescue.end_suspicion(state, device)
        self._hear(device)
        self._measure(device)
        if device.refused_until_ns and device.refused_until_ns <= state.now_ns:
            device.refused_until_ns = 0
            rescue.refresh(state, device)
        if device.held:
            self._reconcile(device, event)

    def _reconcile(self, device: Device, event: DeviceBeat) -> None:
        """Compare what the device says it holds with what it was given."""
        state = self.state
        if len(event.held) >= _FULL_LIST:
            return
        told = set(event.held)
        for attempt in list(device.held):
            if attempt.task.task_id in told:
                rescue.take_back(state, device, attempt)
                continue
            since = attempt.accepted_ns or attempt.accept_by_ns
            is_unwanted = attempt.state is AttemptState.UNWANTED
            if is_unwanted or state.now_ns - since > _IN_TRANSIT_NS:
                device.release(attempt, state.now_ns)
                rescue.requeue(state, attempt, "it no longer has it", is_lost=True)
                state.fleet.update(device)
                state.needs_dispatch = True

    def _set_drained(self, device: Device, drained: bool) -> None:
        state = self.state
        device.is_drained = drained
        if not drained:
            device.quarantined_ns = device.quarantine_for_ns = 0
            device.probes_left = 0
        rescue.refresh(state, device)
        order = TellDevice(state.event_id, device.device_id, "drain" if drained else "resume")
        state.out.append(order)

    def _pass_time(self) -> None:
        for _, due, subject in self.state.timers.pop_due(self.state.now_ns):
            if isinstance(subject, TaskRecord):
                self._task_due(due, subject)
            elif isinstance(subject, Attempt):
                self._attempt_due(due, subject)
            elif isinstance(subject, Device):
                self._device_due(due, subject)
            else:
                self._due(due, subject)
            if self.state.missed:
                learning.judge_misses(self.state)
            if self.state.needs_dispatch:
                placing.dispatch(self.state)

    def _task_due(self, due: Due, task: TaskRecord) -> None:
        if due is Due.GRACE:
            admission.grace_due(self.state, task)
        elif not task.is_decided:
            span_ms = (task.deadline_ns - task.submitted_ns) / 1e6
            where = "it was still waiting" if task.is_waiting else "no device answered in time"
            fail(
                self.state,
                task,
                "expired",
                "expired",
                f"expected an answer within {span_ms:.0f} ms; {where};"
                " allow more time or lower the rate",
            )

    def _attempt_due(self, due: Due, attempt: Attempt) -> None:
        if due is Due.ACCEPT:
            rescue.accept_due(self.state, attempt)
        elif due is Due.HEDGE:
            rescue.hedge_due(self.state, attempt)
        else:
            rescue.lease_due(self.state, attempt)

    def _device_due(self, due: Due, device: Device) -> None:
        if due is Due.WATCH:
            rescue.watch_due(self.state, device)
        elif due is Due.SUSPICION:
            rescue.suspicion_due(self.state, device)
        elif due is Due.SILENCE:
            rescue.silence_due(self.state, device)
        elif due is Due.QUARANTINE:
            learning.quarantine_due(self.state, device)
        else:
            rescue.refresh(self.state, device)

    def _due(self, due: Due, subject: Subject) -> None:
        state = self.state
        if due is Due.LEDGER:
            state.ledger_at_ns = 0
            forget_results(state, state.ledger.expire(state.now_ns))
            watch_ledger(state)
        else:
            state.needs_dispatch = True
