"""The SDK's decisions: what is open, what is sent again, how many frames may be on their way."""

import asyncio
import threading
import time

import pytest

from ispine.protocol.errors import TaskRejected
from ispine.protocol.messages import Result, Task, TaskEvent
from ispine.sdk.driver import LINGER_S, LoopDriver
from ispine.sdk.flow import LARGEST, Window
from ispine.sdk.pending import MS, EndTask, Pending, SendTask
from ispine.sdk.request import Request


def task(name: str = "t1", ttl_ms: int = 500) -> Task:
    return Task(name, "c1", "echo", b"", ttl_ms)


def done(name: str = "t1") -> Result:
    return Result(name, "c1", "done")


def sent(pending: Pending, now_ns: int) -> list[str]:
    actions = pending.time_passed(now_ns)
    pending.check_invariants()
    return [action.task.task_id for action in actions if isinstance(action, SendTask)]


def test_a_task_is_sent_once_more_if_nobody_took_it() -> None:
    pending = Pending()
    pending.submitted(task(), 0)
    assert sent(pending, 90 * MS) == ["t1"]
    assert sent(pending, 200 * MS) == []
    assert pending.stats.resent == 1


def test_an_accepted_task_is_not_sent_again() -> None:
    pending = Pending()
    pending.submitted(task(), 0)
    pending.event_heard(TaskEvent("accepted", "t1", "c1"), 5 * MS)
    assert sent(pending, 90 * MS) == []


def test_a_second_outcome_is_counted_and_dropped() -> None:
    pending = Pending()
    pending.submitted(task(), 0)
    assert pending.result_heard(done(), 5 * MS) == [EndTask(done())]
    assert pending.result_heard(done(), 6 * MS) == []
    assert (pending.stats.answered, pending.stats.duplicates, pending.stats.late) == (1, 1, 0)


def test_an_outcome_after_the_end_is_late_once_then_a_duplicate() -> None:
    pending = Pending()
    pending.submitted(task(), 0)
    actions = pending.time_passed(700 * MS)
    assert [type(action) for action in actions] == [EndTask]
    pending.result_heard(done(), 900 * MS)
    pending.result_heard(done(), 901 * MS)
    assert (pending.stats.expired_here, pending.stats.late, pending.stats.duplicates) == (1, 1, 1)


def test_open_tasks_are_asked_for_again_while_they_matter() -> None:
    pending = Pending()
    pending.submitted(task("soon", 100), 0)
    pending.submitted(task("later", 10_000), 0)
    again = pending.reconnected(200 * MS)
    assert [action.task.task_id for action in again if isinstance(action, SendTask)] == ["later"]


def test_a_slow_link_waits_longer_before_it_sends_again() -> None:
    pending = Pending()
    pending.submitted(task(), 0)
    assert pending.next_due_ns == 80 * MS
    pending.result_heard(done(), 200 * MS)
    pending.time_passed(1000 * MS)
    pending.submitted(task("t2", 5000), 1000 * MS)
    assert pending.next_due_ns == 1600 * MS


def test_the_window_follows_rate_and_round_trip() -> None:
    window = Window()
    assert window.size == 2
    for frame in range(50):
        window.frame_came(frame * 0.01)
        window.sent()
        window.ended(0.055, is_answered=True)
    assert window.size == 7


def test_an_unanswered_frame_gives_its_place_back() -> None:
    window = Window()
    window.sent()
    window.sent()
    assert not window.has_place
    window.ended(5.0, is_answered=False)
    assert window.has_place


def test_the_window_is_bounded() -> None:
    window = Window()
    for frame in range(50):
        window.frame_came(frame * 1e-4)
        window.sent()
        window.ended(10.0, is_answered=True)
    assert window.size == LARGEST


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), 1e15, "soon"])
def test_a_deadline_that_cannot_be_is_refused(deadline: float) -> None:
    with pytest.raises(TaskRejected, match="within_ms"):
        Request("echo", b"", deadline).to_task("c1")


@pytest.mark.parametrize(
    "request_",
    [
        Request("a/b", b""),
        Request("echo", bytes(9_000_000)),
        Request("echo", b"", priority=7),
        Request("echo", b"", options={"a": [1]}),  # type: ignore[dict-item]
        Request("echo", b"", task_id="#"),
    ],
)
def test_a_request_that_cannot_be_is_refused_before_it_is_sent(request_: Request) -> None:
    with pytest.raises(TaskRejected, match="expected"):
        request_.to_task("c1")


async def tick(value: int) -> int:
    await asyncio.sleep(0.002)
    return value


@pytest.fixture
def driver() -> LoopDriver:
    return LoopDriver()


def test_a_waiting_caller_turns_the_loop_itself(driver: LoopDriver) -> None:
    async def who() -> str:
        return threading.current_thread().name

    assert driver.run(tick(1)) == 1
    assert driver.run(who()) == threading.current_thread().name
    driver.close()


def test_many_threads_may_wait_at_once(driver: LoopDriver) -> None:
    got: list[int] = []

    def work(start: int) -> None:
        got.extend(driver.run(tick(start + n)) for n in range(20))

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(got) == sorted(100 * n + m for n in range(6) for m in range(20))
    driver.close()


def test_the_background_turns_the_loop_when_nobody_waits(driver: LoopDriver) -> None:
    ran = threading.Event()
    driver.run(tick(1))
    driver.post(ran.set)
    assert ran.wait(1 + LINGER_S)
    ran.clear()
    driver.hold()
    driver.post(driver.loop.call_later, 0.01, ran.set)
    assert ran.wait(1)
    driver.unhold()
    driver.close()


def test_a_call_from_inside_a_running_loop_works_too(driver: LoopDriver) -> None:
    async def outer() -> int:
        return driver.run(tick(5))

    assert asyncio.run(outer()) == 5
    driver.close()


def test_an_error_comes_out_where_it_was_waited_for(driver: LoopDriver) -> None:
    async def bad() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        driver.run(bad())
    assert driver.run(tick(2)) == 2
    started = time.monotonic()
    driver.close()
    assert time.monotonic() - started < 2
