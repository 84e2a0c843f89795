"""A fleet in simulated time that drives the real core: for tests, benchmarks and replays.

Devices behave as agents do: they accept at once, run first come first served in their slots, drop
what is too late before running it, answer a ping with a heartbeat and beat once a second. Links
delay, lose and can be cut; devices can be killed and frozen. Nothing here decides anything.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.scheduler.actions import (
    AcknowledgeReply,
    Action,
    AssignTask,
    CancelAttempt,
    ProbeDevice,
    PublishResult,
)
from ispine.scheduler.config import MS, SECOND
from ispine.scheduler.core import SchedulerCore
from ispine.scheduler.events import (
    DeviceBeat,
    DeviceDescription,
    DeviceOffline,
    DeviceOnline,
    DeviceSeen,
    Event,
    ReplyAccepted,
    ReplyDone,
    ReplyFailed,
    TaskSubmitted,
    TimePassed,
)

Sampler = Callable[[int], float]
"""A time in nanoseconds, drawn for the simulated time that is given."""


@dataclass(slots=True, eq=False)
class Job:
    """An assignment on a simulated device."""

    order: AssignTask
    arrived_ns: int
    expires_ns: int
    started_ns: int = 0
    is_cancelled: bool = False


@dataclass(slots=True, eq=False)
class SimDevice:
    """A simulated agent.

    Attributes:
        service: time of one run by capability.
        link: one-way delay.
        description: what it tells the hub.
        failure: asked at the end of each run; an error code makes the run fail, "" does not.
        is_cut: nothing gets through in either direction.
        is_frozen: it does nothing; what is sent to it waits.
        has_died: it is gone for good until `World.start` is called again.
        ran: runs that ended, cancelled ones included.
    """

    device_id: DeviceId
    service: dict[Capability, Sampler]
    link: Sampler
    description: DeviceDescription
    failure: Callable[[], str] | None = None
    is_cut: bool = False
    is_frozen: bool = False
    has_died: bool = False
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    postponed: list[Callable[[], None]] = field(default_factory=list)
    ran: int = 0
    busy_ns: float = 0.0
    generation: int = 0


@dataclass(slots=True)
class World:
    """Simulated time, a fleet and the core.

    Attributes:
        after_event: called after each event that the core handled, such as its invariants.
        results: every `PublishResult` in order.
        given: (time, assignment) of every assignment in order.
    """

    core: SchedulerCore
    after_event: Callable[[], None] | None = None
    now_ns: int = 0
    devices: dict[DeviceId, SimDevice] = field(default_factory=dict)
    results: list[tuple[int, PublishResult]] = field(default_factory=list)
    given: list[tuple[int, AssignTask]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    keep_actions: bool = False
    lose: Callable[[object], bool] | None = None
    _agenda: list[tuple[int, int, Callable[[], object]]] = field(default_factory=list)
    _seq: int = 0

    def at(self, when_ns: int, call: Callable[[], object]) -> None:
        """Call something at a time."""
        self._seq += 1
        heappush(self._agenda, (int(when_ns), self._seq, call))

    def run(self, until_ns: int) -> None:
        """Let time pass."""
        while True:
            wake = self.core.next_wakeup_ns
            call = self._agenda[0][0] if self._agenda else None
            due = min((t for t in (wake, call) if t is not None), default=None)
            if due is None or due > until_ns:
                break
            self.now_ns = max(self.now_ns, due)
            if call is not None and call <= due:
                heappop(self._agenda)[2]()
            else:
                self.tell(TimePassed(self.now_ns))
        self.now_ns = until_ns

    def tell(self, event: Event) -> list[Action]:
        """Give the core an event and carry out its actions."""
        actions = self.core.handle(event)
        if self.keep_actions:
            self.actions.extend(actions)
        for action in actions:
            self._carry_out(action)
        if self.after_event is not None:
            self.after_event()
        return actions

    def start(self, device: SimDevice) -> None:
        """Bring a device online."""
        device.has_died = device.is_frozen = False
        device.generation += 1
        self.devices[device.device_id] = device
        self.tell(DeviceSeen(self.now_ns, device.device_id, device.description))
        self.tell(DeviceOnline(self.now_ns, device.device_id))
        self._beat_later(device, device.generation)

    def kill(self, device_id: DeviceId, *, will_after_ns: int = 1 * MS) -> None:
        """SIGKILL: everything on it is lost and the broker publishes its will."""
        device = self.devices[device_id]
        device.has_died = True
        device.generation += 1
        device.waiting.clear()
        device.running.clear()
        self.at(
            self.now_ns + will_after_ns, lambda: self._tell(DeviceOffline(self.now_ns, device_id))
        )

    def freeze(self, device_id: DeviceId) -> None:
        """SIGSTOP: no sign of life, no will."""
        self.devices[device_id].is_frozen = True

    def thaw(self, device_id: DeviceId) -> None:
        """SIGCONT: what waited happens now."""
        device = self.devices[device_id]
        device.is_frozen = False
        calls, device.postponed = device.postponed, []
        for call in calls:
            call()

    def submit(
        self,
        task_id: str,
        capability: str = "work",
        *,
        client: str = "wearable",
        within_ns: int = 60 * SECOND,
        size_bytes: int = 1000,
        priority: int = 1,
        durable: bool = False,
    ) -> list[Action]:
        """Submit a task now."""
        return self.tell(
            TaskSubmitted(
                self.now_ns,
                TaskId(task_id),
                ClientId(client),
                Capability(capability),
                size_bytes,
                self.now_ns + within_ns,
                "durable" if durable else "realtime",
                priority,
            )
        )

    def _tell(self, event: Event) -> None:
        self.tell(event)

    def _beat_later(self, device: SimDevice, generation: int) -> None:
        def beat() -> None:
            if device.generation == generation:
                self._send(device, lambda now: self._heartbeat(device, now))
                self._beat_later(device, generation)

        self.at(self.now_ns + SECOND, beat)

    def _heartbeat(self, device: SimDevice, now_ns: int) -> Event:
        held = tuple(job.order.task_id for job in (*device.running, *device.waiting))
        return DeviceBeat(now_ns, device.device_id, device.description.boot, held)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, PublishResult):
            self.results.append((self.now_ns, action))
        elif isinstance(action, AssignTask):
            self.given.append((self.now_ns, action))
            self._deliver(action.device_id, action, self._arrive)
        elif isinstance(action, CancelAttempt):
            self._deliver(action.device_id, action, self._withdraw)
        elif isinstance(action, ProbeDevice):
            self._deliver(action.device_id, action, self._answer_probe)
        elif isinstance(action, AcknowledgeReply):
            pass

    def _deliver(
        self,
        device_id: DeviceId,
        action: Action,
        receive: Callable[[SimDevice, Action], None],
    ) -> None:
        device = self.devices.get(device_id)
        if device is None or device.has_died or (self.lose is not None and self.lose(action)):
            return
        generation = device.generation

        def arrive() -> None:
            if device.generation != generation or device.is_cut:
                return
            if device.is_frozen:
                device.postponed.append(lambda: receive(device, action))
            else:
                receive(device, action)

        self.at(self.now_ns + int(device.link(self.now_ns)), arrive)

    def _send(self, device: SimDevice, make: Callable[[int], Event]) -> None:
        if device.has_died or device.is_cut:
            return
        if device.is_frozen:
            device.postponed.append(lambda: self._send(device, make))
            return
        made = make(self.now_ns)
        if self.lose is not None and self.lose(made):
            return

        def arrive() -> None:
            if not device.is_cut:
                self.tell(_at(made, self.now_ns))

        self.at(self.now_ns + int(device.link(self.now_ns)), arrive)

    def _answer_probe(self, device: SimDevice, _: Action) -> None:
        self._send(device, lambda now: self._heartbeat(device, now))

    def _arrive(self, device: SimDevice, action: Action) -> None:
        assert isinstance(action, AssignTask)
        for known in (*device.running, *device.waiting):
            same = known.order.task_id == action.task_id
            if same and known.order.attempt == action.attempt:
                break
        else:
            expires = self.now_ns + action.ttl_ms * MS
            device.waiting.append(Job(action, self.now_ns, expires))
        order = action
        self._send(
            device,
            lambda now: ReplyAccepted(
                now, order.task_id, order.client_id, device.device_id, order.attempt
            ),
        )
        self._run_next(device)

    def _withdraw(self, device: SimDevice, action: Action) -> None:
        assert isinstance(action, CancelAttempt)
        for job in device.running:
            if _is(job, action):
                job.is_cancelled = True
        for job in [job for job in device.waiting if _is(job, action)]:
            device.waiting.remove(job)
            self._fail(device, job.order, "cancelled")

    def _fail(self, device: SimDevice, order: AssignTask, code: str) -> None:
        self._send(
            device,
            lambda now: ReplyFailed(
                now, order.task_id, order.client_id, device.device_id, order.attempt, code
            ),
        )

    def _run_next(self, device: SimDevice) -> None:
        while device.waiting and len(device.running) < device.description.slots:
            device.waiting.sort(key=lambda job: -job.order.priority)
            job = device.waiting.pop(0)
            if self.now_ns > job.expires_ns:
                self._fail(device, job.order, "expired")
                continue
            job.started_ns = self.now_ns
            device.running.append(job)
            took = device.service[job.order.capability](self.now_ns)
            self.at(self.now_ns + int(took), self._end_of(device, job, took))

    def _end_of(self, device: SimDevice, job: Job, took: float) -> Callable[[], None]:
        generation = device.generation

        def end() -> None:
            if device.generation != generation:
                return
            if device.is_frozen:
                device.postponed.append(end)
                return
            device.running.remove(job)
            device.ran += 1
            device.busy_ns += took
            code = "cancelled" if job.is_cancelled else ""
            if not code and device.failure is not None:
                code = device.failure()
            if code:
                self._fail(device, job.order, code)
            else:
                self._finish(device, job, took)
            self._run_next(device)

        return end

    def _finish(self, device: SimDevice, job: Job, took: float) -> None:
        order = job.order
        self._send(
            device,
            lambda now: ReplyDone(
                now,
                order.task_id,
                order.client_id,
                device.device_id,
                order.attempt,
                300,
                order.variant,
                (job.started_ns - job.arrived_ns) / MS,
                took / MS,
            ),
        )


def _is(job: Job, action: CancelAttempt) -> bool:
    return job.order.task_id == action.task_id and job.order.attempt == action.attempt


def _at(event: Event, now_ns: int) -> Event:
    """The same event as it arrives later."""
    values = [getattr(event, name) for name in type(event).__slots__]
    values[0] = now_ns
    return type(event)(*values)
