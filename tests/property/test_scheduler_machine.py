"""A state machine over the core: whatever happens in whatever order, the invariants hold.

The invariants are those of `ispine.scheduler.invariants`, checked after every event, and those that
need the history: exactly one terminal result per task, nothing given to a device that may get
nothing, never more than slots + 1, work that must not run twice is not hedged, one of two wearables
that both wait is not served much more than the other.
"""

from collections import Counter, defaultdict

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.scheduler.actions import Action, AssignTask, CancelAttempt, PublishResult
from ispine.scheduler.config import MS, SECOND, CoreConfig
from ispine.scheduler.core import SchedulerCore
from ispine.scheduler.events import (
    AnswerRefuted,
    CapabilityOffer,
    DeviceBeat,
    DeviceDescription,
    DeviceDrained,
    DeviceOffline,
    DeviceOnline,
    DeviceResumed,
    DeviceSeen,
    Event,
    HubStarted,
    ReplyAccepted,
    ReplyDone,
    ReplyFailed,
    ReplyProgressed,
    TaskCancelled,
    TaskDigested,
    TaskSubmitted,
    TimePassed,
    VariantOffer,
)

DEVICES = [DeviceId(name) for name in ("a", "b", "c")]
CLIENTS = [ClientId(name) for name in ("x", "y")]
CAPABILITIES = [Capability(name) for name in ("see", "pay")]
TASKS = [TaskId(f"t{index}") for index in range(12)]
CODES = ["execution_failed", "rejected", "expired", "too_busy", "cancelled", "model_unavailable"]

wild_numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -1.0, 5.0, 50.0])
)


@st.composite
def sane_descriptions(draw: st.DrawFn) -> DeviceDescription:
    """A device as it should be."""
    speed = draw(st.sampled_from([5.0, 40.0, 300.0])) * MS
    offers = tuple(
        CapabilityOffer(
            capability,
            (VariantOffer("big", speed, 1.0), VariantOffer("small", speed / 4, 0.8)),
            capability == "see",
            draw(st.sampled_from([1, 1, 4])),
        )
        for capability in CAPABILITIES
    )
    return DeviceDescription(1, draw(st.integers(1, 3)), offers)


@st.composite
def odd_descriptions(draw: st.DrawFn) -> DeviceDescription:
    """What else a device may say of itself."""
    offers = []
    for capability in draw(st.sets(st.sampled_from(CAPABILITIES))):
        variants = tuple(
            VariantOffer(
                name,
                draw(st.one_of(st.sampled_from([5.0 * MS, 40.0 * MS, 300.0 * MS]), wild_numbers)),
                quality,
                draw(st.sampled_from(["", "", "other"])),
                0.0,
                draw(st.integers(0, 5)) > 0,
            )
            for name, quality in (("big", 1.0), ("small", 0.8))
        )
        offers.append(
            CapabilityOffer(
                capability,
                variants,
                capability == "see",
                draw(st.sampled_from([1, 1, 4, -3])),
                draw(st.sampled_from([8 << 20, 8 << 20, 100])),
            )
        )
    return DeviceDescription(
        draw(st.sampled_from([1, 1, 1, 2])),
        draw(st.sampled_from([1, 1, 2, 0, -1, 1_000_000])),
        tuple(offers),
        draw(st.sampled_from(["", "me"])),
        draw(st.one_of(st.none(), wild_numbers, st.sampled_from([10.0, 90.0]))),
        draw(st.booleans()),
        draw(st.one_of(st.none(), wild_numbers, st.sampled_from([30.0, 80.0]))),
        accepts=draw(st.integers(0, 5)) > 0,
        is_draining=draw(st.integers(0, 8)) == 0,
    )


descriptions = st.one_of(sane_descriptions(), sane_descriptions(), odd_descriptions())


class SchedulerMachine(RuleBasedStateMachine):
    """Drives one core and remembers what it decided."""

    def __init__(self) -> None:
        super().__init__()
        self.core = SchedulerCore(
            CoreConfig(max_open_per_client=8, keep_ns=20 * SECOND, traces=5, keep_count=50)
        )
        self.now = SECOND
        self.results: Counter[tuple[ClientId, TaskId]] = Counter()
        self.assigned: list[AssignTask] = []
        self.hedged: Counter[tuple[ClientId, TaskId]] = Counter()
        self.cancelled: set[tuple[ClientId, TaskId, int]] = set()
        self.epoch: dict[tuple[ClientId, TaskId], int] = defaultdict(int)

    def tell(self, event: Event) -> list[Action]:
        standing = {d.device_id: d.block for d in self.core.state.fleet.devices.values()}
        actions = self.core.handle(event)
        self.core.check_invariants()
        for action in actions:
            if isinstance(action, PublishResult):
                self.results[action.client_id, action.task_id] += 1
            elif isinstance(action, AssignTask):
                self.check_assignment(action, standing)
            elif isinstance(action, CancelAttempt):
                self.cancelled.add((action.client_id, action.task_id, action.attempt))
        return actions

    def check_assignment(self, action: AssignTask, standing: dict[DeviceId, str]) -> None:
        device = self.core.state.fleet.devices[action.device_id]
        assert action.ttl_ms >= 1
        if action.is_resent:
            return
        self.assigned.append(action)
        assert device.is_online
        assert not device.is_drained
        assert not device.known.is_draining
        assert device.known.accepts
        assert action.capability in device.skills
        was = standing.get(action.device_id, "")
        quarantined = was.startswith("quarantined") and bool(device.quarantined_ns)
        assert not quarantined, "work for a quarantined device"
        batch = max(skill.batch for skill in device.skills.values())
        assert len(device.held) <= max(device.slots * batch + 1, device.most_held)
        if action.is_hedge:
            assert action.capability == "see", "work that must not run twice was hedged"

    def pick(self, choice: int) -> AssignTask | None:
        """An attempt that a device holds, mostly; else any that was ever made."""
        held = {
            (attempt.task.key, attempt.number)
            for device in self.core.state.fleet.devices.values()
            for attempt in device.held
        }
        live = [a for a in self.assigned if ((a.client_id, a.task_id), a.attempt) in held]
        among = live if live and choice % 4 else self.assigned
        return among[choice // 4 % len(among)] if among else None

    @initialize(seen=st.lists(descriptions, min_size=3, max_size=3))
    def begin(self, seen: list[DeviceDescription]) -> None:
        self.tell(HubStarted(self.now))
        for device, description in zip(DEVICES, seen, strict=True):
            self.tell(DeviceSeen(self.now, device, description))
            self.tell(DeviceOnline(self.now, device))

    @rule(
        task=st.sampled_from(TASKS),
        client=st.sampled_from(CLIENTS),
        capability=st.sampled_from(CAPABILITIES),
        size=st.sampled_from([10, 1000, 9 << 20]),
        within=st.sampled_from([0, -5, 20, 150, 150, 2000, 60_000, 10**9]),
        durable=st.booleans(),
        priority=st.sampled_from([0, 1, 2, 7]),
        digest=st.sampled_from(["", "d1", "d2"]),
        variant=st.sampled_from(["", "", "small", "none"]),
        private=st.integers(0, 4),
    )
    def submit(
        self,
        task: TaskId,
        client: ClientId,
        capability: Capability,
        size: int,
        within: int,
        durable: bool,
        priority: int,
        digest: str,
        variant: str,
        private: int,
    ) -> None:
        key = (client, task)
        known = self.core.knows(key)
        if not known:
            self.results[key] = 0
        before = self.results[key]
        self.tell(
            TaskSubmitted(
                self.now,
                task,
                client,
                capability,
                size,
                self.now + within * MS,
                "durable" if durable else "realtime",
                priority,
                "",
                "me",
                private == 0,
                variant,
                digest if known else "",
            )
        )
        if known:
            assert self.results[key] == before, "a copy of a task was decided again"
        elif digest:
            self.tell(TaskDigested(self.now, task, client, digest))

    @rule(
        first=st.integers(0, 1000),
        count=st.integers(2, 8),
        within=st.sampled_from([100, 400, 60_000]),
        capability=st.sampled_from(CAPABILITIES),
    )
    def submit_many(self, first: int, count: int, within: int, capability: Capability) -> None:
        for index in range(count):
            task = TaskId(f"m{first}-{index}")
            client = CLIENTS[index % 2]
            if not self.core.knows((client, task)):
                self.results[client, task] = 0
            self.tell(
                TaskSubmitted(
                    self.now, task, client, capability, 100, self.now + within * MS, digest="d"
                )
            )

    @rule(span=st.integers(1, 40))
    def work(self, span: int) -> None:
        """Every device does what it should, for a while."""
        for _ in range(span):
            for device in list(self.core.state.fleet.devices.values()):
                attempt = next(iter(device.held), None)
                if attempt is None or not device.is_online:
                    continue
                client, task = attempt.task.key
                names = (task, client, device.device_id, attempt.number)
                if attempt.accepted_ns:
                    took = (self.now - attempt.accepted_ns) / MS
                    self.tell(ReplyDone(self.now, *names, 100, attempt.variant, 0.0, took))
                else:
                    self.tell(ReplyAccepted(self.now, *names))
            self.wait(5)

    @rule(task=st.sampled_from(TASKS), client=st.sampled_from(CLIENTS))
    def cancel(self, task: TaskId, client: ClientId) -> None:
        self.tell(TaskCancelled(self.now, task, client, "changed my mind"))

    @rule(pick=st.integers(0, 200), progress=st.booleans())
    def accept(self, pick: int, progress: bool) -> None:
        a = self.pick(pick)
        if a is None:
            return
        names = (a.task_id, a.client_id, a.device_id, a.attempt)
        if progress:
            self.tell(ReplyProgressed(self.now, *names, 0.5))
        else:
            self.tell(ReplyAccepted(self.now, *names))

    @rule(
        pick=st.integers(0, 200),
        took=st.one_of(wild_numbers, st.sampled_from([5.0, 40.0])),
        copies=st.sampled_from([1, 1, 2]),
    )
    def answer(self, pick: int, took: float, copies: int) -> None:
        a = self.pick(pick)
        if a is None:
            return
        for _ in range(copies):
            self.tell(
                ReplyDone(
                    self.now, a.task_id, a.client_id, a.device_id, a.attempt, 100, "", 0.0, took
                )
            )

    @rule(pick=st.integers(0, 200), code=st.sampled_from(CODES))
    def give_back(self, pick: int, code: str) -> None:
        a = self.pick(pick)
        if a is None:
            return
        self.tell(ReplyFailed(self.now, a.task_id, a.client_id, a.device_id, a.attempt, code))

    @rule(device=st.sampled_from(DEVICES), attempt=st.integers(0, 9), task=st.sampled_from(TASKS))
    def forge(self, device: DeviceId, attempt: int, task: TaskId) -> None:
        self.tell(ReplyDone(self.now, task, CLIENTS[0], device, attempt, 5))

    @rule(device=st.sampled_from(DEVICES), description=descriptions)
    def describe(self, device: DeviceId, description: DeviceDescription) -> None:
        self.tell(DeviceSeen(self.now, device, description))

    @rule(device=st.sampled_from(DEVICES))
    def go_online(self, device: DeviceId) -> None:
        self.tell(DeviceOnline(self.now, device))

    @rule(device=st.sampled_from(DEVICES))
    def go_offline(self, device: DeviceId) -> None:
        self.tell(DeviceOffline(self.now, device))

    @rule(device=st.sampled_from(DEVICES), boot=st.sampled_from([1, 1, 1, 2]), honest=st.booleans())
    def beat(self, device: DeviceId, boot: int, honest: bool) -> None:
        known = self.core.state.fleet.devices.get(device)
        held = tuple(a.task.task_id for a in known.held) if known and honest else ()
        self.tell(DeviceBeat(self.now, device, boot, held))

    @rule(device=st.sampled_from(DEVICES), drained=st.booleans())
    def drain(self, device: DeviceId, drained: bool) -> None:
        self.tell((DeviceDrained if drained else DeviceResumed)(self.now, device))

    @rule(device=st.sampled_from(DEVICES))
    def refute(self, device: DeviceId) -> None:
        self.tell(AnswerRefuted(self.now, device, "its boxes are wrong"))

    @rule(span=st.sampled_from([0, 1, 10, 60, 300, 5_000, 70_000]))
    def wait(self, span: int) -> None:
        until = self.now + span * MS
        for _ in range(2_000):
            due = self.core.next_wakeup_ns
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.tell(TimePassed(self.now))
        else:
            raise AssertionError("the core wakes itself without end")
        self.now = until

    @rule()
    def clock_jumps_back(self) -> None:
        self.tell(TimePassed(self.now - 5 * SECOND))

    @invariant()
    def one_result_each(self) -> None:
        for key, count in self.results.items():
            assert count <= 1, f"{key} was decided {count} times"
        for key in self.core.state.open:
            assert self.results[key] == 0, f"{key} is open and decided"

    @invariant()
    def hedges_are_few(self) -> None:
        counters, config = self.core.state.counters, self.core.state.config
        ordinary = counters.assigned - counters.hedged
        assert counters.hedged <= config.hedge_share * ordinary + config.hedge_burst

    @invariant()
    def all_is_bounded(self) -> None:
        assert len(self.core.state.open) <= 2 * 8
        assert len(self.core.state.ledger) <= 100
        assert len(self.core.state.timers) <= 5_000

    def teardown(self) -> None:
        """In the end every task was decided."""
        self.now += 25 * 3600 * SECOND
        for _ in range(10_000):
            due = self.core.next_wakeup_ns
            if due is None or due > self.now or not self.core.state.open:
                break
            self.tell(TimePassed(due))
        assert not self.core.state.open, "a task was never decided"


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
