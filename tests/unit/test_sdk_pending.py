"""The client's side of a task's life, event by event, on a clock that stands still."""

import pytest

from ispine.protocol.errors import TaskRejected
from ispine.protocol.messages import Result, Task, TaskEvent
from ispine.sdk.pending import MAX_DONE, MS, Action, EndTask, Pending, SendCancel, SendTask


def task(name: str = "t1", ttl_ms: int = 500, data: bytes = b"", mode: str = "realtime") -> Task:
    return Task(name, "c1", "echo", data, ttl_ms, mode=mode)  # type: ignore[arg-type]


def accepted(name: str = "t1") -> TaskEvent:
    return TaskEvent("accepted", name, "c1")


def done(name: str = "t1") -> Result:
    return Result(name, "c1", "done")


def ended(actions: list[Action]) -> list[tuple[str, str]]:
    return [(a.result.task_id, a.result.status) for a in actions if isinstance(a, EndTask)]


@pytest.fixture
def core() -> Pending:
    return Pending()


def test_a_task_goes_out_with_all_its_time(core: Pending) -> None:
    assert core.submitted(task(), 0) == [SendTask(task(), 500)]


def test_what_is_sent_again_has_the_time_that_is_left(core: Pending) -> None:
    core.submitted(task(), 0)
    assert core.time_passed(80 * MS) == [SendTask(task(), 420, is_again=True)]


def test_the_same_open_task_is_joined_and_another_one_is_refused(core: Pending) -> None:
    core.submitted(task(data=b"a"), 0)
    assert core.submitted(task(data=b"a", ttl_ms=900), MS) == []
    assert core.stats.sent == 1
    with pytest.raises(TaskRejected, match="t1 is open with another"):
        core.submitted(task(data=b"b"), MS)


def test_an_id_can_be_used_again_once_its_task_is_over(core: Pending) -> None:
    core.submitted(task(), 0)
    core.result_heard(done(), MS)
    assert core.submitted(task(), 2 * MS) == [SendTask(task(), 500)]
    assert ended(core.result_heard(done(), 3 * MS)) == [("t1", "done")]
    assert core.stats.duplicates == 0


def test_the_hub_has_a_little_longer_than_the_deadline(core: Pending) -> None:
    core.submitted(task(), 0)
    core.event_heard(accepted(), 20 * MS)
    assert core.rtt_ns == 20 * MS
    assert core.time_passed(569 * MS) == []
    assert core.next_due_ns == 570 * MS
    assert ended(core.time_passed(570 * MS)) == [("t1", "expired")]


def test_without_a_link_the_deadline_holds_to_the_millisecond(core: Pending) -> None:
    core.submitted(task(), 0)
    core.disconnected(100 * MS)
    assert core.next_due_ns == 500 * MS
    actions = core.time_passed(500 * MS)
    assert ended(actions) == [("t1", "expired")]
    assert isinstance(actions[0], EndTask)
    assert "connection to the hub is down" in actions[0].result.message
    assert core.stats.resent == 0


def test_a_large_task_is_given_time_to_arrive_before_it_is_sent_again(core: Pending) -> None:
    core.submitted(task(ttl_ms=60_000, data=bytes(8_000_000)), 0)
    assert core.next_due_ns == (80 + 3200) * MS


def test_a_resend_does_not_spoil_the_round_trip(core: Pending) -> None:
    core.submitted(task(), 0)
    core.time_passed(80 * MS)
    core.event_heard(accepted(), 400 * MS)
    assert core.rtt_ns == 0


def test_missing_chunks_are_sent_and_the_whole_task_is_not(core: Pending) -> None:
    core.submitted(task(), 0)
    event = TaskEvent("missing", "t1", "c1", missing=(1, 3))
    assert core.event_heard(event, 70 * MS) == [SendTask(task(), 430, True, (1, 3))]
    assert core.time_passed(100 * MS) == []
    assert core.event_heard(TaskEvent("missing", "other", "c1", missing=(1,)), 70 * MS) == []


def test_an_outcome_of_which_pieces_stay_away_is_asked_for_again(core: Pending) -> None:
    core.submitted(task(), 0)
    core.event_heard(accepted(), MS)
    assert core.result_stalled("t1", 300 * MS) == [SendTask(task(), 200, is_again=True)]
    assert core.result_stalled("other", 300 * MS) == []


def test_a_new_connection_asks_again_even_for_what_was_accepted(core: Pending) -> None:
    core.submitted(task(), 0)
    core.event_heard(accepted(), MS)
    core.disconnected(100 * MS)
    assert core.reconnected(200 * MS) == [SendTask(task(), 300, is_again=True)]
    assert core.time_passed(280 * MS) == [SendTask(task(), 220, is_again=True)]


def test_a_task_that_was_taken_back_is_not_sent_on_a_new_connection(core: Pending) -> None:
    core.submitted(task(), 0)
    assert core.taken_back("t1") == [SendCancel("t1")]
    assert core.time_passed(90 * MS) == []
    core.disconnected(100 * MS)
    assert core.reconnected(200 * MS) == [SendCancel("t1")]
    assert core.taken_back("unknown") == []


def test_leaving_takes_realtime_tasks_back_and_lets_durable_ones_be(core: Pending) -> None:
    core.submitted(task("now"), 0)
    core.submitted(task("later", mode="durable"), 0)
    actions = core.closed("c1")
    assert [a for a in actions if isinstance(a, SendCancel)] == [SendCancel("now")]
    assert ended(actions) == [("now", "cancelled"), ("later", "cancelled")]
    assert core.stats.abandoned == 2
    core.check_invariants()


def test_what_is_remembered_and_scheduled_is_bounded(core: Pending) -> None:
    for number in range(MAX_DONE + 500):
        core.submitted(task(f"t{number}", ttl_ms=86_400_000), number)
        core.result_heard(done(f"t{number}"), number)
        if number % 100 == 0:
            core.check_invariants()
    core.check_invariants()
    assert core.stats.answered == MAX_DONE + 500


def test_a_timer_that_comes_early_or_late_does_no_harm(core: Pending) -> None:
    core.submitted(task("a", 100), 0)
    core.submitted(task("b", 5000), 0)
    assert core.time_passed(0) == []
    actions = core.time_passed(3000 * MS)
    assert ended(actions) == [("a", "expired")]
    assert [a.task.task_id for a in actions if isinstance(a, SendTask)] == ["b"]


def test_only_the_first_word_counts_as_the_round_trip(core: Pending) -> None:
    core.submitted(task(), 0)
    core.event_heard(accepted(), 20 * MS)
    core.event_heard(TaskEvent("progress", "t1", "c1", 0.5), 200 * MS)
    core.result_heard(done(), 400 * MS)
    assert core.rtt_ns == 20 * MS


def test_in_its_last_millisecond_a_task_still_has_one(core: Pending) -> None:
    core.submitted(task(), 0)
    assert core.reconnected(500 * MS - 1) == [SendTask(task(), 1, is_again=True)]


def test_nothing_is_sent_again_after_the_deadline(core: Pending) -> None:
    core.submitted(task(ttl_ms=60), 0)
    assert core.time_passed(90 * MS) == []
    assert ended(core.time_passed(110 * MS)) == [("t1", "expired")]


def test_a_busy_hub_is_not_given_twice_the_work(core: Pending) -> None:
    for number in range(1000):
        core.submitted(task(f"t{number}", ttl_ms=60_000), 0)
    for number in range(1000):
        now_ns = (number + 1) * 5 * MS
        assert core.time_passed(now_ns) == []
        core.event_heard(accepted(f"t{number}"), now_ns)
    for number in range(1000):
        now_ns = (5000 + (number + 1) * 15) * MS
        assert core.time_passed(now_ns) == []
        core.result_heard(done(f"t{number}"), now_ns)
    assert core.stats.answered == 1000


def test_a_task_that_was_overtaken_is_sent_again(core: Pending) -> None:
    core.submitted(task("lost", 5000), 0)
    core.submitted(task("heard", 5000), 30 * MS)
    core.event_heard(accepted("heard"), 79 * MS)
    assert core.time_passed(80 * MS) == [SendTask(task("lost", 5000), 4920, is_again=True)]


def test_a_hub_that_falls_silent_is_asked_when_it_has_been_for_long_enough(core: Pending) -> None:
    core.submitted(task("first", 5000), 0)
    core.submitted(task("second", 5000), 0)
    core.event_heard(accepted("first"), 60 * MS)
    assert core.time_passed(80 * MS) == []
    assert core.next_due_ns == (60 + 180) * MS
    assert [type(a) for a in core.time_passed(240 * MS)] == [SendTask]
    assert core.stats.resent == 1


def test_an_outcome_that_a_later_one_overtook_is_asked_for(core: Pending) -> None:
    core.submitted(task("lost", 9000), 0)
    core.submitted(task("later", 9000), MS)
    core.event_heard(accepted("lost"), 5 * MS)
    core.result_heard(done("later"), 900 * MS)
    assert core.time_passed(1005 * MS) == [SendTask(task("lost", 9000), 7995, is_again=True)]
    assert (core.stats.asked_again, core.stats.resent) == (1, 0)
    assert core.next_due_ns == (1005 + 2000) * MS


def test_an_answer_of_another_capability_says_nothing_about_this_one(core: Pending) -> None:
    core.submitted(task("slow", 9000), 0)
    core.event_heard(accepted("slow"), 5 * MS)
    for number in range(1, 30):
        now_ns = number * 100 * MS
        core.submitted(Task(f"t{number}", "c1", "other", b"", 500), now_ns)
        core.result_heard(done(f"t{number}"), now_ns + MS)
        assert core.time_passed(now_ns + MS) == []


def test_in_silence_an_outcome_is_asked_for_less_and_less_often(core: Pending) -> None:
    core.submitted(task(ttl_ms=60_000), 0)
    core.event_heard(accepted(), 0)
    asked = []
    while core.next_due_ns is not None:
        now_ns = core.next_due_ns
        if any(isinstance(action, SendTask) for action in core.time_passed(now_ns)):
            asked.append(now_ns // MS)
    assert asked == [1000, 3000, 7000, 15_000, 31_000]


def test_progress_is_patience(core: Pending) -> None:
    core.submitted(task(ttl_ms=60_000), 0)
    for second in range(20):
        core.event_heard(TaskEvent("progress", "t1", "c1", second / 20), second * 900 * MS)
        assert core.time_passed(second * 900 * MS) == []


def test_other_words_put_the_question_off_and_do_not_forget_it(core: Pending) -> None:
    core.submitted(task(ttl_ms=9000), 0)
    core.event_heard(accepted(), 0)
    core.event_heard(accepted("stray"), 950 * MS)
    assert core.time_passed(1000 * MS) == []
    core.check_invariants()
    assert core.next_due_ns == 1950 * MS
    assert core.time_passed(1950 * MS) == [SendTask(task(ttl_ms=9000), 7050, is_again=True)]


def test_nothing_is_asked_for_after_the_deadline(core: Pending) -> None:
    core.submitted(task(ttl_ms=1000), 0)
    core.event_heard(accepted(), 0)
    assert core.time_passed(1000 * MS) == []
    assert ended(core.time_passed(1050 * MS)) == [("t1", "expired")]
