"""The policy, rule by rule, on simulated devices and a simulated clock."""

import math
import random
from functools import partial

import pytest

from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.scheduler import report
from ispine.scheduler.actions import (
    AssignTask,
    CancelAttempt,
    ProbeDevice,
    PublishEvent,
    PublishResult,
    RefuseDuplicate,
    RepeatResult,
    ReportDevice,
)
from ispine.scheduler.config import MS, SECOND, CoreConfig
from ispine.scheduler.core import SchedulerCore
from ispine.scheduler.device import Device
from ispine.scheduler.events import (
    AnswerRefuted,
    CapabilityOffer,
    DeviceBeat,
    DeviceDescription,
    DeviceDrained,
    DeviceOnline,
    DeviceResumed,
    DeviceSeen,
    HubStarted,
    ReplyAccepted,
    ReplyDone,
    ReplyFailed,
    TaskCancelled,
    TaskDigested,
    TaskSubmitted,
    TimePassed,
    VariantOffer,
)
from ispine.scheduler.sim import SimDevice, World

WORK = Capability("work")


def make_device(
    name: str,
    service_ms: float = 10.0,
    *,
    really_ms: float | None = None,
    slots: int = 1,
    link_ms: float = 0.3,
    idempotent: bool = True,
    variants: tuple[VariantOffer, ...] = (),
    max_batch: int = 1,
    max_input_bytes: int = 8 << 20,
    owner: str = "",
    seed: int = 1,
    telemetry: DeviceDescription | None = None,
) -> SimDevice:
    rng = random.Random(f"{seed}{name}")
    took = service_ms if really_ms is None else really_ms
    told = telemetry or DeviceDescription()
    offer = CapabilityOffer(
        WORK,
        variants or (VariantOffer("", service_ms * MS),),
        idempotent,
        max_batch,
        max_input_bytes,
    )
    return SimDevice(
        DeviceId(name),
        {WORK: lambda _: took * MS * rng.uniform(0.95, 1.05)},
        lambda _: link_ms * MS,
        DeviceDescription(
            1,
            slots,
            (offer,),
            owner,
            told.battery_pct,
            told.is_charging,
            told.temp_c,
            told.temp_soft_c,
            told.temp_hard_c,
            told.accepts,
            told.refusal,
            told.is_draining,
        ),
    )


def make_world(*devices: SimDevice, config: CoreConfig | None = None) -> World:
    world = World(SchedulerCore(config or CoreConfig()), keep_actions=True)
    world.after_event = world.core.check_invariants
    world.tell(HubStarted(0))
    world.run(3 * SECOND)
    for device in devices:
        world.start(device)
    world.run(world.now_ns + 20 * MS)
    return world


def device_of(world: World, name: str) -> Device:
    return world.core.state.fleet.devices[DeviceId(name)]


def statuses(world: World) -> list[tuple[str, str, str]]:
    return [(r.task_id, r.status, r.code) for _, r in world.results]


def submit_all(world: World, count: int, **options: object) -> None:
    for index in range(count):
        world.submit(f"t{index}", **options)  # type: ignore[arg-type]


def test_one_task_one_answer() -> None:
    world = make_world(make_device("a"))
    actions = world.submit("t")
    assert [type(action) for action in actions] == [AssignTask, PublishEvent]
    world.run(world.now_ns + SECOND)
    assert statuses(world) == [("t", "done", "")]
    result = world.results[0][1]
    assert result.device_id == "a"
    assert result.attempts == 1
    assert result.total_ms == pytest.approx(10.6, abs=1)
    assert result.predicted_ms == pytest.approx(result.total_ms, rel=0.2)


def test_makespan_of_a_burst_on_unequal_workers() -> None:
    world = make_world(make_device("fast", 10), make_device("slow", 40))
    start = world.now_ns
    submit_all(world, 200)
    world.run(start + 10 * SECOND)
    assert len(world.results) == 200
    assert (world.results[-1][0] - start) / (1.6 * SECOND) <= 1.03


def test_open_loop_at_seventy_percent() -> None:
    world = make_world(make_device("fast", 10), make_device("slow", 40))
    world.after_event = None
    rng = random.Random(5)
    when = world.now_ns
    for index in range(1500):
        when += int(rng.expovariate(87.5) * SECOND)
        world.at(when, partial(world.submit, f"t{index}"))
    world.run(when + 5 * SECOND)
    latencies = sorted(result.total_ms for _, result in world.results)
    assert len(latencies) == 1500
    assert latencies[1485] <= 80


def test_the_last_tasks_wait_for_the_fast_device() -> None:
    world = make_world(make_device("fast", 10), make_device("slow", 100))
    submit_all(world, 5)
    world.run(world.now_ns + SECOND)
    assert {order.device_id for _, order in world.given} == {"fast"}


def test_nothing_is_held_beyond_slots_and_one() -> None:
    world = make_world(make_device("a", 50, slots=2))
    submit_all(world, 20)
    assert len(device_of(world, "a").held) == 3
    assert len(world.core.state.waiting) == 17


@pytest.mark.parametrize("fault", ["kill", "freeze", "cut"])
@pytest.mark.parametrize("victim", ["fast", "slow"])
def test_a_lost_worker_costs_little(fault: str, victim: str) -> None:
    world = make_world(make_device("fast", 10), make_device("slow", 40))
    start = world.now_ns
    submit_all(world, 200)
    at = start + 333 * MS
    world.run(at)
    held = {attempt.task.task_id for attempt in device_of(world, victim).held}
    left = 200 - len(world.results)
    if fault == "kill":
        world.kill(DeviceId(victim))
    elif fault == "freeze":
        world.freeze(DeviceId(victim))
    else:
        world.devices[DeviceId(victim)].is_cut = True
    world.run(start + 60 * SECOND)
    assert sorted(r.task_id for _, r in world.results) == sorted(f"t{i}" for i in range(200))
    assert {r.status for _, r in world.results} == {"done"}
    rescued = [t for t, o in world.given if o.task_id in held and o.device_id != victim and t > at]
    assert len(rescued) == len(held)
    assert max(rescued) - at <= 200 * MS
    survivor_ms = 40 if victim == "fast" else 10
    assert world.results[-1][0] - at <= 1.1 * left * survivor_ms * MS


def test_a_thawed_device_works_again() -> None:
    world = make_world(make_device("fast", 10), make_device("slow", 40))
    submit_all(world, 50)
    world.freeze(DeviceId("fast"))
    world.run(world.now_ns + 500 * MS)
    world.thaw(DeviceId("fast"))
    world.run(world.now_ns + 10 * SECOND)
    assert len(world.results) == 50
    world.given.clear()
    world.submit("again")
    assert world.given[0][1].device_id == "fast"


def test_the_only_device_is_not_quarantined_for_being_slow() -> None:
    world = make_world(make_device("slow", 10))
    slow = device_of(world, "slow")
    for _ in range(20):
        slow.calibration.add(100 * MS, 10 * MS)
    world.devices[DeviceId("slow")].service = {WORK: lambda _: 200.0 * MS}
    for index in range(4):
        world.submit(f"t{index}", within_ns=10 * SECOND)
    world.run(world.now_ns + 5 * SECOND)
    assert [status for _, status, _ in statuses(world)] == ["done"] * 4
    assert world.core.state.counters.quarantined == 0


def test_a_freeze_is_not_taken_for_a_slow_link() -> None:
    world = make_world(make_device("fresh", 10), make_device("other", 10))
    device_of(world, "fresh").link.count = 0
    world.freeze(DeviceId("fresh"))
    submit_all(world, 40)
    world.run(world.now_ns + 400 * MS)
    world.thaw(DeviceId("fresh"))
    world.run(world.now_ns + 5 * SECOND)
    assert len(world.results) == 40
    assert device_of(world, "fresh").link.base.mean_ns < 20 * MS
    world.given.clear()
    for index in range(10):
        world.submit(f"again{index}")
    world.run(world.now_ns + SECOND)
    assert {order.device_id for _, order in world.given} == {"fresh", "other"}


def test_an_idle_frozen_device_costs_one_rescue() -> None:
    world = make_world(make_device("fast", 10), make_device("slow", 40))
    world.freeze(DeviceId("fast"))
    start = world.now_ns
    world.submit("t", within_ns=500 * MS)
    world.run(start + SECOND)
    assert statuses(world) == [("t", "done", "")]
    assert world.results[0][0] - start <= 250 * MS


def test_a_lost_assignment_is_sent_again_once_to_the_same_device() -> None:
    world = make_world(make_device("a"))
    lost: list[object] = []

    def lose_first(message: object) -> bool:
        if isinstance(message, AssignTask) and not lost:
            lost.append(message)
            return True
        return False

    world.lose = lose_first
    world.submit("t")
    world.run(world.now_ns + SECOND)
    assert [(order.attempt, order.is_resent) for _, order in world.given] == [(1, False), (1, True)]
    assert statuses(world) == [("t", "done", "")]


def test_a_late_answer_is_hedged_once_and_the_loser_cancelled() -> None:
    world = make_world(make_device("a", 20), make_device("b", 25))
    world.devices[DeviceId("a")].service[WORK] = lambda _: 2000.0 * MS
    world.submit("t", within_ns=300 * MS)
    start = world.now_ns
    world.run(start + 5 * SECOND)
    assert [(o.device_id, o.is_hedge) for _, o in world.given] == [("a", False), ("b", True)]
    assert world.given[1][0] - start <= 180 * MS
    assert statuses(world) == [("t", "done", "")]
    cancels = [action for action in world.actions if isinstance(action, CancelAttempt)]
    assert [(action.device_id, action.attempt) for action in cancels] == [("a", 1)]


def test_a_lease_ends_when_another_device_can_still_make_it() -> None:
    config = CoreConfig(hedge_share=0.0, hedge_burst=0.0)
    world = make_world(make_device("a", 20), make_device("b", 25), config=config)
    world.devices[DeviceId("a")].service[WORK] = lambda _: 3000.0 * MS
    start = world.now_ns
    world.submit("t", within_ns=2 * SECOND)
    world.run(start + 5 * SECOND)
    assert [(o.device_id, o.is_hedge) for _, o in world.given] == [("a", False), ("b", False)]
    assert 165 * MS <= world.given[1][0] - start <= 260 * MS
    assert statuses(world) == [("t", "done", "")]
    cancels = [action for action in world.actions if isinstance(action, CancelAttempt)]
    assert [(action.device_id, action.attempt) for action in cancels] == [("a", 1)]


def test_a_lease_is_longer_where_nobody_else_can_make_it() -> None:
    world = make_world(make_device("a", 20))
    world.devices[DeviceId("a")].service[WORK] = lambda _: 1000.0 * MS
    world.submit("t", within_ns=2 * SECOND)
    world.run(world.now_ns + 5 * SECOND)
    assert [(o.device_id, o.attempt) for _, o in world.given] == [("a", 1)]
    assert statuses(world) == [("t", "done", "")]


def test_hedges_stay_in_the_budget() -> None:
    world = make_world(make_device("a", 10), make_device("b", 12))
    world.devices[DeviceId("a")].service[WORK] = lambda _: 80.0 * MS
    for index in range(300):
        world.at(
            world.now_ns + index * 40 * MS,
            partial(world.submit, f"t{index}", within_ns=2 * SECOND),
        )
    world.run(world.now_ns + 20 * SECOND)
    counters = world.core.state.counters
    assert counters.hedged <= 3 + 0.05 * (counters.assigned - counters.hedged)


def test_work_that_must_not_run_twice_is_not_hedged_and_stays() -> None:
    world = make_world(make_device("a", 20, idempotent=False), make_device("b", 25))
    world.devices[DeviceId("a")].service[WORK] = lambda _: 400.0 * MS
    world.submit("t", within_ns=2 * SECOND)
    world.run(world.now_ns + 3 * SECOND)
    assert [order.device_id for _, order in world.given] == ["a"]
    assert statuses(world) == [("t", "done", "")]


def test_the_first_answer_of_any_attempt_wins_and_later_ones_are_dropped() -> None:
    world = make_world(make_device("a", 20), make_device("b", 25))
    world.submit("t")
    world.devices[DeviceId("a")].is_cut = True
    world.run(world.now_ns + 180 * MS)
    assert [order.device_id for _, order in world.given if not order.is_resent] == ["a", "b"]
    late = ReplyDone(world.now_ns, TaskId("t"), ClientId("wearable"), DeviceId("a"), 1, 5)
    before = len(world.results)
    world.tell(late)
    world.tell(late)
    world.run(world.now_ns + SECOND)
    assert len(world.results) == 1
    assert world.core.state.counters.late_answers >= 2 - (1 - before)


def test_refusals_name_the_reason() -> None:
    world = make_world(make_device("a", 100))
    world.submit("slow", within_ns=50 * MS)
    world.submit("nobody", "other")
    world.submit("late", within_ns=0)
    world.submit("past", within_ns=-5 * MS)
    world.submit("far", within_ns=10**6 * SECOND)
    world.submit("huge", size_bytes=9 << 20)
    assert [(task, code) for task, _, code in statuses(world)] == [
        ("slow", "too_busy"),
        ("nobody", "no_capable_device"),
        ("late", "expired"),
        ("past", "expired"),
        ("far", "rejected"),
        ("huge", "rejected"),
    ]
    fields = world.results[0][1].fields
    assert fields["predicted_ms"] == pytest.approx(100, abs=5)
    assert "allow at least" in str(fields["suggestion"])
    assert all("expected" in result.message for _, result in world.results)


def test_a_full_fleet_refuses_what_it_cannot_make() -> None:
    world = make_world(make_device("a", 50))
    submit_all(world, 20, within_ns=300 * MS)
    world.run(world.now_ns + SECOND)
    codes = [code for _, _, code in statuses(world)]
    assert codes.count("too_busy") >= 12
    assert codes.count("") >= 4


def test_a_smaller_variant_where_the_deadline_asks_for_it() -> None:
    variants = (
        VariantOffer("fp32", 100.0 * MS, 1.0, "coco"),
        VariantOffer("int8", 20.0 * MS, 0.9, "coco"),
        VariantOffer("other", 1.0 * MS, 0.5, "faces"),
    )
    world = make_world(make_device("a", variants=variants))
    world.submit("easy", within_ns=SECOND)
    world.run(world.now_ns + 2 * SECOND)
    world.submit("hurry", within_ns=60 * MS)
    world.submit("no", within_ns=5 * MS)
    assert [order.variant for _, order in world.given] == ["fp32", "int8"]
    assert statuses(world)[-1] == ("no", "rejected", "too_busy")
    assert world.core.state.counters.degraded == 1


def test_no_device_yet_means_waiting_for_a_grace() -> None:
    world = World(SchedulerCore())
    world.tell(HubStarted(0))
    world.submit("early")
    assert not world.results
    world.run(SECOND)
    world.start(make_device("a"))
    world.run(2 * SECOND)
    assert statuses(world) == [("early", "done", "")]
    world.run(10 * SECOND)
    world.submit("never", "other")
    assert statuses(world)[-1] == ("never", "rejected", "no_capable_device")


def test_tasks_of_a_fleet_that_left_are_refused_after_the_grace() -> None:
    world = make_world(make_device("a", 50))
    submit_all(world, 3)
    world.kill(DeviceId("a"))
    world.run(world.now_ns + SECOND)
    assert not world.results
    world.run(world.now_ns + 5 * SECOND)
    assert {code for _, _, code in statuses(world)} == {"no_capable_device"}
    assert len(world.results) == 3


def test_draining_takes_nothing_new_and_finishes_the_rest() -> None:
    world = make_world(make_device("a"))
    world.submit("t1")
    world.tell(DeviceDrained(world.now_ns, DeviceId("a")))
    world.submit("t2")
    world.run(world.now_ns + SECOND)
    assert statuses(world) == [("t2", "rejected", "no_capable_device"), ("t1", "done", "")]
    world.tell(DeviceResumed(world.now_ns, DeviceId("a")))
    world.submit("t3")
    world.run(world.now_ns + SECOND)
    assert statuses(world)[-1] == ("t3", "done", "")


def submitted(world: World, task: str, digest: str = "") -> TaskSubmitted:
    return TaskSubmitted(
        world.now_ns,
        TaskId(task),
        ClientId("wearable"),
        WORK,
        100,
        world.now_ns + 60 * SECOND,
        digest=digest,
    )


def test_a_copy_gets_the_same_result_and_other_data_is_refused() -> None:
    world = make_world(make_device("a"))
    world.tell(submitted(world, "t"))
    world.tell(TaskDigested(world.now_ns, TaskId("t"), ClientId("wearable"), "d1"))
    assert isinstance(world.tell(submitted(world, "t", "d2"))[0], RefuseDuplicate)
    assert isinstance(world.tell(submitted(world, "t", "d1"))[0], PublishEvent)
    world.run(world.now_ns + SECOND)
    assert isinstance(world.tell(submitted(world, "t", "d1"))[0], RepeatResult)
    assert isinstance(world.tell(submitted(world, "t", "d2"))[0], RefuseDuplicate)
    assert len(world.given) == 1
    world.run(world.now_ns + 310 * SECOND)
    assert not world.core.knows((ClientId("wearable"), TaskId("t")))


def test_a_cancel_may_overtake_its_task() -> None:
    world = make_world(make_device("a"))
    world.tell(TaskCancelled(world.now_ns, TaskId("t"), ClientId("wearable"), "bored"))
    world.submit("t")
    assert statuses(world) == [("t", "cancelled", "cancelled")]
    assert not world.given


def test_the_earliest_deadline_goes_first_inside_a_class() -> None:
    world = make_world(make_device("a", 20))
    submit_all(world, 2)
    world.submit("later", within_ns=9 * SECOND)
    world.submit("sooner", within_ns=5 * SECOND)
    world.submit("urgent", within_ns=9 * SECOND, priority=2)
    world.submit("background", within_ns=SECOND, priority=0)
    world.run(world.now_ns + SECOND)
    order = [order.task_id for _, order in world.given]
    assert order == ["t0", "t1", "urgent", "sooner", "later", "background"]


def test_wearables_share_by_weight() -> None:
    world = make_world(
        make_device("a", 10), config=CoreConfig(weights={"heavy": 3.0}, fair_window_ns=20 * MS)
    )
    for client in ("heavy", "light"):
        for index in range(200):
            world.submit(f"t{index}", client=client, within_ns=60 * SECOND)
    world.run(world.now_ns + SECOND)
    served = [result.client_id for _, result in world.results]
    assert served.count(ClientId("heavy")) / served.count(ClientId("light")) == pytest.approx(
        3, rel=0.15
    )


def test_a_flood_does_not_starve_another_wearable() -> None:
    world = make_world(make_device("a", 10))
    submit_all(world, 500, client="flood")
    world.run(world.now_ns + 100 * MS)
    start = world.now_ns
    world.submit("mine", client="calm", within_ns=SECOND)
    world.run(start + SECOND)
    mine = [when for when, result in world.results if result.client_id == "calm"]
    assert mine[0] - start <= 60 * MS


@pytest.mark.parametrize(
    ("told", "block"),
    [
        (DeviceDescription(battery_pct=10, is_charging=False), "battery at 10 %, not charging"),
        (DeviceDescription(accepts=False, refusal="quiet hours"), "quiet hours"),
        (DeviceDescription(is_draining=True), "drained"),
        (DeviceDescription(battery_pct=10, is_charging=True), ""),
        (DeviceDescription(battery_pct=math.nan, temp_c=math.inf), ""),
    ],
)
def test_the_owners_rules_and_the_battery(told: DeviceDescription, block: str) -> None:
    world = make_world(make_device("a", telemetry=told), make_device("b", 100))
    assert device_of(world, "a").block == block
    world.submit("t")
    assert world.given[0][1].device_id == ("b" if block else "a")


def test_a_hot_device_is_avoided_until_its_reading_is_old() -> None:
    hot = DeviceDescription(temp_c=84, temp_soft_c=60, temp_hard_c=85)
    world = make_world(make_device("hot", 10, telemetry=hot), make_device("cool", 15))
    world.submit("t1")
    world.run(world.now_ns + 61 * SECOND)
    world.submit("t2")
    assert [order.device_id for _, order in world.given] == ["cool", "hot"]


def test_an_impossible_jump_is_ignored_until_it_is_confirmed() -> None:
    world = make_world(make_device("a", telemetry=DeviceDescription(battery_pct=80)))
    state = world.core.state
    device = device_of(world, "a")

    def tell(battery_pct: float) -> float | None:
        told = DeviceDescription(1, 1, device.known.offers, "", battery_pct, False)
        world.tell(DeviceSeen(world.now_ns, DeviceId("a"), told))
        return device.battery.fresh(state.now_ns, state.config.telemetry_fresh_ns)

    assert tell(3) == 80
    assert device.ignored_readings == 1
    assert tell(79) == 79
    assert tell(3) == 79
    assert tell(4) == 4


@pytest.mark.parametrize("service", [math.nan, math.inf, -1.0, 1e30])
def test_a_device_that_reports_nonsense_gets_nothing(service: float) -> None:
    world = make_world(
        make_device("mad", variants=(VariantOffer("", service),)), make_device("b", 100)
    )
    world.submit("t")
    assert world.given[0][1].device_id == "b"


def test_a_million_slots_are_not_believed() -> None:
    world = make_world(make_device("a", slots=1_000_000))
    submit_all(world, 100)
    assert len(device_of(world, "a").held) == 65


def test_a_device_that_fails_what_others_solve_is_quarantined_and_probed() -> None:
    world = make_world(make_device("bad", 5), make_device("good", 10))
    bad = world.devices[DeviceId("bad")]
    bad.failure = lambda: "execution_failed" if bad.ran <= 3 else ""
    for index in range(6):
        world.submit(f"t{index}")
        world.run(world.now_ns + 100 * MS)
    assert "quarantined" in device_of(world, "bad").block
    assert {r.status for _, r in world.results} == {"done"}
    world.run(world.now_ns + 6 * SECOND)
    assert report.standing(device_of(world, "bad")).startswith("on probation")
    for index in range(6, 12):
        world.submit(f"t{index}")
        world.run(world.now_ns + 100 * MS)
    assert report.standing(device_of(world, "bad")) == "ready"
    told = [a.standing for a in world.actions if isinstance(a, ReportDevice)]
    assert told[-3:] == ["quarantined", "probation", "trusted"]


def test_refuted_answers_quarantine() -> None:
    world = make_world(make_device("a"))
    for _ in range(3):
        world.tell(AnswerRefuted(world.now_ns, DeviceId("a"), "its boxes are wrong"))
    assert device_of(world, "a").block == "quarantined: its boxes are wrong"
    world.submit("t")
    assert statuses(world) == [("t", "rejected", "no_capable_device")]
    assert "quarantined" in world.results[0][1].message


def test_a_device_that_never_answers_is_quarantined() -> None:
    world = make_world(make_device("stuck", 5), make_device("b", 10))
    world.devices[DeviceId("stuck")].service[WORK] = lambda _: 1e15
    for index in range(100):
        world.at(
            world.now_ns + index * 100 * MS,
            partial(world.submit, f"t{index}", within_ns=150 * MS),
        )
    world.run(world.now_ns + 12 * SECOND)
    late = [status for _, status, _ in statuses(world)[-50:]]
    assert late.count("done") == 50


def test_estimates_follow_a_device_that_throttles() -> None:
    world = make_world(make_device("a", 10), make_device("b", 30))
    world.devices[DeviceId("a")].service[WORK] = lambda _: 60.0 * MS
    for index in range(60):
        world.at(
            world.now_ns + index * 70 * MS,
            partial(world.submit, f"t{index}", within_ns=500 * MS),
        )
    world.run(world.now_ns + 6 * SECOND)
    assert {order.device_id for _, order in world.given[-10:]} == {"b"}
    assert {status for _, status, _ in statuses(world)} == {"done"}


def test_an_error_of_the_task_is_final_and_one_of_the_device_is_tried_elsewhere() -> None:
    world = make_world(make_device("a", 5), make_device("b", 10))
    world.lose = lambda message: isinstance(message, AssignTask)

    def give_back(task: str, code: str) -> None:
        order = next(o for _, o in reversed(world.given) if o.task_id == task)
        names = (order.task_id, order.client_id, order.device_id, order.attempt)
        world.tell(ReplyAccepted(world.now_ns, *names))
        world.tell(ReplyFailed(world.now_ns, *names, code, "why"))

    world.submit("t1")
    give_back("t1", "rejected")
    assert statuses(world) == [("t1", "rejected", "rejected")]
    world.submit("t2")
    give_back("t2", "execution_failed")
    give_back("t2", "execution_failed")
    assert statuses(world)[-1] == ("t2", "failed", "execution_failed")
    assert [o.device_id for _, o in world.given if o.task_id == "t2"] == ["a", "b"]


def test_durable_tasks_outlive_many_devices() -> None:
    world = make_world(make_device("a", 50), make_device("b", 60))
    world.submit("t", within_ns=600 * SECOND, durable=True)
    for _ in range(4):
        holder = next(d.device_id for d in world.core.state.fleet.devices.values() if d.held)
        world.run(world.now_ns + 10 * MS)
        world.kill(holder)
        world.run(world.now_ns + 5 * MS)
        world.start(world.devices[holder])
    world.run(world.now_ns + 5 * SECOND)
    assert statuses(world) == [("t", "done", "")]
    assert world.results[0][1].attempts == 5


def test_realtime_tasks_run_twice_at_most() -> None:
    world = make_world(make_device("a", 50), make_device("b", 60))
    world.submit("t")
    for _ in range(2):
        holder = next(d.device_id for d in world.core.state.fleet.devices.values() if d.held)
        world.run(world.now_ns + 10 * MS)
        world.kill(holder)
        world.run(world.now_ns + 5 * MS)
    assert statuses(world) == [("t", "failed", "execution_failed")]


def test_quotas_refuse_clearly() -> None:
    world = make_world(make_device("a", 100), config=CoreConfig(max_open_per_client=3))
    submit_all(world, 4)
    world.submit("mine", client="other")
    assert statuses(world) == [("t3", "rejected", "too_busy")]
    assert world.results[0][1].fields["quota"] == "tasks of one wearable in flight"


def test_device_seconds_per_minute() -> None:
    config = CoreConfig(device_ns_per_minute=190 * MS)
    world = make_world(make_device("a", 100), config=config)
    for index in range(4):
        world.submit(f"t{index}")
        world.run(world.now_ns + 150 * MS)
    assert [code for _, _, code in statuses(world)] == ["", "", "too_busy", "too_busy"]
    world.run(world.now_ns + 61 * SECOND)
    world.submit("later")
    world.run(world.now_ns + SECOND)
    assert statuses(world)[-1] == ("later", "done", "")


def test_private_tasks_stay_with_their_owner() -> None:
    world = make_world(make_device("hers", 5, owner="eva"), make_device("his", 20, owner="adam"))
    event = submitted(world, "t")
    values = [getattr(event, name) for name in TaskSubmitted.__slots__]
    values[9], values[10] = "adam", True
    world.tell(TaskSubmitted(*values))
    assert world.given[0][1].device_id == "his"


def test_why_tells_the_whole_story() -> None:
    world = make_world(make_device("a", 10), make_device("b", 30))
    world.submit("t")
    world.run(world.now_ns + SECOND)
    story = report.why(world.core.state, "t")
    assert story is not None
    steps = story["steps"]
    assert isinstance(steps, list)
    assert [step["what"] for step in steps if isinstance(step, dict)] == [
        "assigned",
        "accepted",
        "done",
    ]
    parts = story["parts_ms"]
    assert isinstance(parts, dict)
    assert sum(float(str(value)) for value in parts.values()) == pytest.approx(
        float(str(story["total_ms"])), abs=0.1
    )
    assert report.why(world.core.state, "unknown") is None


def test_calibration_and_capacity() -> None:
    world = make_world(make_device("a", 20), make_device("b", 50))
    for index in range(40):
        world.at(world.now_ns + index * 30 * MS, partial(world.submit, f"t{index}"))
    world.run(world.now_ns + 20 * SECOND)
    rows = {row["device"]: row for row in report.devices(world.core.state)}
    assert rows["a"]["calibration_p50"] == pytest.approx(1, abs=0.15)
    found = report.capacity(world.core.state, WORK, 10, 150, 1000)
    assert found.devices == 2
    assert found.total_per_s == pytest.approx(0.85 * 70, rel=0.1)
    assert found.streams == 5
    assert report.capacity(world.core.state, WORK, 10, 30, 1000).devices == 1


def test_time_that_goes_backwards_changes_nothing() -> None:
    world = make_world(make_device("a"))
    world.submit("t", within_ns=100 * MS)
    now = world.core.state.now_ns
    world.core.handle(TimePassed(now - 10 * SECOND))
    assert world.core.state.now_ns == now


def test_an_unknown_heartbeat_brings_a_device_online() -> None:
    core = SchedulerCore()
    core.handle(HubStarted(0))
    core.handle(DeviceSeen(1, DeviceId("a"), make_device("a").description))
    actions = core.handle(DeviceBeat(2, DeviceId("a"), 5, ()))
    assert any(isinstance(action, ProbeDevice) for action in actions)
    assert core.state.fleet.open(WORK)


def test_a_restart_of_the_agent_moves_its_tasks() -> None:
    world = make_world(make_device("a", 30), make_device("b", 60))
    world.submit("t")
    told = world.devices[DeviceId("a")].description
    again = DeviceDescription(2, told.slots, told.offers)
    world.tell(DeviceSeen(world.now_ns, DeviceId("a"), again))
    assert world.core.state.open
    assert len(world.given) == 2


def test_the_same_seed_decides_the_same() -> None:
    def run() -> list[tuple[int, str, str]]:
        world = make_world(*(make_device(f"d{i}", 20) for i in range(5)))
        submit_all(world, 50)
        world.run(world.now_ns + 5 * SECOND)
        return [(when, order.task_id, order.device_id) for when, order in world.given]

    assert run() == run()


def test_a_thousand_devices_are_sampled() -> None:
    world = make_world(*(make_device(f"d{i}", 20) for i in range(150)))
    world.after_event = None
    submit_all(world, 300)
    world.run(world.now_ns + 2 * SECOND)
    assert {status for _, status, _ in statuses(world)} == {"done"}
    assert len({order.device_id for _, order in world.given}) >= 120


def test_results_are_kept_within_a_cap() -> None:
    world = make_world(make_device("a", 1), config=CoreConfig(keep_bytes=5_000))
    for index in range(30):
        world.submit(f"t{index}")
        world.run(world.now_ns + 10 * MS)
    assert world.core.state.ledger.kept_bytes <= 5_000
    assert world.core.knows((ClientId("wearable"), TaskId("t0")))
    assert len([1 for a in world.actions if isinstance(a, PublishResult)]) == 30


def test_online_without_a_state_gets_nothing() -> None:
    core = SchedulerCore()
    core.handle(DeviceOnline(1, DeviceId("a")))
    assert core.state.fleet.devices[DeviceId("a")].block == "has not described itself"


def test_a_task_does_not_wait_for_ever_for_a_fast_device_that_hangs() -> None:
    config = CoreConfig(hedge_share=0.0, hedge_burst=0.0, lease_floor_ns=60 * SECOND)
    world = make_world(make_device("fast", 10), make_device("slow", 60), config=config)
    world.devices[DeviceId("fast")].service[WORK] = lambda _: 1e15
    start = world.now_ns
    submit_all(world, 3)
    world.run(start + SECOND)
    slow = [when for when, order in world.given if order.device_id == "slow"]
    assert slow
    assert slow[0] - start <= 150 * MS


def test_a_hedge_comes_at_sixty_percent_of_a_short_deadline() -> None:
    world = make_world(make_device("a", 40), make_device("b", 45))
    world.devices[DeviceId("a")].service[WORK] = lambda _: 500.0 * MS
    start = world.now_ns
    world.submit("t", within_ns=120 * MS)
    world.run(start + SECOND)
    hedge = next(when for when, order in world.given if order.is_hedge)
    assert hedge - start == pytest.approx(72 * MS, abs=1 * MS)
    assert statuses(world) == [("t", "done", "")]


def test_throttling_that_makes_everything_late_is_learned() -> None:
    world = make_world(make_device("a", 20))
    world.devices[DeviceId("a")].service[WORK] = lambda _: 200.0 * MS
    for index in range(6):
        world.at(
            world.now_ns + index * 250 * MS,
            partial(world.submit, f"t{index}", within_ns=120 * MS),
        )
    world.run(world.now_ns + 3 * SECOND)
    assert statuses(world)[0][2] == "expired"
    assert statuses(world)[-1][2] == "too_busy"


def test_a_heartbeat_frees_the_place_of_what_the_device_no_longer_has() -> None:
    world = make_world(make_device("a", 50))
    submit_all(world, 3)
    device = device_of(world, "a")
    world.tell(TaskCancelled(world.now_ns, TaskId("t1"), ClientId("wearable")))
    assert len(device.held) == 2
    world.tell(DeviceBeat(world.now_ns, DeviceId("a"), 1, ("t0",)))
    assert [attempt.task.task_id for attempt in device.held] == ["t0", "t2"]


def test_more_slots_wait_less() -> None:
    world = make_world(make_device("a", 40, slots=2))
    submit_all(world, 3)
    device = device_of(world, "a")
    assert device.wait_ns(world.core.state.now_ns) == pytest.approx(60 * MS, rel=0.05)
    assert device.wait_ns(world.core.state.now_ns + 30 * MS) == pytest.approx(30 * MS, rel=0.1)
    assert device.wait_ns(world.core.state.now_ns + 70 * MS) == pytest.approx(50 * MS, rel=0.1)


def test_chunks_are_sent_again_only_for_an_open_attempt_of_that_device() -> None:
    world = make_world(make_device("a", 40), make_device("b", 400))
    world.submit("t")
    core, key = world.core, (ClientId("wearable"), TaskId("t"))
    order = core.order_again(key, 1, DeviceId("a"), world.now_ns)
    assert order is not None
    assert (order.attempt, order.device_id, order.is_resent) == (1, "a", True)
    assert core.order_again(key, 1, DeviceId("b"), world.now_ns) is None
    assert core.order_again(key, 2, DeviceId("a"), world.now_ns) is None
    assert core.order_again(key, 1, DeviceId("a"), world.now_ns + 61 * SECOND) is None
    assert core.order_again((key[0], TaskId("x")), 1, DeviceId("a"), world.now_ns) is None


def test_a_pinned_variant() -> None:
    variants = (VariantOffer("fp32", 100.0 * MS), VariantOffer("int8", 20.0 * MS, 0.9))
    world = make_world(make_device("a", variants=variants))
    event = submitted(world, "t")
    for name, expected in (("int8", "int8"), ("fp32", "fp32")):
        values = [getattr(event, field) for field in TaskSubmitted.__slots__]
        values[1], values[11] = TaskId(name), name
        world.tell(TaskSubmitted(*values))
        assert world.given[-1][1].variant == expected
        world.run(world.now_ns + SECOND)
    values[1], values[11] = TaskId("none"), "fp16"
    world.tell(TaskSubmitted(*values))
    assert statuses(world)[-1][2] == "no_capable_device"


def test_heat_rises_between_the_temperatures() -> None:
    told = DeviceDescription(temp_c=70, temp_soft_c=60, temp_hard_c=80)
    world = make_world(make_device("a", telemetry=told))
    assert device_of(world, "a").heat(world.now_ns, CoreConfig()) == pytest.approx(0.5)
    assert device_of(world, "a").price == pytest.approx(1.5)
