"""The service on a broker in memory: frames, plain MQTT, chunks, faults, admin, durable tasks."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ispine.protocol.chunks import Reassembler, Stamper
from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import decode, is_frame
from ispine.protocol.errors import ConfigError
from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.protocol.link import Message
from ispine.protocol.memory import MemoryBroker, MemoryLink
from ispine.protocol.messages import (
    Assignment,
    Cancel,
    Chunk,
    Control,
    Head,
    Heartbeat,
    Reply,
    Result,
    Task,
    TaskEvent,
)
from ispine.protocol.state import (
    AdminAnswer,
    AdminRequest,
    CapabilityState,
    DeviceState,
    HubInfo,
    VariantState,
    dump,
    parse,
)
from ispine.protocol.topics import Topics
from ispine.scheduler.config import SchedulerConfig
from ispine.scheduler.service import SchedulerService

TOPICS = Topics()
JPEG = b"\xff\xd8\xff" + bytes(500)


async def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (the condition is anything, nothing sets an event)
            await asyncio.sleep(0.001)


@dataclass
class FakeAgent:
    """Answers with the reversed data; `hold` keeps what it got, without an answer."""

    link: MemoryLink
    name: str = "box"
    hold: bool = False
    mute: bool = False
    got: list[Assignment] = field(default_factory=list)
    orders: list[Control] = field(default_factory=list)
    answer: Callable[[Assignment], bytes] = lambda assignment: assignment.data[::-1]
    content_type: str = "application/octet-stream"

    def __post_init__(self) -> None:
        self.stamper = Stamper(self.name, 7, boot_ns)
        self.joined = Reassembler()

    async def start(self, *capabilities: str, max_input_bytes: int = 8 << 20) -> None:
        await self.link.connect()
        device = DeviceId(self.name)
        for capability in capabilities:
            await self.link.subscribe(TOPICS.queue(device, Capability(capability)), self.on_queue)
        await self.link.subscribe(TOPICS.control(device), self.on_control)
        state = DeviceState(
            device_id=self.name,
            boot=7,
            capabilities=tuple(
                CapabilityState(
                    name=capability,
                    variants=(VariantState(service_ms=5.0),),
                    max_input_bytes=max_input_bytes,
                )
                for capability in capabilities
            ),
        )
        self.link.publish(TOPICS.state(device), dump(state), qos=1, retain=True)
        self.link.publish(TOPICS.status(device), b"online", qos=1, retain=True)

    def on_control(self, message: Message) -> None:
        order = decode(message.payload)[1]
        assert isinstance(order, Control)
        self.orders.append(order)
        if order.kind == "ping" and not self.mute:
            self.beat()

    def beat(self) -> None:
        held = tuple(a.task_id for a in self.got) if self.hold else ()
        frame = self.stamper.frames(Heartbeat(self.name, len(held), 1, held))[0]
        self.link.publish(TOPICS.heartbeat(DeviceId(self.name)), frame)

    def on_queue(self, message: Message) -> None:
        head, body = decode(message.payload)
        if isinstance(body, Chunk):
            whole = self.joined.add(head, body, boot_ns())
            if whole is None:
                return
            body = decode(whole)[1]
        assert isinstance(body, Assignment)
        self.got.append(body)
        if self.mute:
            return
        self.reply(body, "accepted")
        if not self.hold:
            self.reply(body, "done", self.answer(body))

    def reply(self, to: Assignment, kind: str, data: bytes = b"", lease: str = "") -> None:
        message = Reply(
            kind,  # type: ignore[arg-type]
            to.task_id,
            to.client_id,
            to.attempt,
            lease or to.lease,
            data=data,
            content_type=self.content_type if kind == "done" else "application/octet-stream",
            compute_ms=4.0,
        )
        for frame in self.stamper.frames(message):
            self.link.publish(TOPICS.reply(DeviceId(self.name)), frame, qos=1)


@dataclass
class Wearable:
    """Sends tasks and keeps what comes back."""

    link: MemoryLink
    name: str = "glasses"
    results: dict[str, list[bytes]] = field(default_factory=dict)
    events: list[TaskEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stamper = Stamper(self.name, 9, boot_ns)

    async def start(self) -> None:
        await self.link.connect()
        client = ClientId(self.name)
        await self.link.subscribe(TOPICS.results_of(client), self.on_result, qos=1)
        await self.link.subscribe(TOPICS.events_of(client), self.on_event)

    def on_result(self, message: Message) -> None:
        self.results.setdefault(message.topic.rsplit("/", 1)[1], []).append(message.payload)

    def on_event(self, message: Message) -> None:
        event = decode(message.payload)[1]
        assert isinstance(event, TaskEvent)
        self.events.append(event)

    def send(
        self,
        task_id: str,
        data: bytes = b"abc",
        *,
        capability: str = "echo",
        ttl_ms: int = 5000,
        mode: str = "realtime",
        skip: int | None = None,
    ) -> None:
        task = Task(
            task_id,
            self.name,
            capability,
            data,
            ttl_ms,
            mode=mode,  # type: ignore[arg-type]
        )
        topic = TOPICS.task(Capability(capability), ClientId(self.name), TaskId(task_id))
        for index, frame in enumerate(self.stamper.frames(task)):
            if index != skip:
                self.link.publish(topic, frame)

    def publish(self, topic_tail: str, payload: bytes) -> None:
        self.link.publish(f"ispine/tasks/{topic_tail}", payload)

    async def result(self, task_id: str) -> Result:
        await until(lambda: task_id in self.results)
        body = decode(self.results[task_id][0])[1]
        assert isinstance(body, Result)
        return body

    async def json_result(self) -> dict[str, object]:
        await until(lambda: self.results)
        payload = next(iter(self.results.values()))[0]
        assert not is_frame(payload)
        found = json.loads(payload)
        assert isinstance(found, dict)
        return found


@dataclass
class Stage:
    """A broker with a scheduler, an agent for `echo` and a wearable."""

    broker: MemoryBroker
    service: SchedulerService
    agent: FakeAgent
    wearable: Wearable

    async def ask(self, verb: str, **args: str | int | float | bool | None) -> AdminAnswer:
        answers: list[AdminAnswer] = []
        link = self.broker.link()
        await link.connect()
        await link.subscribe(
            TOPICS.answers_of("boss"), lambda m: answers.append(parse(AdminAnswer, m.payload))
        )
        link.publish(TOPICS.admin("boss", "r1"), dump(AdminRequest(verb=verb, args=args)))
        await until(lambda: answers)
        await link.close()
        return answers[0]


async def make_stage(config: SchedulerConfig | None = None) -> Stage:
    broker = MemoryBroker()
    service = SchedulerService(broker.link(), config or SchedulerConfig())
    await service.start()
    agent = FakeAgent(broker.link())
    await agent.start("echo")
    wearable = Wearable(broker.link())
    await wearable.start()
    await until(lambda: service.core.state.fleet.open(Capability("echo")))
    return Stage(broker, service, agent, wearable)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = await make_stage()
    yield made
    await made.service.stop()


async def test_a_framed_task_gets_one_framed_result(stage: Stage) -> None:
    stage.wearable.send("t1", b"abc")
    result = await stage.wearable.result("t1")
    assert (result.status, result.data, result.device, result.attempts) == (
        "done",
        b"cba",
        "box",
        1,
    )
    assert not stage.wearable.events
    await until(lambda: [order.kind for order in stage.agent.orders] == ["ping", "ack"])
    stage.service.core.check_invariants()


async def test_a_task_that_takes_its_time_is_accepted_first(stage: Stage) -> None:
    stage.agent.hold = True
    stage.wearable.send("t1")
    await until(lambda: stage.wearable.events)
    assert [event.kind for event in stage.wearable.events] == ["accepted"]
    stage.agent.reply(stage.agent.got[0], "progress")
    await until(lambda: len(stage.wearable.events) == 2)
    assert stage.wearable.events[1].kind == "progress"


async def test_a_photo_as_it_is_gets_json(stage: Stage) -> None:
    stage.agent.content_type = "application/json"
    stage.agent.answer = lambda assignment: b'[{"label": "cat"}]'
    stage.wearable.publish("echo/glasses", JPEG)
    result = await stage.wearable.json_result()
    assert result["status"] == "done"
    assert result["result"] == [{"label": "cat"}]
    assert stage.agent.got[0].content_type == "image/jpeg"
    assert not stage.wearable.events


async def test_a_big_task_travels_in_chunks_both_ways(stage: Stage) -> None:
    data = bytes(range(256)) * 4000
    stage.wearable.send("big", data)
    await until(lambda: len(stage.wearable.results.get("big", ())) >= 4)
    joined = Reassembler()
    whole = None
    for payload in stage.wearable.results["big"]:
        head, chunk = decode(payload)
        assert isinstance(chunk, Chunk)
        whole = joined.add(head, chunk, 0)
    assert whole is not None
    result = decode(whole)[1]
    assert isinstance(result, Result)
    assert result.data == data[::-1]


async def test_a_missing_chunk_is_asked_for_once(stage: Stage) -> None:
    stage.wearable.send("big", bytes(700_000), skip=1)
    await until(lambda: stage.wearable.events)
    event = stage.wearable.events[0]
    assert (event.kind, event.task_id, event.missing) == ("missing", "big", (1,))


async def test_a_device_that_lacks_a_chunk_gets_it_again(stage: Stage) -> None:
    stage.agent.hold = True
    stage.wearable.send("big", bytes(700_000))
    await until(lambda: stage.agent.got)
    to = stage.agent.got[0]
    before = len(stage.broker.published)
    missing = Reply("missing", to.task_id, to.client_id, to.attempt, to.lease, missing=(2,))
    frame = stage.agent.stamper.frames(missing)[0]
    stage.agent.link.publish(TOPICS.reply(DeviceId("box")), frame)

    def again() -> list[Chunk]:
        bodies = [
            decode(m.payload)[1]
            for m in stage.broker.published[before:]
            if m.topic == "ispine/queues/box/echo"
        ]
        return [body for body in bodies if isinstance(body, Chunk)]

    await until(again)
    assert [chunk.index for chunk in again()] == [2]


@pytest.mark.parametrize(
    ("tail", "payload", "code"),
    [
        ("echo/glasses", b"", "bad_message"),
        ("echo/glasses", b"hello", "bad_message"),
        ("echo/glasses", b"{", "bad_message"),
        ("echo/glasses", b'{"data": 1}', "bad_message"),
        ("echo/glasses", b'{"text": "x", "ttl_ms": -5}', "bad_message"),
        ("echo/glasses", b"[" * 10_000, "bad_message"),
        ("echo/glasses", b"\xc1\x01" + b"\x91" * 10_000, "bad_message"),
        ("echo/glasses", b"\xc1\x63\x80", "bad_message"),
        ("echo/glasses/a b", JPEG, "bad_id"),
        ("ec ho/glasses/t1", JPEG, "bad_id"),
        ("nothing/glasses", JPEG, "no_capable_device"),
    ],
)
async def test_a_bad_task_gets_a_typed_error_and_harms_nobody(
    stage: Stage, tail: str, payload: bytes, code: str
) -> None:
    stage.service.core.state.started_ns -= 10**11
    stage.wearable.publish(tail, payload)
    await until(lambda: stage.wearable.results)
    answer = next(iter(stage.wearable.results.values()))[0]
    if is_frame(answer):
        result = decode(answer)[1]
        assert isinstance(result, Result)
        assert (result.status, result.code) == ("rejected", code)
    else:
        error = json.loads(answer)["error"]
        assert error["code"] == code
        assert "expected" in error["message"]
    stage.wearable.results.clear()
    stage.wearable.send("fine")
    assert (await stage.wearable.result("fine")).status == "done"


async def test_malformed_messages_are_counted_by_peer(stage: Stage) -> None:
    for topic in ("replies/box", "devices/box/heartbeat", "devices/box/state", "cancel/me/x"):
        stage.wearable.link.publish(f"ispine/{topic}", b"\xc1\x01nonsense")
    stage.wearable.publish("echo/glasses", b"nonsense")
    await until(lambda: stage.wearable.results)
    answer = await stage.ask("stats")
    stats = json.loads(answer.data)
    assert stats["malformed"] == 5
    assert {row["peer"] for row in stats["malformed_by"]} == {"box", "me", "glasses"}


async def test_a_reply_without_the_lease_is_refused(stage: Stage) -> None:
    stage.agent.hold = True
    stage.wearable.send("t1")
    await until(lambda: stage.agent.got)
    stage.agent.reply(stage.agent.got[0], "done", b"forged", lease="guess")
    await until(lambda: json_stat(stage, "bad_leases") == 1)
    assert not stage.wearable.results
    stage.agent.reply(stage.agent.got[0], "done", b"true")
    assert (await stage.wearable.result("t1")).data == b"true"


def json_stat(stage: Stage, name: str) -> object:
    return stage.service.stats()[name]


async def test_the_same_task_twice_gets_the_same_result(stage: Stage) -> None:
    stage.wearable.send("t1", b"abc")
    await stage.wearable.result("t1")
    stage.wearable.send("t1", b"abc")
    await until(lambda: len(stage.wearable.results["t1"]) == 2)
    assert stage.wearable.results["t1"][0] == stage.wearable.results["t1"][1]
    assert len(stage.agent.got) == 1


async def test_an_id_for_other_data_is_refused(stage: Stage) -> None:
    stage.wearable.send("t1", b"abc")
    await stage.wearable.result("t1")
    stage.wearable.send("t1", b"other")
    await until(lambda: len(stage.wearable.results["t1"]) == 2)
    refused = decode(stage.wearable.results["t1"][1])[1]
    assert isinstance(refused, Result)
    assert refused.status == "rejected"
    assert len(stage.agent.got) == 1


async def test_a_cancel_reaches_the_device(stage: Stage) -> None:
    stage.agent.hold = True
    stage.wearable.send("t1")
    await until(lambda: stage.agent.got)
    frame = stage.wearable.stamper.frames(Cancel("t1", "glasses", "bored"))[0]
    topic = TOPICS.cancel(ClientId("glasses"), TaskId("t1"))
    stage.wearable.link.publish(topic, frame, qos=1)
    result = await stage.wearable.result("t1")
    assert (result.status, result.message) == ("cancelled", "bored")
    await until(lambda: any(order.kind == "cancel" for order in stage.agent.orders))


async def test_a_lost_assignment_is_sent_again(stage: Stage) -> None:
    lost: list[Message] = []

    def lose_one(message: Message) -> list[Message]:
        if "/queues/" in message.topic and not lost:
            lost.append(message)
            return []
        return [message]

    stage.broker.fault = lose_one
    stage.wearable.send("t1")
    assert (await stage.wearable.result("t1")).status == "done"
    assert lost
    assert json_stat(stage, "resent") == 1


async def test_a_result_waits_for_the_link(stage: Stage) -> None:
    stage.agent.hold = True
    stage.wearable.send("t1", ttl_ms=100)
    await until(lambda: stage.agent.got)
    link = stage.service._link
    assert isinstance(link, MemoryLink)
    link.cut()
    await until(lambda: stage.service.stats()["expired"] == 1)
    assert not stage.wearable.results
    link.restore()
    assert (await stage.wearable.result("t1")).status == "expired"


async def test_duplicated_messages_change_nothing(stage: Stage) -> None:
    stage.broker.fault = lambda message: [message, message]
    for index in range(20):
        stage.wearable.send(f"t{index}", b"abc")
    await until(lambda: len(stage.wearable.results) == 20)
    assert json_stat(stage, "done") == 20
    stage.service.core.check_invariants()


async def test_a_silent_device_loses_its_task(stage: Stage) -> None:
    stage.agent.mute = True
    stage.wearable.send("t1")
    await until(lambda: stage.agent.got)
    other = FakeAgent(stage.broker.link(), "other")
    await other.start("echo")
    result = await stage.wearable.result("t1")
    assert (result.status, result.device, result.attempts) == ("done", "other", 2)


async def test_the_will_of_a_device_moves_its_tasks(stage: Stage) -> None:
    stage.agent.hold = True
    stage.wearable.send("t1")
    await until(lambda: stage.agent.got)
    other = FakeAgent(stage.broker.link(), "other")
    await other.start("echo")
    other.link.publish(TOPICS.status(DeviceId("box")), b"offline", retain=True)
    assert (await stage.wearable.result("t1")).device == "other"


async def test_admin_answers(stage: Stage) -> None:
    stage.wearable.send("t1")
    await stage.wearable.result("t1")
    devices = json.loads((await stage.ask("devices")).data)
    assert [row["device"] for row in devices] == ["box"]
    assert devices[0]["standing"] == "ready"
    tasks = json.loads((await stage.ask("tasks", limit=5)).data)
    assert [(row["task"], row["status"]) for row in tasks] == [("t1", "done")]
    assert json.loads((await stage.ask("tasks", after=tasks[0]["cursor"])).data) == []
    why = json.loads((await stage.ask("why", task="t1")).data)
    assert [step["what"] for step in why["steps"]] == ["assigned", "accepted", "done"]
    assert why["steps"][0]["candidates"][0]["device"] == "box"
    assert sum(why["parts_ms"].values()) == pytest.approx(why["total_ms"], abs=0.05)
    capacity = json.loads((await stage.ask("capacity", capability="echo", fps=10)).data)
    assert capacity["devices"] == 1
    assert capacity["streams"] > 0


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("fly", {}),
        ("why", {}),
        ("why", {"task": "unknown"}),
        ("why", {"task": "a/b"}),
        ("drain", {"device": "nobody"}),
        ("capacity", {"capability": "echo", "fps": -1}),
        ("tasks", {"limit": "many"}),
        ("outcome", {"task": "t1"}),
        ("outcome", {}),
    ],
)
async def test_admin_refusals_say_why(stage: Stage, verb: str, args: dict[str, str | int]) -> None:
    answer = await stage.ask(verb, **args)
    assert answer.status == "refused"
    assert answer.error is not None
    assert "expected" in answer.error.message


async def test_drain_and_resume(stage: Stage) -> None:
    assert json.loads((await stage.ask("drain", device="box")).data)["standing"] == "drained"
    stage.wearable.send("t1")
    assert (await stage.wearable.result("t1")).code == "no_capable_device"
    assert json.loads((await stage.ask("resume", device="box")).data)["standing"] == "ready"
    stage.wearable.send("t2")
    assert (await stage.wearable.result("t2")).status == "done"
    told = [order.kind for order in stage.agent.orders if order.kind not in ("ack", "ping")]
    assert told == ["drain", "resume"]


async def test_a_full_store_refuses(stage: Stage) -> None:
    stage.service._store._cap_bytes = 1000
    stage.wearable.send("t1", bytes(2000))
    result = await stage.wearable.result("t1")
    assert (result.status, result.code) == ("rejected", "too_busy")


async def test_the_hub_is_announced_and_takes_its_leave() -> None:
    stage = await make_stage()
    info = parse(HubInfo, stage.broker.retained["ispine/hub"].payload)
    assert info.is_serving
    await stage.service.stop()
    info = parse(HubInfo, stage.broker.retained["ispine/hub"].payload)
    assert not info.is_serving
    second = SchedulerService(stage.broker.link())
    await second.start()
    assert parse(HubInfo, stage.broker.retained["ispine/hub"].payload).term == 2
    await second.stop()


async def test_a_second_scheduler_refuses_to_start(stage: Stage) -> None:
    second = SchedulerService(stage.broker.link(), SchedulerConfig(hub_id="two"))
    with pytest.raises(ConfigError, match="hub serves there"):
        await second.start()


async def test_a_scheduler_that_crashed_is_no_rival() -> None:
    broker = MemoryBroker()
    link = broker.link()
    await link.connect()
    link.publish("ispine/hub", dump(HubInfo(hub_id="old", boot=3, term=4)), retain=True)
    service = SchedulerService(broker.link())
    await service.start()
    assert parse(HubInfo, broker.retained["ispine/hub"].payload).term == 5
    await service.stop()


async def test_an_idle_service_has_no_timer() -> None:
    service = SchedulerService(MemoryBroker().link())
    await service.start()
    assert service.core.next_wakeup_ns is None
    await service.stop()


async def test_digests_are_computed_after_the_result(stage: Stage) -> None:
    stage.wearable.send("t1")
    await stage.wearable.result("t1")
    key = (ClientId("glasses"), TaskId("t1"))
    await until(lambda: stage.service.core.state.ledger.get(key).digest)  # type: ignore[union-attr]
    assert not stage.service._undigested


async def test_durable_without_a_journal_is_refused(stage: Stage) -> None:
    stage.wearable.send("t1", mode="durable")
    result = await stage.wearable.result("t1")
    assert result.status == "rejected"
    assert "journal" in result.message


async def test_a_durable_task_survives_the_hub(tmp_path: Path) -> None:
    config = SchedulerConfig(journal=tmp_path / "journal.db")
    stage = await make_stage(config)
    stage.agent.hold = True
    stage.wearable.send("t1", mode="durable", ttl_ms=60_000)
    await until(lambda: stage.agent.got)
    await until(lambda: stage.wearable.events)
    stage.service._link.cut()  # type: ignore[attr-defined]
    second = SchedulerService(stage.broker.link(), config)
    await second.start()
    stage.agent.hold = False
    stage.agent.reply(stage.agent.got[0], "done", b"from before")
    result = await stage.wearable.result("t1")
    assert (result.status, result.data) == ("done", b"from before")
    await until(lambda: second._durable.stats()["journal_pending"] == 0)
    stage.wearable.send("t1", mode="durable")
    await until(lambda: len(stage.wearable.results["t1"]) == 2)
    await second.stop()
    await stage.service.stop()


async def test_an_outcome_can_be_fetched_later(tmp_path: Path) -> None:
    config = SchedulerConfig(journal=tmp_path / "journal.db")
    stage = await make_stage(config)
    stage.wearable.send("t1", b"abc", mode="durable")
    assert (await stage.wearable.result("t1")).status == "done"
    await stage.service.stop()
    stage.service = SchedulerService(stage.broker.link(), config)
    await stage.service.start()
    outcome = json.loads((await stage.ask("outcome", task="t1")).data)
    assert (outcome["status"], outcome["client"]) == ("done", "glasses")
    count = len(stage.agent.got)
    stage.wearable.send("t1", b"abc", mode="durable")
    await until(lambda: len(stage.wearable.results["t1"]) == 2)
    assert len(stage.agent.got) == count
    stage.wearable.send("t1", b"other", mode="durable")
    await until(lambda: len(stage.wearable.results["t1"]) == 3)
    refused = decode(stage.wearable.results["t1"][2])[1]
    assert isinstance(refused, Result)
    assert refused.status == "rejected"
    await stage.service.stop()


async def test_a_corrupt_journal_refuses_durable_tasks_only(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no database" * 500)
    stage = await make_stage(SchedulerConfig(journal=path))
    stage.wearable.send("t1", mode="durable")
    result = await stage.wearable.result("t1")
    assert result.status == "rejected"
    assert "journal" in result.message
    stage.wearable.send("t2")
    assert (await stage.wearable.result("t2")).status == "done"
    assert path.read_bytes().startswith(b"this is no database")
    await stage.service.stop()


async def test_a_full_disk_refuses_the_task_and_keeps_the_others(tmp_path: Path) -> None:
    stage = await make_stage(SchedulerConfig(journal=tmp_path / "journal.db"))
    journal = stage.service._durable._journal
    assert journal is not None
    stage.wearable.send("t1", mode="durable")
    assert (await stage.wearable.result("t1")).status == "done"
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    stage.wearable.send("t2", bytes(200_000), mode="durable")
    await until(lambda: "t2" in stage.wearable.results)
    result = await stage.wearable.result("t2")
    assert result.status == "rejected"
    assert "full" in result.message
    journal._db.execute("PRAGMA max_page_count = 100000")
    stage.wearable.send("t3", mode="durable")
    assert (await stage.wearable.result("t3")).status == "done"
    await stage.service.stop()


async def test_the_input_of_a_decided_task_leaves_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    stage = await make_stage(SchedulerConfig(journal=path))
    stage.wearable.send("t1", b"secret picture", mode="durable")
    await stage.wearable.result("t1")
    await stage.service.stop()
    rows = sqlite3.connect(path).execute("SELECT data, status FROM tasks").fetchall()
    assert rows == [(None, "done")]
    assert path.stat().st_mode & 0o077 == 0


async def test_a_message_of_somebody_else_is_refused(stage: Stage) -> None:
    frame = Stamper("mallory", 1, boot_ns).frames(Heartbeat("box", 0, 1))[0]
    stage.wearable.link.publish(TOPICS.heartbeat(DeviceId("box")), frame)
    await until(lambda: json_stat(stage, "malformed") == 1)
    assert Head("mallory").sender == "mallory"
