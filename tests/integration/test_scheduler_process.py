"""A scheduler process against a real broker: killed at any moment, it loses and repeats nothing."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ispine.protocol.chunks import Stamper
from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import decode
from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.protocol.link import Message
from ispine.protocol.messages import (
    Assignment,
    Control,
    Heartbeat,
    Reply,
    Result,
    Task,
    TaskEvent,
)
from ispine.protocol.mqtt import MqttLink
from ispine.protocol.state import CapabilityState, DeviceState, VariantState, dump
from ispine.protocol.topics import Topics

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto") is None and "CI" not in os.environ,
    reason="needs mosquitto (apt-get install mosquitto)",
)

TOPICS = Topics()
ECHO = Capability("echo")

SCHEDULER = """
import asyncio, sys
from pathlib import Path
from ispine.protocol.mqtt import MqttLink
from ispine.scheduler.config import SchedulerConfig
from ispine.scheduler.service import SchedulerService
config = SchedulerConfig(journal=Path(sys.argv[2]))
asyncio.run(SchedulerService(MqttLink(sys.argv[1]), config).run())
"""


async def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (the condition is anything)
            await asyncio.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Hub:
    """A mosquitto and a scheduler, each a process."""

    folder: Path
    port: int
    scheduler: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start_scheduler(self) -> None:
        journal = self.folder / "journal.db"
        self.scheduler = subprocess.Popen(
            [sys.executable, "-c", SCHEDULER, self.url, str(journal)], stdin=subprocess.DEVNULL
        )

    def kill_scheduler(self) -> None:
        assert self.scheduler is not None
        self.scheduler.send_signal(signal.SIGKILL)
        self.scheduler.wait(5)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    port = free_port()
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n")
    quiet = subprocess.DEVNULL
    broker = subprocess.Popen(  # noqa: ASYNC220 (returns at once)
        ["mosquitto", "-c", str(conf)], stdin=quiet, stdout=quiet, stderr=quiet
    )
    made = Hub(tmp_path, port)
    try:
        await until(lambda: answers(port))
        made.start_scheduler()
        yield made
    finally:
        if made.scheduler is not None and made.scheduler.poll() is None:
            made.kill_scheduler()
        broker.terminate()
        broker.wait(5)


@dataclass
class Agent:
    """Echoes, slowly enough to be caught in the middle; keeps a reply until it is acknowledged."""

    link: MqttLink
    slow_s: float = 0.02
    ran: Counter[str] = field(default_factory=Counter)
    kept: dict[tuple[str, int], Reply] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> None:
        self.stamper = Stamper("box", 7, boot_ns)
        await self.link.connect()
        device = DeviceId("box")
        await self.link.subscribe(TOPICS.queue(device, ECHO), self.on_queue)
        await self.link.subscribe(TOPICS.control(device), self.on_control, qos=1)
        state = DeviceState(
            device_id="box",
            boot=7,
            capabilities=(CapabilityState(name="echo", variants=(VariantState(service_ms=20.0),)),),
        )
        self.link.publish(TOPICS.state(device), dump(state), qos=1, retain=True)
        self.link.publish(TOPICS.status(device), b"online", qos=1, retain=True)
        self.tasks.add(asyncio.create_task(self.beat_forever(), name="beat"))

    async def beat_forever(self) -> None:
        while True:
            self.beat()
            for reply in self.kept.values():
                self.send(reply)
            await asyncio.sleep(0.5)

    def beat(self) -> None:
        frame = self.stamper.frames(Heartbeat("box", 0, 1))[0]
        self.link.publish(TOPICS.heartbeat(DeviceId("box")), frame)

    def on_control(self, message: Message) -> None:
        order = decode(message.payload)[1]
        assert isinstance(order, Control)
        if order.kind == "ack":
            self.kept.pop((order.task_id, order.attempt), None)
        elif order.kind == "ping":
            self.beat()

    def on_queue(self, message: Message) -> None:
        assignment = decode(message.payload)[1]
        assert isinstance(assignment, Assignment)
        task = asyncio.create_task(self.run(assignment), name="run")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def run(self, to: Assignment) -> None:
        names = (to.task_id, to.client_id, to.attempt, to.lease)
        self.send(Reply("accepted", *names))
        async with self.turn:
            await asyncio.sleep(self.slow_s)
        self.ran[to.task_id] += 1
        reply = Reply("done", *names, data=to.data, compute_ms=self.slow_s * 1000)
        self.kept[to.task_id, to.attempt] = reply
        self.send(reply)

    def send(self, reply: Reply) -> None:
        self.link.publish(TOPICS.reply(DeviceId("box")), self.stamper.frames(reply)[0], qos=1)

    async def stop(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.link.close()


@dataclass
class Wearable:
    """Sends durable tasks, and sends one again until it was accepted or answered."""

    link: MqttLink
    accepted: set[str] = field(default_factory=set)
    results: dict[str, list[bytes]] = field(default_factory=dict)

    async def start(self) -> None:
        self.stamper = Stamper("glasses", 9, boot_ns)
        await self.link.connect()
        client = ClientId("glasses")
        await self.link.subscribe(TOPICS.results_of(client), self.on_result, qos=1)
        await self.link.subscribe(TOPICS.events_of(client), self.on_event)

    def on_result(self, message: Message) -> None:
        result = decode(message.payload)[1]
        assert isinstance(result, Result)
        assert result.status == "done", result.message
        self.results.setdefault(result.task_id, []).append(result.data)

    def on_event(self, message: Message) -> None:
        event = decode(message.payload)[1]
        assert isinstance(event, TaskEvent)
        if event.kind == "accepted":
            self.accepted.add(event.task_id)

    def send(self, task_id: str) -> None:
        task = Task(task_id, "glasses", "echo", task_id.encode(), 60_000, mode="durable")
        topic = TOPICS.task(ECHO, ClientId("glasses"), TaskId(task_id))
        self.link.publish(topic, self.stamper.frames(task)[0], qos=1)


async def test_kill_minus_nine_loses_no_accepted_task_and_runs_none_twice_for_long(
    hub: Hub,
) -> None:
    agent, wearable = Agent(MqttLink(hub.url)), Wearable(MqttLink(hub.url))
    await agent.start()
    await wearable.start()
    names = [f"t{index}" for index in range(40)]
    for round_number in range(3):
        wanted = names[round_number * 13 : (round_number + 1) * 13 + 1]

        def accepted_some(wanted: list[str] = wanted) -> bool:
            known = wearable.accepted | set(wearable.results)
            for name in wanted:
                if name not in known:
                    wearable.send(name)
            return sum(name in known for name in wanted) >= 5

        async with asyncio.timeout(15):
            while not accepted_some():  # noqa: ASYNC110 (it sends again each time)
                await asyncio.sleep(0.25)
        hub.kill_scheduler()
        hub.start_scheduler()
    promised = set(wearable.accepted)
    assert len(promised) >= 10
    await until(lambda: promised <= set(wearable.results), 20)
    for name, results in wearable.results.items():
        assert set(results) == {name.encode()}, "another task's answer"
    twice = [name for name, count in agent.ran.items() if count > 2]
    assert not twice
    await agent.stop()
    await wearable.link.close()
