"""The parts of the core by themselves, and rules that a whole fleet seldom shows."""

import random

import pytest

from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.scheduler.actions import AcknowledgeReply, ForgetResult, ProbeDevice, ReportDevice
from ispine.scheduler.config import MS, SECOND, CoreConfig
from ispine.scheduler.core import SchedulerCore
from ispine.scheduler.device import Reading
from ispine.scheduler.estimate import Calibration, LinkEstimate, TimeEstimate
from ispine.scheduler.events import (
    AnswerRefuted,
    CapabilityOffer,
    DeviceBeat,
    DeviceDescription,
    DeviceOffline,
    DeviceOnline,
    DeviceSeen,
    HubStarted,
    ReplyAccepted,
    ReplyDone,
    ReplyFailed,
    TaskCancelled,
    TaskSubmitted,
    TimePassed,
    VariantOffer,
)
from ispine.scheduler.leases import Leases
from ispine.scheduler.ledger import Ledger, Outcome
from ispine.scheduler.order import WaitingLine
from ispine.scheduler.quota import HedgeBudget, Quotas
from ispine.scheduler.task import Lane, TaskRecord
from ispine.scheduler.timers import Due, Timers

WORK, OTHER = Capability("work"), Capability("other")
START = 10 * SECOND


def submitted(
    task: str,
    now_ns: int = START,
    *,
    capability: Capability = WORK,
    within_ns: int = 60 * SECOND,
    client: str = "me",
    owner: str = "",
    priority: int = 1,
) -> TaskSubmitted:
    return TaskSubmitted(
        now_ns,
        TaskId(task),
        ClientId(client),
        capability,
        100,
        now_ns + within_ns,
        priority=priority,
        owner=owner,
    )


def with_device(*names: str, service_ms: float = 10.0, other_ms: float = 0.0) -> SchedulerCore:
    core = SchedulerCore()
    core.handle(HubStarted(0))
    offers = [CapabilityOffer(WORK, (VariantOffer("", service_ms * MS),))]
    if other_ms:
        offers.append(CapabilityOffer(OTHER, (VariantOffer("", other_ms * MS),)))
    for name in names:
        device = DeviceId(name)
        core.handle(DeviceSeen(START, device, DeviceDescription(1, 1, tuple(offers))))
        core.handle(DeviceOnline(START, device))
        core.handle(DeviceBeat(START + 4 * MS, device, 1, ()))
    return core


def test_an_estimate_moves_to_what_is_true() -> None:
    estimate = TimeEstimate(100e6)
    for _ in range(30):
        estimate.add(10e6, 1)
    assert estimate.mean_ns == pytest.approx(10e6, rel=0.05)
    assert estimate.deviation_ns < 1e6


def test_a_wild_sample_moves_an_estimate_little() -> None:
    estimate = TimeEstimate(10e6)
    for _ in range(20):
        estimate.add(10e6, 1)
    for bad in (float("nan"), float("inf"), -5.0):
        estimate.add(bad, 1)
    assert estimate.mean_ns == pytest.approx(10e6)
    assert estimate.count == 20
    estimate.add(1e12, 1)
    assert estimate.mean_ns <= 17e6


def test_only_an_old_and_unsteady_estimate_is_doubtful() -> None:
    estimate = TimeEstimate(10e6)
    assert not estimate.is_doubtful(10 * SECOND, SECOND)
    for _ in range(5):
        estimate.add(38e6, SECOND)
    assert not estimate.is_doubtful(SECOND + 1, SECOND)
    assert estimate.is_doubtful(3 * SECOND, SECOND)


def test_the_link_learns_its_bandwidth() -> None:
    link = LinkEstimate()
    rng = random.Random(1)
    for _ in range(300):
        size = rng.choice([1_000, 50_000, 200_000])
        link.add(size, 5e6 + 100 * size + rng.uniform(0, 2e5), 1)
    assert link.at(100_000) == pytest.approx(15e6, rel=0.1)
    assert link.at(1_000) == pytest.approx(5.1e6, rel=0.15)


def test_the_link_of_one_size_has_no_slope_and_a_heartbeat_is_its_prior() -> None:
    link = LinkEstimate()
    link.seed(7e6)
    assert link.at(10**6) == pytest.approx(7e6)
    for _ in range(20):
        link.add(1000, 3e6, 1)
    link.seed(50e6)
    assert link.slope == 0
    assert link.at(10**6) == pytest.approx(3e6)


def test_calibration_quantiles() -> None:
    calibration = Calibration()
    assert calibration.quantile(0.5) is None
    assert calibration.latest(2) is None
    for actual in range(1, 101):
        calibration.add(actual * 1e6, 10e6)
    assert calibration.count == 64
    assert calibration.quantile(0.5) == pytest.approx(6.9)
    assert calibration.latest(4) == pytest.approx(9.9)


def test_a_reading_goes_stale() -> None:
    reading = Reading(20.0)
    assert reading.take(50.0, 0, SECOND)
    assert reading.fresh(SECOND, SECOND) == 50
    assert reading.fresh(SECOND + 1, SECOND) is None
    assert reading.take(5.0, 2 * SECOND, SECOND), "an old reading does not make a jump"


def outcome(at_ns: int, size: int = 10) -> Outcome:
    return Outcome("done", "", at_ns, "", size)


def key_of(name: str) -> tuple[ClientId, TaskId]:
    return ClientId("me"), TaskId(name)


def test_the_ledger_forgets_by_age_and_by_bytes() -> None:
    ledger = Ledger(keep_ns=100, keep_bytes=25, keep_count=10)
    assert ledger.next_expiry_ns is None
    assert ledger.record(key_of("a"), outcome(0)) == []
    assert ledger.record(key_of("b"), outcome(50)) == []
    assert ledger.record(key_of("c"), outcome(60)) == [key_of("a")]
    assert ledger.get(key_of("a")) is not None
    assert ledger.kept_bytes == 20
    assert ledger.next_expiry_ns == 100
    assert ledger.expire(99) == []
    assert ledger.expire(150) == [key_of("b")]
    assert ledger.get(key_of("a")) is None
    assert ledger.get(key_of("c")) is not None


def test_the_ledger_remembers_cancels_for_as_long() -> None:
    ledger = Ledger(keep_ns=100, keep_bytes=25, keep_count=2)
    ledger.remember_cancel(key_of("a"), 10, "bored")
    assert ledger.next_expiry_ns == 110
    ledger.expire(109)
    assert ledger.take_cancel(key_of("a")) == "bored"
    assert ledger.take_cancel(key_of("a")) is None
    ledger.remember_cancel(key_of("b"), 10, "")
    ledger.expire(110)
    assert ledger.take_cancel(key_of("b")) is None
    for name in "cde":
        ledger.remember_cancel(key_of(name), 200, "")
    assert ledger.take_cancel(key_of("c")) is None


def test_the_ledger_keeps_no_more_than_its_count() -> None:
    ledger = Ledger(keep_ns=10**9, keep_bytes=10**9, keep_count=3)
    for index in range(10):
        ledger.record(key_of(f"t{index}"), outcome(index))
    assert len(ledger) == 6


def record(task: str, seq: int, **options: object) -> TaskRecord:
    return TaskRecord.of(submitted(task, **options), seq)  # type: ignore[arg-type]


def test_the_line_counts_who_is_ahead() -> None:
    line = WaitingLine(100 * MS, {})
    for index in range(4):
        line.add(record(f"a{index}", index, client="a"))
    line.add(record("u", 9, client="b", priority=2))
    mine = record("m", 10, client="c")
    assert line.ahead(mine) == 1 + 1
    second = record("a9", 11, client="a", within_ns=61 * SECOND)
    assert line.ahead(second) == 1 + 4
    assert line.ahead(record("x", 12, capability=OTHER)) == 0
    assert line.count(mine.lane, 1) == 5
    assert line.count(mine.lane, 2) == 1
    assert line.sharers(mine.lane, 1) == 1
    first = next(task for task in line if task.task_id == "a0")
    line.remove(first)
    assert len(line) == 4
    assert not first.is_waiting


def test_the_line_leaves_out_what_is_blocked() -> None:
    line = WaitingLine(100 * MS, {})
    line.add(record("a", 1, client="a"))
    line.add(record("b", 2, client="b", capability=OTHER))
    work, other = Lane(WORK, None, ""), Lane(OTHER, None, "")
    picked = line.pick({work})
    assert picked is not None
    assert picked.lane == other
    assert line.pick({work, other}) is None
    assert line.pick((), {("a", work), ("b", other)}) is None


def test_wearables_never_differ_by_more_than_the_window_and_one_task() -> None:
    line = WaitingLine(50 * MS, {})
    for index in range(100):
        line.add(record(f"a{index}", index, client="a", within_ns=SECOND))
        line.add(record(f"b{index}", 1000 + index, client="b", within_ns=50 * SECOND))
    for _ in range(100):
        pick = line.pick()
        assert pick is not None
        line.remove(pick.entries[0][2])
        line.charge(pick.client_id, 10 * MS)
        ahead = line.virtual_ns(ClientId("a")) - line.virtual_ns(ClientId("b"))
        assert abs(ahead) <= 60 * MS


def test_an_idle_wearable_saves_up_nothing() -> None:
    line = WaitingLine(10 * MS, {})
    for index in range(50):
        line.add(record(f"a{index}", index, client="a"))
    for _ in range(20):
        pick = line.pick()
        assert pick is not None
        line.remove(pick.entries[0][2])
        line.charge(pick.client_id, 10 * MS)
    line.pick()
    line.add(record("late", 99, client="b"))
    assert line.virtual_ns(ClientId("b")) >= line.virtual_ns(ClientId("a")) - 10 * MS


def test_timers_skip_what_no_longer_matters() -> None:
    alive = {"a", "b"}
    timers: Timers[str] = Timers(lambda due, name: name in alive)
    for index in range(5000):
        timers.add(index, Due.LEASE, "gone")
    timers.add(6000, Due.LEASE, "a")
    timers.add(7000, Due.LEASE, "b")
    assert timers.next_ns == 6000
    assert len(timers) < 5000
    assert [subject for _, _, subject in timers.pop_due(6500)] == ["a"]


def test_the_hedge_budget() -> None:
    budget = HedgeBudget(0.05, 1.0)
    assert budget.can_hedge
    budget.spend()
    assert not budget.can_hedge
    for _ in range(19):
        budget.earn()
    assert not budget.can_hedge
    budget.earn()
    budget.earn()
    assert budget.can_hedge
    assert budget.is_kept


def test_quotas_count_down_again() -> None:
    quotas = Quotas(CoreConfig(max_open_per_owner=1))
    first, second = record("a", 1, owner="eva"), record("b", 2, owner="eva")
    assert quotas.excess(first, 0, 0) is None
    quotas.open(first)
    found = quotas.excess(second, 1, 0)
    assert found is not None
    assert found.quota == "tasks of one owner in flight"
    quotas.close(first)
    assert quotas.excess(second, 0, 0) is None


def test_a_lease_fits_one_attempt_only() -> None:
    leases = Leases(b"0" * 16)
    lease = leases.make("me", "t", 1, "box")
    assert leases.is_valid(lease, "me", "t", 1, "box")
    for other in (("you", "t", 1, "box"), ("me", "u", 1, "box"), ("me", "t", 2, "box")):
        assert not leases.is_valid(lease, *other)
    assert not leases.is_valid(lease, "me", "t", 1, "bax")
    assert not leases.is_valid("ä", "me", "t", 1, "box")
    assert Leases(b"0" * 16).make("me", "t", 1, "box") == lease
    assert Leases(b"1" * 16).make("me", "t", 1, "box") != lease


def codes(core: SchedulerCore, event: TaskSubmitted | TimePassed) -> list[str]:
    return [
        getattr(a, "code", "") for a in core.handle(event) if type(a).__name__ == "PublishResult"
    ]


def test_nobody_came_within_the_grace() -> None:
    core = SchedulerCore()
    core.handle(HubStarted(START))
    core.handle(submitted("t", START + 1))
    due = core.next_wakeup_ns
    assert due is not None
    assert due <= START + 3 * SECOND
    assert codes(core, TimePassed(due)) == ["no_capable_device"]


def test_a_durable_task_waits_for_a_device_until_its_deadline() -> None:
    core = SchedulerCore()
    core.handle(HubStarted(START))
    event = submitted("t", START + 1)
    core.handle(
        TaskSubmitted(
            event.now_ns,
            event.task_id,
            event.client_id,
            WORK,
            100,
            event.deadline_ns,
            "durable",
            is_recovered=True,
        )
    )
    found: list[str] = []
    while core.state.open:
        due = core.next_wakeup_ns
        assert due is not None
        found += codes(core, TimePassed(due))
    assert found == ["expired"]
    assert core.state.now_ns == event.deadline_ns


def test_every_final_reply_is_acknowledged_known_or_not() -> None:
    core = with_device("a")
    core.handle(submitted("t"))
    names = (TaskId("t"), ClientId("me"), DeviceId("a"), 1)
    for event in (
        ReplyDone(START + 9 * MS, *names),
        ReplyDone(START + 10 * MS, *names),
        ReplyFailed(START + 11 * MS, TaskId("x"), ClientId("me"), DeviceId("a"), 1, "expired"),
    ):
        acks = [a for a in core.handle(event) if isinstance(a, AcknowledgeReply)]
        assert len(acks) == 1


def test_tasks_of_another_kind_count_by_the_time_they_take() -> None:
    core = with_device("a", service_ms=10, other_ms=100)
    core.handle(submitted("w0"))
    core.handle(submitted("o0", capability=OTHER))
    for index in range(5):
        core.handle(submitted(f"o{index + 1}", capability=OTHER))
    assert codes(core, submitted("soon", within_ns=300 * MS)) == ["too_busy"]
    assert codes(core, submitted("later", within_ns=1500 * MS)) == []


def test_a_device_that_refuses_rests_for_half_a_second() -> None:
    core = with_device("a", "b")
    first = core.handle(submitted("t"))[0]
    device = getattr(first, "device_id", DeviceId(""))
    names = (TaskId("t"), ClientId("me"), device, 1)
    again = core.handle(ReplyFailed(START + 9 * MS, *names, "too_busy", "owner says no"))
    assert [getattr(a, "device_id", device) != device for a in again if hasattr(a, "ttl_ms")] == [
        True
    ]
    assert core.state.fleet.devices[device].block == "refused work"
    core.handle(DeviceBeat(START + 600 * MS, device, 1, ()))
    assert core.state.fleet.devices[device].block == ""


def test_a_late_device_is_trusted_again_with_its_next_heartbeat() -> None:
    core = with_device("a", "b")
    core.handle(submitted("t", within_ns=500 * MS))
    holder = next(d for d in core.state.fleet.devices.values() if d.held)
    core.handle(ReplyAccepted(START + 5 * MS, TaskId("t"), ClientId("me"), holder.device_id, 1))
    now = START
    while not holder.suspect_until_ns and now < START + 400 * MS:
        now = core.next_wakeup_ns or now
        core.handle(TimePassed(now))
        if holder.pinged_ns and not holder.suspect_until_ns:
            core.handle(DeviceBeat(now, holder.device_id, 1, ("t",)))
    assert holder.suspect_until_ns
    assert not holder.is_silent
    assert holder.held
    core.handle(DeviceBeat(now + 1, holder.device_id, 1, ("t",)))
    assert holder.block == ""


def test_a_suspicion_doubles_without_a_sign_of_life() -> None:
    core = with_device("a")
    core.handle(submitted("t"))
    device = core.state.fleet.devices[DeviceId("a")]
    lengths = []
    for _ in range(400):
        due = core.next_wakeup_ns
        if due is None or not device.is_online:
            break
        core.handle(TimePassed(due))
        if device.suspect_for_ns and device.suspect_for_ns not in lengths:
            lengths.append(device.suspect_for_ns)
    assert lengths[:4] == [300 * MS, 600 * MS, 1200 * MS, 2400 * MS]
    assert device.block == "offline"


def test_standings_are_reported() -> None:
    core = with_device("a")
    told: list[str] = []
    for _ in range(3):
        actions = core.handle(AnswerRefuted(START + SECOND, DeviceId("a"), "wrong"))
        told += [a.standing for a in actions if isinstance(a, ReportDevice)]
    actions = core.handle(TimePassed(START + 7 * SECOND))
    told += [a.standing for a in actions if isinstance(a, ReportDevice)]
    core.handle(DeviceBeat(START + 7 * SECOND, DeviceId("a"), 1, ()))
    assert told[0] == "quarantined"
    assert "probation" in told


def test_a_device_that_comes_online_is_asked_for_its_link() -> None:
    core = with_device()
    core.handle(DeviceSeen(START, DeviceId("a"), DeviceDescription(1, 1)))
    actions = core.handle(DeviceOnline(START, DeviceId("a")))
    assert any(isinstance(action, ProbeDevice) for action in actions)
    core.handle(DeviceBeat(START + 8 * MS, DeviceId("a"), 1, ()))
    assert core.state.fleet.devices[DeviceId("a")].link.at(100) == pytest.approx(8 * MS)


def test_a_heartbeat_right_after_a_goodbye_is_not_believed() -> None:
    core = with_device("a")
    core.handle(DeviceOffline(START + SECOND, DeviceId("a")))
    core.handle(DeviceBeat(START + SECOND + 10 * MS, DeviceId("a"), 1, ()))
    assert core.state.fleet.devices[DeviceId("a")].block == "offline"
    core.handle(DeviceBeat(START + 3 * SECOND, DeviceId("a"), 1, ()))
    assert core.state.fleet.devices[DeviceId("a")].block == ""


def test_a_task_that_the_device_lost_is_given_out_again() -> None:
    core = with_device("a", "b")
    core.handle(submitted("t"))
    holder = next(d for d in core.state.fleet.devices.values() if d.held)
    names = (TaskId("t"), ClientId("me"), holder.device_id, 1)
    core.handle(ReplyAccepted(START + 5 * MS, *names))
    core.handle(DeviceBeat(START + 100 * MS, holder.device_id, 1, ()))
    assert holder.held, "its answer may be on the way"
    core.handle(DeviceBeat(START + 200 * MS, holder.device_id, 1, ()))
    assert not holder.held
    assert [d.device_id for d in core.state.fleet.devices.values() if d.held] != [holder.device_id]


def test_a_cancel_without_a_task_is_forgotten_in_time() -> None:
    core = with_device("a")
    core.handle(TaskCancelled(START, TaskId("t"), ClientId("me"), ""))
    for _ in range(2000):
        due = core.next_wakeup_ns
        if due is None or due > START + 310 * SECOND:
            break
        core.handle(TimePassed(due))
    assert codes(core, submitted("t", START + 311 * SECOND)) != ["cancelled"]


def test_kept_results_are_forgotten_after_five_minutes() -> None:
    core = with_device("a")
    core.handle(submitted("t"))
    core.handle(ReplyDone(START + 9 * MS, TaskId("t"), ClientId("me"), DeviceId("a"), 1, 100))
    forgotten = []
    for _ in range(2000):
        due = core.next_wakeup_ns
        if due is None:
            break
        forgotten += [a for a in core.handle(TimePassed(due)) if isinstance(a, ForgetResult)]
    assert [action.task_id for action in forgotten] == ["t"]
    assert core.state.now_ns >= START + 300 * SECOND


def test_a_batch_axis_is_learned_from_answers_that_come_together() -> None:
    core = SchedulerCore()
    core.handle(HubStarted(0))
    offer = CapabilityOffer(WORK, (VariantOffer("", 40.0 * MS),), max_batch=4)
    core.handle(DeviceSeen(START, DeviceId("a"), DeviceDescription(1, 1, (offer,))))
    core.handle(DeviceOnline(START, DeviceId("a")))
    device = core.state.fleet.devices[DeviceId("a")]
    now = START
    for round_number in range(20):
        for index in range(4):
            core.handle(submitted(f"t{round_number}-{index}", now))
        assert len(device.held) == 4
        now += 40 * MS
        for attempt in list(device.held):
            names = (attempt.task.task_id, ClientId("me"), DeviceId("a"), attempt.number)
            core.handle(ReplyDone(now, *names, 10, "", 0.0, 40.0))
    assert device.skills[WORK].parallel == pytest.approx(4, abs=0.7)
