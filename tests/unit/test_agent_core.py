"""The agent's decisions, rule by rule, with time given."""

from ispine.agent.core import AgentCore
from ispine.agent.events import (
    MS,
    Action,
    AgentLimits,
    AssignmentReceived,
    AttemptCancelled,
    Forget,
    Key,
    Keys,
    Refuse,
    RepeatFinal,
    ReplyAcknowledged,
    ReportSlots,
    RunFinished,
    SendAccepted,
    SendFinal,
    StartRun,
    TimePassed,
    WillingnessChanged,
)

SECOND = 1000 * MS


def key(number: int, attempt: int = 1) -> Key:
    return ("client", f"t{number}", attempt)


def give(core: AgentCore, number: int, now_ns: int = 0, deadline_ns: int = SECOND) -> list[Action]:
    return core.handle(AssignmentReceived(now_ns, key(number), deadline_ns))


def test_an_assignment_runs_at_once_and_is_answered() -> None:
    core = AgentCore()
    assert give(core, 1) == [StartRun((key(1),), (0,))]
    assert core.handle(RunFinished(2 * MS, (key(1),))) == [SendFinal(key(1))]
    assert core.handle(ReplyAcknowledged(3 * MS, key(1))) == [Forget(key(1))]
    assert core.next_wakeup_ns is None


def test_accepted_is_said_only_where_the_answer_takes_longer() -> None:
    core = AgentCore()
    give(core, 1)
    assert core.next_wakeup_ns == 4 * MS
    assert core.handle(TimePassed(4 * MS)) == [SendAccepted(key(1))]
    assert core.handle(TimePassed(5 * MS)) == []


def test_a_duplicate_is_answered_and_never_run_again() -> None:
    core = AgentCore()
    give(core, 1)
    assert give(core, 1) == [SendAccepted(key(1))]
    core.handle(RunFinished(MS, (key(1),)))
    assert give(core, 1) == [RepeatFinal(key(1))]
    assert core.counters.duplicates == 2


def test_the_earliest_deadline_runs_first_and_urgent_before_that() -> None:
    core = AgentCore(AgentLimits(slots=1, spare=5))
    give(core, 1)
    give(core, 2, deadline_ns=900 * MS)
    give(core, 3, deadline_ns=500 * MS)
    core.handle(AssignmentReceived(0, key(4), 990 * MS, 2))
    order = []
    running: Keys = (key(1),)
    for _ in range(3):
        actions = core.handle(RunFinished(MS, running))
        started = [action for action in actions if isinstance(action, StartRun)]
        running = started[0].keys
        order.append(running[0])
    assert order == [key(4), key(3), key(2)]


def test_what_is_late_is_not_run() -> None:
    core = AgentCore(AgentLimits(slots=1))
    give(core, 1)
    give(core, 2, deadline_ns=10 * MS)
    actions = core.handle(RunFinished(20 * MS, (key(1),)))
    assert [type(action) for action in actions] == [Refuse, SendFinal]
    refusal = actions[0]
    assert isinstance(refusal, Refuse)
    assert refusal.code == "expired"
    assert core.counters.expired == 1


def test_more_than_it_can_hold_is_given_back_at_once() -> None:
    core = AgentCore(AgentLimits(slots=1, spare=1))
    give(core, 1)
    give(core, 2)
    refusal = give(core, 3)[0]
    assert isinstance(refusal, Refuse)
    assert refusal.code == "too_busy"


def test_an_owners_rule_gives_back_what_has_not_begun() -> None:
    core = AgentCore(AgentLimits(slots=1, spare=3))
    give(core, 1)
    give(core, 2)
    actions = core.handle(WillingnessChanged(MS, "battery at 5 %"))
    assert actions == [Refuse(key(2), "too_busy", "battery at 5 %")]
    assert core.free_slots == 0
    assert isinstance(give(core, 3)[0], Refuse)
    core.handle(RunFinished(2 * MS, (key(1),)))
    core.handle(WillingnessChanged(3 * MS, ""))
    assert give(core, 4) == [StartRun((key(4),), (0,))]


def test_a_cancelled_task_is_given_back_when_its_slot_is_really_free() -> None:
    core = AgentCore(AgentLimits(slots=1))
    give(core, 1)
    give(core, 2)
    assert core.handle(AttemptCancelled(MS, "t2", 1)) == [
        Refuse(key(2), "cancelled", "taken back before it ran")
    ]
    assert core.handle(AttemptCancelled(MS, "t1", 1)) == []
    assert core.handle(RunFinished(2 * MS, (key(1),))) == [
        Refuse(key(1), "cancelled", "taken back while it ran")
    ]


def test_the_next_run_begins_before_the_last_one_is_answered() -> None:
    core = AgentCore(AgentLimits(slots=1))
    give(core, 1)
    give(core, 2)
    actions = core.handle(RunFinished(MS, (key(1),)))
    assert [type(action) for action in actions] == [StartRun, SendFinal]


def test_a_reply_is_repeated_until_it_is_acknowledged_and_then_given_up() -> None:
    core = AgentCore(AgentLimits(repeat_times=3))
    give(core, 1)
    core.handle(RunFinished(0, (key(1),)))
    times = []
    while core.next_wakeup_ns is not None:
        now_ns = core.next_wakeup_ns
        actions = core.handle(TimePassed(now_ns))
        times.append((now_ns // SECOND, type(actions[0])))
    assert times == [(1, RepeatFinal), (3, RepeatFinal), (7, RepeatFinal), (15, Forget)]
    assert core.counters.unacknowledged == 1


def test_a_run_that_never_ends_costs_its_slot_and_says_so() -> None:
    core = AgentCore(AgentLimits(slots=2, overrun_ns=10 * SECOND))
    give(core, 1)
    core.handle(TimePassed(4 * MS))
    assert core.next_wakeup_ns == 11 * SECOND
    assert core.handle(TimePassed(11 * SECOND)) == [ReportSlots(1)]
    assert core.lost_slots == 1
    assert ReportSlots(0) in core.handle(RunFinished(12 * SECOND, (key(1),)))
