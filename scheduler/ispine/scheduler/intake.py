"""From bytes to messages and events: everything that comes from outside is checked here."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from ispine.protocol.chunks import Missing, Reassembler
from ispine.protocol.clock import DelayGauge
from ispine.protocol.codec import decode, is_frame
from ispine.protocol.errors import RemoteProtocolError
from ispine.protocol.ids import Capability, ClientId, DeviceId, TaskId, new_task_id
from ispine.protocol.link import Message
from ispine.protocol.messages import Chunk, Head, Task
from ispine.protocol.plain import read_plain_task
from ispine.protocol.state import DeviceState, VariantState
from ispine.protocol.topics import TaskAddress, Topics
from ispine.scheduler.config import MS
from ispine.scheduler.events import (
    CapabilityOffer,
    DeviceDescription,
    TaskSubmitted,
    VariantOffer,
)

_MAX_GAUGES = 1024

Wanted = TypeVar("Wanted")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A task that is complete.

    Attributes:
        is_plain: it did not come as a frame, so its wearable speaks JSON.
        deadline_ns: in the hub's time.
    """

    task: Task
    is_plain: bool
    deadline_ns: int

    def event(self, now_ns: int, *, digest: str = "", is_recovered: bool = False) -> TaskSubmitted:
        """The event for the core."""
        task = self.task
        variant = task.options.get("variant", "")
        return TaskSubmitted(
            now_ns,
            TaskId(task.task_id),
            ClientId(task.client_id),
            Capability(task.capability),
            len(task.data),
            self.deadline_ns,
            task.mode,
            task.priority,
            task.stream,
            "",
            task.private,
            variant if isinstance(variant, str) else "",
            digest,
            is_recovered,
        )


class Intake:
    """Reads what arrives and joins chunks.

    Args:
        topics: of the root that is listened to.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._tasks = Reassembler()
        self._replies = Reassembler()
        self._gauges: OrderedDict[tuple[str, int], DelayGauge] = OrderedDict()

    def read_task(self, message: Message, now_ns: int) -> Arrival | None:
        """The task of a message; None while chunks are missing.

        Raises:
            RemoteProtocolError: it is not a task, or not the one that its topic names.
        """
        address = self._topics.read_task(message.topic)
        if not is_frame(message.payload):
            task_id = address.task_id or new_task_id()
            task = read_plain_task(message.payload, address, task_id)
            return Arrival(task, True, now_ns + task.ttl_ms * MS)
        head, body = self._join(self._tasks, message.payload, now_ns)
        if body is None:
            return None
        task = _expect(Task, body)
        _check_address(task, address)
        delay_ns = self._delay_ns(head, now_ns)
        ttl_ns = task.ttl_ms * MS
        return Arrival(task, False, now_ns + ttl_ns - min(delay_ns, ttl_ns // 2))

    def _delay_ns(self, head: Head, now_ns: int) -> int:
        """How much longer than usual the message was on its way."""
        if not head.sent_ns:
            return 0
        key = (head.sender, head.boot)
        gauge = self._gauges.get(key)
        if gauge is None:
            gauge = self._gauges[key] = DelayGauge()
            if len(self._gauges) > _MAX_GAUGES:
                self._gauges.popitem(last=False)
        return int(gauge.delay_ms(head.sent_ns, now_ns) * MS)

    def read_frame(
        self, wanted: type[Wanted], message: Message, sender: str, now_ns: int
    ) -> tuple[Head, Wanted] | None:
        """The framed message of a device; None while chunks are missing.

        Raises:
            RemoteProtocolError: it is something else, or from somebody else than its topic says.
        """
        head, body = self._join(self._replies, message.payload, now_ns)
        if head.sender != sender:
            raise RemoteProtocolError(
                f"expected a message of {sender} on its topic; got one of {head.sender}"
            )
        return None if body is None else (head, _expect(wanted, body))

    def _join(
        self, reassembler: Reassembler, payload: bytes, now_ns: int
    ) -> tuple[Head, object | None]:
        head, body = decode(payload)
        if not isinstance(body, Chunk):
            return head, body
        whole = reassembler.add(head, body, now_ns)
        if whole is None:
            return head, None
        inner, joined = decode(whole)
        if inner.sender != head.sender or isinstance(joined, Chunk):
            raise RemoteProtocolError("expected chunks of one message; got chunks of chunks")
        return inner, joined

    @property
    def has_unfinished(self) -> bool:
        """Whether `expire` has something to do."""
        return not (self._tasks.is_empty and self._replies.is_empty)

    def expire(self, now_ns: int) -> tuple[list[Missing], list[Missing]]:
        """Chunks to ask wearables for, and chunks to ask devices for."""
        return self._tasks.expire(now_ns), self._replies.expire(now_ns)


def _expect(wanted: type[Wanted], body: object) -> Wanted:
    if not isinstance(body, wanted):
        raise RemoteProtocolError(
            f"expected a {wanted.__name__} on this topic; got a {type(body).__name__}"
        )
    return body


def _check_address(task: Task, address: TaskAddress) -> None:
    named = (task.capability, task.client_id, task.task_id)
    topic = (address.capability, address.client_id, address.task_id or task.task_id)
    if named != topic:
        raise RemoteProtocolError(
            f"expected the task that its topic names, {'/'.join(topic)}; got {'/'.join(named)}"
        )


def describe(state: DeviceState) -> DeviceDescription:
    """What the core wants to know of a device's state."""
    return DeviceDescription(
        state.boot,
        state.slots,
        tuple(
            CapabilityOffer(
                Capability(capability.name),
                tuple(map(_offer, capability.variants)),
                capability.idempotent,
                capability.max_batch,
                capability.max_input_bytes,
            )
            for capability in state.capabilities
        ),
        state.owner,
        state.battery_pct,
        state.is_charging,
        state.temp_c,
        state.temp_soft_c,
        state.temp_hard_c,
        state.accepts,
        state.refusal,
        state.is_draining,
    )


def _offer(variant: VariantState) -> VariantOffer:
    return VariantOffer(
        variant.name,
        variant.service_ms * MS,
        variant.quality,
        variant.label_set,
        variant.load_ms * MS,
        variant.usable,
    )


def device_of(topics: Topics, message: Message) -> DeviceId:
    """The device that a topic names.

    Raises:
        RemoteProtocolError: it names none.
    """
    return topics.read_device(message.topic)
