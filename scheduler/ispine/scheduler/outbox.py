"""From actions to publishes."""

import logging
from collections.abc import Iterable

from ispine.protocol.chunks import Stamper
from ispine.protocol.errors import ConnectionLost, ProtocolError
from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId
from ispine.protocol.link import MAX_PACKET_BYTES, Link
from ispine.protocol.messages import (
    Assignment,
    Control,
    Reply,
    Result,
    TaskEvent,
)
from ispine.protocol.plain import result_json
from ispine.protocol.state import AdminAnswer, dump
from ispine.protocol.topics import Topics
from ispine.scheduler.actions import AssignTask, PublishResult
from ispine.scheduler.leases import Leases
from ispine.scheduler.payloads import StoredTask
from ispine.scheduler.task import TaskKey

log = logging.getLogger(__name__)

_TOPIC_ROOM = 2048


class Outbox:
    """Publishes what the core decided, and keeps results for those who ask again.

    Attributes:
        unsent: messages that could not be sent because the link was down.
    """

    def __init__(self, link: Link, topics: Topics, stamper: Stamper, leases: Leases) -> None:
        self._link = link
        self._topics = topics
        self._stamper = stamper
        self._leases = leases
        self._results: dict[TaskKey, list[bytes]] = {}
        self._owed: dict[TaskKey, None] = {}
        self.unsent = 0

    def _send(self, topic: str, payloads: Iterable[bytes], qos: int) -> bool:
        try:
            for payload in payloads:
                self._link.publish(topic, payload, qos=qos)
        except ConnectionLost:
            self.unsent += 1
            return False
        return True

    def assign(
        self, action: AssignTask, stored: StoredTask, only: Iterable[int] | None = None
    ) -> None:
        """Send an assignment, or some of its chunks again."""
        task = stored.task
        lease = self._leases.make(
            action.client_id, action.task_id, action.attempt, action.device_id
        )
        message = Assignment(
            action.task_id,
            action.client_id,
            action.capability,
            action.attempt,
            lease,
            task.data,
            action.ttl_ms,
            task.content_type,
            action.variant,
            action.priority,
            task.options,
        )
        frames = self._stamper.frames(message, only=only)
        self._send(self._topics.queue(action.device_id, action.capability), frames, 0)

    def control(self, device_id: DeviceId, message: Control) -> None:
        """Tell a device something."""
        self._send(self._topics.control(device_id), self._stamper.frames(message), 1)

    def answer(self, topic: str, answer: AdminAnswer) -> None:
        """Answer an admin."""
        self._send(topic, [dump(answer)], 1)

    def event(self, client_id: ClientId, message: TaskEvent) -> None:
        """Tell a wearable something about its task."""
        topic = self._topics.event(client_id, TaskId(message.task_id))
        self._send(topic, self._stamper.frames(message), 0)

    def publish_result(self, result: Result, *, is_plain: bool, keep: bool = True) -> None:
        """Publish a terminal result, as JSON for a wearable that speaks JSON."""
        key = (ClientId(result.client_id), TaskId(result.task_id))
        payloads = self._payloads(result, is_plain)
        if keep:
            self._results[key] = payloads
        if not self._send(self._topics.result(*key), payloads, 1) and keep:
            self._owed[key] = None

    def _payloads(self, result: Result, is_plain: bool) -> list[bytes]:
        if not is_plain:
            return self._frames(result)
        payload = result_json(result)
        if len(payload) <= MAX_PACKET_BYTES - _TOPIC_ROOM:
            return [payload]
        limit = (MAX_PACKET_BYTES - _TOPIC_ROOM) * 3 // 4
        message = f"expected an answer of at most {limit:,} bytes as JSON; got {len(result.data):,}"
        return [result_json(too_large(result, message))]

    def _frames(self, result: Result) -> list[bytes]:
        try:
            return self._stamper.frames(result)
        except ProtocolError as error:
            return self._stamper.frames(too_large(result, str(error)))

    def repeat(self, key: TaskKey) -> bool:
        """Publish a kept result again; False when it is no longer kept."""
        payloads = self._results.get(key)
        if payloads is None:
            return False
        self._send(self._topics.result(*key), payloads, 1)
        return True

    def forget(self, key: TaskKey) -> None:
        """Drop a kept result."""
        self._results.pop(key, None)
        self._owed.pop(key, None)

    def pay_debts(self) -> None:
        """Publish the results that could not be published while the link was down."""
        owed, self._owed = self._owed, {}
        for key in owed:
            self.repeat(key)


def too_large(result: Result, message: str) -> Result:
    """The same task, ended because its answer cannot be carried."""
    return Result(
        result.task_id,
        result.client_id,
        "failed",
        "too_large",
        message + "; let the capability answer with less",
        device=result.device,
        attempts=result.attempts,
        total_ms=result.total_ms,
    )


def result_of(action: PublishResult, reply: Reply | None) -> Result:
    """The message of a decision; `reply` holds the data of one that is done."""
    return Result(
        action.task_id,
        action.client_id,
        action.status,
        action.code,
        action.message,
        action.fields,
        b"" if reply is None else reply.data,
        "application/octet-stream" if reply is None else reply.content_type,
        action.device_id,
        action.variant,
        action.attempts,
        max(action.queue_ms, 0.0),
        max(action.compute_ms, 0.0),
        action.total_ms,
        action.predicted_ms,
    )


def refusal(
    client_id: ClientId, task_id: TaskId, code: str, message: str, capability: Capability | str = ""
) -> Result:
    """The result of a task that never came in."""
    fields = {"capability": str(capability)} if capability else {}
    return Result(task_id, client_id, "rejected", code, message[:2000], fields)
