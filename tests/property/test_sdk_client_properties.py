"""The whole client on a lossy, repeating, reordering broker with connections that break."""

import asyncio
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ispine.protocol.chunks import Reassembler, Stamper
from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import decode
from ispine.protocol.ids import ClientId, TaskId
from ispine.protocol.link import Message
from ispine.protocol.memory import MemoryBroker
from ispine.protocol.messages import Chunk, Result, Task
from ispine.protocol.topics import Topics
from ispine.sdk import AsyncSpine
from ispine.sdk.request import Request

TOPICS = Topics()
TASKS = 30


class Network:
    """What becomes of messages; the dice are seeded."""

    def __init__(self, broker: MemoryBroker, seed: int) -> None:
        self.dice = random.Random(seed)
        self.broker = broker
        broker.fault = self.fault

    def fault(self, message: Message) -> list[Message]:
        chance = self.dice.random()
        if chance < 0.2:
            return []
        if chance < 0.35:
            return [message, message]
        if chance < 0.6:
            delay_s = self.dice.uniform(0.001, 0.03)
            asyncio.get_running_loop().call_later(delay_s, self.deliver, message)
            return []
        return [message]

    def deliver(self, message: Message) -> None:
        for link in self.broker.links:
            link.offer(message)


async def start_hub(broker: MemoryBroker) -> Counter[str]:
    """A hub that decides each task once and repeats what it decided; what it decided, by id."""
    link, stamper, pieces = broker.link(), Stamper("hub", 1, boot_ns), Reassembler()
    decided: Counter[str] = Counter()

    def on_task(message: Message) -> None:
        head, body = decode(message.payload)
        if isinstance(body, Chunk):
            pieces.expire(boot_ns())
            whole = pieces.add(head, body, boot_ns())
            if whole is None:
                return
            body = decode(whole)[1]
        assert isinstance(body, Task)
        decided[body.task_id] = 1
        result = Result(body.task_id, body.client_id, "done", data=body.data)
        for frame in stamper.frames(result):
            link.publish(TOPICS.result(ClientId("c1"), TaskId(body.task_id)), frame, qos=1)

    await link.connect()
    await link.subscribe(TOPICS.any_task, on_task)
    return decided


async def play(seed: int) -> None:
    broker = MemoryBroker()
    decided = await start_hub(broker)
    link = broker.link()
    spine = await AsyncSpine.over(link, "c1")
    network = Network(broker, seed)
    outcomes: dict[str, list[Result]] = {}
    for number in range(TASKS):
        data = bytes([number]) * (600_000 if number % 10 == 3 else 10)
        task = Request("echo", data, network.dice.uniform(50, 400)).to_task("c1")
        outcomes[task.task_id] = []
        spine.begin(task, outcomes[task.task_id].append)
        await asyncio.sleep(network.dice.uniform(0, 0.005))
        if network.dice.random() < 0.1:
            link.cut()
            await asyncio.sleep(network.dice.uniform(0, 0.02))
            link.restore()
    async with asyncio.timeout(10):
        while not all(outcomes.values()):  # noqa: ASYNC110 - watched from outside
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    stats = spine.stats
    await spine.close()
    assert [len(ends) for ends in outcomes.values()] == [1] * TASKS
    ends = Counter(result[0].status for result in outcomes.values())
    assert set(ends) <= {"done", "expired"}
    assert (stats.answered, stats.expired_here) == (ends["done"], ends["expired"])
    assert all(task_id in decided for task_id, result in outcomes.items() if result[0].code == "")
    assert stats.malformed == 0


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000))
def test_each_task_has_one_outcome_whatever_the_network_does(seed: int) -> None:
    asyncio.run(play(seed))
