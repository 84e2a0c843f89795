"""The asyncio client against a hub of a few lines, on a broker in memory."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from ispine.protocol.chunks import CHUNK_BYTES, Reassembler, Stamper
from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import decode
from ispine.protocol.errors import (
    ConnectionLost,
    DeadlineExceeded,
    ExecutionFailed,
    NoCapableDevice,
    TaskCancelled,
    TaskError,
    TaskRejected,
    TooBusy,
)
from ispine.protocol.ids import TaskId
from ispine.protocol.link import Message
from ispine.protocol.memory import MemoryBroker, MemoryLink
from ispine.protocol.messages import Cancel, Chunk, Result, Task, TaskEvent
from ispine.protocol.state import CapabilityState, DeviceState, HubInfo, VariantState, dump
from ispine.protocol.topics import Topics
from ispine.sdk import AsyncSpine

TOPICS = Topics()
Answering = Callable[[Task], Result | None]


class FakeHub:
    """Answers tasks with `answer`; None lets them wait."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.link = broker.link()
        self.answer: Answering = lambda task: Result(
            task.task_id, task.client_id, "done", data=task.data, device="d1", variant="int8"
        )
        self.tasks: list[Task] = []
        self.cancels: list[str] = []
        self.stamper = Stamper("hub", 1, boot_ns)
        self.reassembler = Reassembler()

    async def start(self) -> None:
        await self.link.connect()
        await self.link.subscribe(TOPICS.any_task, self._on_task)
        await self.link.subscribe(TOPICS.any_cancel, self._on_cancel, qos=1)

    def _on_task(self, message: Message) -> None:
        head, body = decode(message.payload)
        if isinstance(body, Chunk):
            whole = self.reassembler.add(head, body, boot_ns())
            if whole is None:
                return
            head, body = decode(whole)
        assert isinstance(body, Task)
        self.tasks.append(body)
        result = self.answer(body)
        if result is not None:
            self.say(result)

    def _on_cancel(self, message: Message) -> None:
        body = decode(message.payload)[1]
        assert isinstance(body, Cancel)
        self.cancels.append(body.task_id)
        self.say(Result(body.task_id, body.client_id, "cancelled", "cancelled", "taken back"))

    def say(self, message: Result | TaskEvent) -> None:
        client, task = "c1", TaskId(message.task_id)
        topic = (TOPICS.result if isinstance(message, Result) else TOPICS.event)(client, task)  # type: ignore[arg-type]
        for frame in self.stamper.frames(message):
            self.link.publish(topic, frame, qos=1)


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - tests watch from outside
            await asyncio.sleep(0.002)


def quiet(_task: Task) -> None:
    """A hub that does not answer."""


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def hub(broker: MemoryBroker) -> FakeHub:
    made = FakeHub(broker)
    await made.start()
    return made


@pytest.fixture
def link(broker: MemoryBroker) -> MemoryLink:
    return broker.link()


@pytest.fixture
async def spine(link: MemoryLink, hub: FakeHub) -> AsyncIterator[AsyncSpine]:
    async with await AsyncSpine.over(link, "c1") as client:
        yield client


async def test_an_answer_says_who_gave_it(spine: AsyncSpine) -> None:
    answer = await spine.call("echo", b"hello")
    assert (answer.data, answer.device, answer.variant) == (b"hello", "d1", "int8")
    assert (spine.stats.sent, spine.stats.answered) == (1, 1)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("rejected", "too_busy", TooBusy),
        ("rejected", "no_capable_device", NoCapableDevice),
        ("failed", "execution_failed", ExecutionFailed),
        ("expired", "expired", DeadlineExceeded),
        ("expired", "", DeadlineExceeded),
        ("cancelled", "", TaskCancelled),
        ("rejected", "of_a_later_version", TaskRejected),
    ],
)
async def test_every_other_end_is_its_error(
    spine: AsyncSpine, hub: FakeHub, status: str, code: str, expected: type[TaskError]
) -> None:
    fields = {"predicted_ms": 81.5, "suggestion": "wait"}
    hub.answer = lambda task: Result(task.task_id, "c1", status, code, "why", fields)  # type: ignore[arg-type]
    with pytest.raises(expected, match=r"why|ended") as caught:
        await spine.call("echo", b"")
    assert caught.value.task_id == hub.tasks[0].task_id
    assert caught.value.fields["suggestion"] == "wait"
    if isinstance(caught.value, TooBusy):
        assert (caught.value.predicted_ms, caught.value.suggestion) == (81.5, "wait")


async def test_a_lost_task_is_sent_again_and_a_repeated_outcome_is_dropped(
    spine: AsyncSpine, broker: MemoryBroker
) -> None:
    lost: list[Message] = []

    def fault(message: Message) -> list[Message]:
        if "/tasks/" in message.topic and not lost:
            lost.append(message)
            return []
        return [message, message] if "/results/" in message.topic else [message]

    broker.fault = fault
    assert (await spine.call("echo", b"x")).data == b"x"
    await until(lambda: spine.stats.duplicates)
    assert (spine.stats.resent, spine.stats.duplicates, spine.stats.answered) == (1, 1, 1)


async def test_silence_ends_with_the_deadline_and_a_later_outcome_is_counted(
    spine: AsyncSpine, hub: FakeHub
) -> None:
    hub.answer = quiet
    started = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match="within 60 ms; the hub did not answer"):
        await spine.call("echo", b"", within_ms=60)
    assert 0.06 <= asyncio.get_running_loop().time() - started < 1
    hub.say(Result(hub.tasks[0].task_id, "c1", "done"))
    await until(lambda: spine.stats.late)
    assert (spine.stats.expired_here, spine.stats.answered) == (1, 0)


async def test_open_tasks_are_asked_for_on_a_new_connection(
    spine: AsyncSpine, hub: FakeHub, link: MemoryLink
) -> None:
    hub.answer = lambda task: None if len(hub.tasks) < 2 else Result(task.task_id, "c1", "done")
    asking = asyncio.create_task(spine.call("echo", b"x", within_ms=5000))
    await until(lambda: hub.tasks)
    link.cut()
    assert not spine.is_connected
    link.restore()
    assert (await asking).task_id == hub.tasks[0].task_id
    assert hub.tasks[1].task_id == hub.tasks[0].task_id
    assert hub.tasks[1].ttl_ms <= hub.tasks[0].ttl_ms


async def test_a_task_of_a_time_without_connection_goes_out_with_the_next_one(
    spine: AsyncSpine, hub: FakeHub, link: MemoryLink
) -> None:
    link.cut()
    asking = asyncio.create_task(spine.call("echo", b"x", within_ms=5000))
    await asyncio.sleep(0)
    link.restore()
    assert (await asking).data == b"x"


async def test_a_hub_that_began_anew_is_asked_again(spine: AsyncSpine, hub: FakeHub) -> None:
    def announce(boot: int) -> None:
        info = HubInfo(hub_id="hub", boot=boot)
        hub.link.publish(TOPICS.hub, dump(info), qos=1, retain=True)

    announce(1)
    hub.answer = quiet
    asking = asyncio.create_task(spine.call("echo", b"x", within_ms=5000))
    await until(lambda: hub.tasks)
    hub.say(TaskEvent("accepted", hub.tasks[0].task_id, "c1"))
    announce(1)
    hub.answer = lambda task: Result(task.task_id, "c1", "done", data=b"second")
    announce(2)
    assert (await asking).data == b"second"
    assert len(hub.tasks) == 2


@pytest.mark.parametrize("payload", [b"", b"{", b"[1]", b"7", b"{}"])
async def test_nonsense_about_the_hub_changes_nothing(
    spine: AsyncSpine, hub: FakeHub, payload: bytes
) -> None:
    hub.link.publish(TOPICS.hub, payload, qos=1)
    assert (await spine.call("echo", b"x")).data == b"x"


async def test_a_caller_that_gives_up_takes_the_task_back(spine: AsyncSpine, hub: FakeHub) -> None:
    hub.answer = quiet
    asking = asyncio.create_task(spine.call("echo", b"x", within_ms=5000))
    await until(lambda: hub.tasks)
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    await until(lambda: hub.cancels)
    assert hub.cancels == [hub.tasks[0].task_id]


async def test_a_submitted_task_can_be_taken_back(spine: AsyncSpine, hub: FakeHub) -> None:
    hub.answer = quiet
    going = spine.submit("echo", b"x", within_ms=5000)
    await until(lambda: hub.tasks)
    assert going.cancel()
    await until(lambda: hub.cancels)
    with pytest.raises(TaskRejected, match="within_ms"):
        spine.submit("echo", b"x", within_ms=0)


async def test_two_callers_of_one_task_get_one_outcome(spine: AsyncSpine, hub: FakeHub) -> None:
    answers = await asyncio.gather(
        spine.call("echo", b"x", task_id="same"), spine.call("echo", b"x", task_id="same")
    )
    assert [answer.data for answer in answers] == [b"x", b"x"]
    assert len(hub.tasks) == 1
    hub.answer = quiet
    first = asyncio.create_task(spine.call("echo", b"x", task_id="same", within_ms=100))
    await until(lambda: len(hub.tasks) == 2)
    with pytest.raises(TaskRejected, match="same is open"):
        await spine.call("echo", b"y", task_id="same")
    with pytest.raises(DeadlineExceeded):
        await first


async def test_pieces_that_are_missing_fit_to_those_that_came(
    spine: AsyncSpine, hub: FakeHub, broker: MemoryBroker
) -> None:
    dropped: list[bytes] = []

    def fault(message: Message) -> list[Message]:
        if "/tasks/" in message.topic:
            body = decode(message.payload)[1]
            if isinstance(body, Chunk) and body.index in (0, 2) and len(dropped) < 2:
                dropped.append(message.payload)
                return []
        return [message]

    for _ in range(126):  # the sequence number grows by a byte between the two encodings
        await spine.call("echo", b"")
    broker.fault = fault
    data = bytes(range(256)) * (4 * CHUNK_BYTES // 256)
    asking = asyncio.create_task(spine.call("big", data, within_ms=10_000, task_id="big"))
    await until(lambda: len(dropped) == 2)
    hub.say(TaskEvent("missing", "big", "c1", missing=(0, 2)))
    assert (await asking).data == data
    assert spine.stats.resent == 0


async def test_a_large_outcome_with_a_lost_piece_is_asked_for_again(
    spine: AsyncSpine, hub: FakeHub, broker: MemoryBroker
) -> None:
    lost: list[Message] = []

    def fault(message: Message) -> list[Message]:
        if "/results/" in message.topic and not lost:
            lost.append(message)
            return []
        return [message]

    broker.fault = fault
    data = bytes(3 * CHUNK_BYTES)
    hub.answer = lambda task: Result(task.task_id, "c1", "done", data=data)
    answer = await spine.call("big", b"", within_ms=10_000)
    assert answer.data == data
    assert len(hub.tasks) == 2


async def test_outcomes_that_stay_in_pieces_do_not_block_later_ones(
    spine: AsyncSpine, hub: FakeHub, broker: MemoryBroker
) -> None:
    data = bytes(3 * CHUNK_BYTES)
    for number in range(6):
        result = Result(f"stray{number}", "c1", "done", data=data)
        frames = hub.stamper.frames(result)
        hub.link.publish(TOPICS.result("c1", TaskId(result.task_id)), frames[0], qos=1)  # type: ignore[arg-type]
    hub.answer = lambda task: Result(task.task_id, "c1", "done", data=data)
    assert (await spine.call("big", b"", within_ms=10_000)).data == data
    assert (spine.stats.late, spine.stats.malformed) == (6, 0)


async def test_malformed_messages_are_counted_and_told_once(
    spine: AsyncSpine, hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for payload in (b"", b"junk", b"\xc1\x01", b"\xc1\x09\x80", b"{}"):
        hub.link.publish("ispine/results/c1/t1", payload, qos=1)
    stray = hub.stamper.frames(Result("another", "c1", "done"))[0]
    hub.link.publish("ispine/results/c1/t1", stray, qos=1)
    hub.link.publish("ispine/events/c1/t1", hub.stamper.frames(Cancel("t1", "c1"))[0], qos=1)
    assert (await spine.call("echo", b"x")).data == b"x"
    assert spine.stats.malformed == 7
    assert len(caplog.records) == 1


async def test_closing_ends_what_is_open(link: MemoryLink, hub: FakeHub) -> None:
    hub.answer = quiet
    spine = await AsyncSpine.over(link, "c1")
    asking = asyncio.create_task(spine.call("echo", b"x", within_ms=5000))
    await until(lambda: hub.tasks)
    await spine.close()
    await spine.close()
    with pytest.raises(TaskCancelled, match="closed"):
        await asking
    await until(lambda: hub.cancels == [hub.tasks[0].task_id])
    with pytest.raises(ConnectionLost, match="connect again"):
        await spine.call("echo", b"x")
    with pytest.raises(ConnectionLost, match="connect again"):
        await anext(aiter(spine.map("echo", [b"1"])))


async def test_devices_are_those_whose_states_are_there_and_online(
    spine: AsyncSpine, hub: FakeHub
) -> None:
    def tell(name: str, status: bytes) -> None:
        offered = CapabilityState(name="echo", variants=(VariantState(service_ms=1.0),))
        state = DeviceState(device_id=name, slots=3, capabilities=(offered,))
        hub.link.publish(f"ispine/devices/{name}/state", dump(state), retain=True)
        hub.link.publish(f"ispine/devices/{name}/status", status, retain=True)

    tell("a", b"online")
    tell("b", b"offline")
    hub.link.publish("ispine/devices/c/state", b"junk", retain=True)
    hub.link.publish("ispine/devices/d e/state", b"{}", retain=True)
    both = await asyncio.gather(spine.devices(), spine.devices())
    assert [[device.device_id for device in seen] for seen in both] == [["a"], ["a"]]
    assert spine.stats.malformed == 2
    tell("b", b"online")
    await until(lambda: hub.link.is_connected)
    await asyncio.sleep(0)
    assert [device.device_id for device in await spine.devices()] == ["a", "b"]
    hub.link.publish("ispine/devices/a/state", b"", retain=True)
    await asyncio.sleep(0)
    assert [device.device_id for device in await spine.devices()] == ["b"]


async def test_a_refused_call_sends_nothing(spine: AsyncSpine, broker: MemoryBroker) -> None:
    before = len(broker.published)
    bad: list[Callable[[], Awaitable[object]]] = [
        lambda: spine.call("echo", "text"),  # type: ignore[arg-type]
        lambda: spine.call("echo", 7),  # type: ignore[arg-type]
        lambda: spine.call("a/b", b""),
        lambda: spine.call("echo", bytes(9_000_000)),
        lambda: spine.call("echo", b"", options={"text": "x" * 9_000_000}),
        lambda: spine.call("echo", b"", options={"number": 2**70}),
        lambda: spine.call("echo", b"", within_ms=10**400),
        lambda: spine.call("echo", b"", within_ms=True),
        lambda: spine.call("echo", b"", content_type="x" * 200),
        lambda: spine.detect(b"no image"),
        lambda: spine.detect("/no/such/file.jpg"),
        lambda: spine.classify(object()),
    ]
    for call in bad:
        with pytest.raises(TaskRejected, match="expected"):
            await call()
    assert len(broker.published) == before
    assert spine.stats.sent == 0
