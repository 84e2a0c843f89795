"""What the service hears besides tasks: replies, devices, cancels and admin requests.

Each handler checks its message and turns it into one event; a message that is wrong is counted and
dropped. A retained message is taken only where the protocol retains it.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ispine.protocol.codec import is_frame
from ispine.protocol.errors import ProtocolError, RemoteProtocolError
from ispine.protocol.ids import ClientId, DeviceId, TaskId
from ispine.protocol.link import Message
from ispine.protocol.messages import Cancel, Control, Heartbeat, Reply, TaskEvent
from ispine.protocol.state import OFFLINE, ONLINE, AdminRequest, DeviceState, parse
from ispine.protocol.topics import Topics
from ispine.scheduler.events import (
    DeviceBeat,
    DeviceOffline,
    DeviceOnline,
    DeviceSeen,
    Event,
    ReplyAccepted,
    ReplyDone,
    ReplyFailed,
    ReplyProgressed,
    TaskCancelled,
)
from ispine.scheduler.faults import Faults
from ispine.scheduler.intake import Intake, describe
from ispine.scheduler.leases import Leases
from ispine.scheduler.outbox import Outbox

_CHUNK_CHECK_S = 0.1


class Listener(Protocol):
    """Who is told what was heard."""

    def tell(self, event: Event) -> None:
        """Something happened."""

    def tell_reply(self, reply: Reply, event: Event) -> None:
        """A device replied; `reply` holds the data."""

    def send_missing(self, device: DeviceId, reply: Reply) -> None:
        """A device lacks chunks of an assignment."""

    def answer(self, topic: str, request: AdminRequest) -> None:
        """An admin asked."""


class Ears:
    """The handlers.

    Args:
        listener: is told.
        topics, intake, faults, leases, outbox: of the service.
        clock: returns `boot_ns`.

    Attributes:
        states: what devices said about themselves last, for display.
    """

    def __init__(
        self,
        listener: Listener,
        topics: Topics,
        intake: Intake,
        faults: Faults,
        leases: Leases,
        outbox: Outbox,
        clock: Callable[[], int],
    ) -> None:
        self._listener = listener
        self._topics = topics
        self._intake = intake
        self._faults = faults
        self._leases = leases
        self._outbox = outbox
        self._clock = clock
        self._chunk_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.states: dict[DeviceId, DeviceState] = {}
        self.dropped_retained = 0
        self.bad_leases = 0

    def close(self) -> None:
        """Stop asking for chunks."""
        self._is_closed = True
        if self._chunk_timer is not None:
            self._chunk_timer.cancel()

    def _guarded(self, message: Message, peer: str, where: str, read: Callable[[], None]) -> None:
        if message.retained and where not in ("state", "status"):
            self.dropped_retained += 1
            return
        try:
            read()
        except ProtocolError as error:
            self._faults.note(peer, error, where)

    def watch_chunks(self) -> None:
        """See to it that missing chunks are asked for."""
        if self._chunk_timer is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._chunk_timer = loop.call_later(_CHUNK_CHECK_S, self._check_chunks)

    def _check_chunks(self) -> None:
        self._chunk_timer = None
        of_tasks, of_replies = self._intake.expire(self._clock())
        for lack in of_tasks:
            event = TaskEvent("missing", lack.task_id, lack.sender, missing=lack.indices)
            self._outbox.event(ClientId(lack.sender), event)
        for lack in of_replies:
            order = Control("missing", lack.task_id, lack.attempt, missing=lack.indices)
            self._outbox.control(DeviceId(lack.sender), order)
        if self._intake.has_unfinished:
            self.watch_chunks()

    def on_reply(self, message: Message) -> None:
        """Replies of devices."""
        device = message.topic.rsplit("/", 1)[-1]
        self._guarded(message, device, "reply", lambda: self._read_reply(message))

    def _read_reply(self, message: Message) -> None:
        device = self._topics.read_device(message.topic)
        read = self._intake.read_frame(Reply, message, device, self._clock())
        if read is None:
            self.watch_chunks()
            return
        reply = read[1]
        if not self._leases.is_valid(
            reply.lease, reply.client_id, reply.task_id, reply.attempt, device
        ):
            self.bad_leases += 1
            raise RemoteProtocolError(
                f"expected the lease of attempt {reply.attempt} of {reply.task_id} on {device};"
                " got another one"
            )
        if reply.kind == "missing":
            self._listener.send_missing(device, reply)
            return
        self._listener.tell_reply(reply, _event_of(reply, device, self._clock()))

    def on_heartbeat(self, message: Message) -> None:
        """Heartbeats."""
        device = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, device, "heartbeat", lambda: self._read_heartbeat(message))

    def _read_heartbeat(self, message: Message) -> None:
        device = self._topics.read_device(message.topic)
        read = self._intake.read_frame(Heartbeat, message, device, self._clock())
        if read is not None:
            head, beat = read
            self._listener.tell(DeviceBeat(self._clock(), device, head.boot, beat.held))

    def on_status(self, message: Message) -> None:
        """Online, offline, last wills."""
        device = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, device, "status", lambda: self._read_status(message))

    def _read_status(self, message: Message) -> None:
        device = self._topics.read_device(message.topic)
        if message.payload == ONLINE:
            self._listener.tell(DeviceOnline(self._clock(), device))
        elif message.payload in (OFFLINE, b""):
            self._listener.tell(DeviceOffline(self._clock(), device))
        else:
            raise RemoteProtocolError(f"expected {ONLINE!r} or {OFFLINE!r} as status of {device}")

    def on_state(self, message: Message) -> None:
        """What devices say about themselves."""
        device = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, device, "state", lambda: self._read_state(message))

    def _read_state(self, message: Message) -> None:
        device = self._topics.read_device(message.topic)
        if not message.payload:
            self.states.pop(device, None)
            self._listener.tell(DeviceOffline(self._clock(), device))
            return
        state = parse(DeviceState, message.payload)
        if state.device_id != device:
            raise RemoteProtocolError(f"expected the state of {device}; got {state.device_id}")
        self.states[device] = state
        self._listener.tell(DeviceSeen(self._clock(), device, describe(state)))

    def on_cancel(self, message: Message) -> None:
        """Cancels of wearables."""
        peer = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, peer, "cancel", lambda: self._read_cancel(message))

    def _read_cancel(self, message: Message) -> None:
        client, task_id = self._topics.read_pair(message.topic, "cancel")
        reason = ""
        if is_frame(message.payload):
            read = self._intake.read_frame(Cancel, message, client, self._clock())
            reason = read[1].reason if read is not None else ""
        self._listener.tell(TaskCancelled(self._clock(), TaskId(task_id), ClientId(client), reason))

    def on_admin(self, message: Message) -> None:
        """Requests of admins."""
        peer = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, peer, "admin", lambda: self._read_admin(message))

    def _read_admin(self, message: Message) -> None:
        admin, request_id = self._topics.read_pair(message.topic, "admin")
        request = parse(AdminRequest, message.payload)
        self._listener.answer(self._topics.answer(admin, request_id), request)


def _event_of(reply: Reply, device: DeviceId, now_ns: int) -> Event:
    """The event of a reply whose lease is valid."""
    task_id, client_id, attempt = TaskId(reply.task_id), ClientId(reply.client_id), reply.attempt
    match reply.kind:
        case "accepted":
            return ReplyAccepted(now_ns, task_id, client_id, device, attempt)
        case "progress":
            return ReplyProgressed(now_ns, task_id, client_id, device, attempt, reply.progress)
        case "done":
            return ReplyDone(
                now_ns,
                task_id,
                client_id,
                device,
                attempt,
                len(reply.data),
                reply.variant,
                reply.queue_ms,
                reply.compute_ms,
            )
        case _:
            return ReplyFailed(
                now_ns, task_id, client_id, device, attempt, reply.code, reply.message
            )
