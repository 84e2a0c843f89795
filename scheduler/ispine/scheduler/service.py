"""The scheduler on a link: bytes to events, actions to publishes.

One event loop, no lock. Every message is checked (`intake`), becomes an event, and what the core
answers is published (`outbox`) before anything else is read. There is one timer, at the core's next
wake-up. Digests are computed after results are out; the journal works in a thread of its own.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from ispine.protocol.chunks import Stamper
from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import is_frame
from ispine.protocol.errors import (
    ConnectionLost,
    ProtocolError,
    RemoteProtocolError,
)
from ispine.protocol.ids import (
    ClientId,
    DeviceId,
    TaskId,
    is_id,
    new_boot_id,
    new_task_id,
)
from ispine.protocol.link import Link, Message
from ispine.protocol.messages import Cancel, Control, Heartbeat, Reply, Result, TaskEvent
from ispine.protocol.state import (
    ONLINE,
    AdminRequest,
    DeviceState,
    HubInfo,
    dump,
    parse,
)
from ispine.protocol.topics import Topics
from ispine.scheduler import report
from ispine.scheduler.actions import (
    AcknowledgeReply,
    Action,
    AssignTask,
    CancelAttempt,
    ForgetPayload,
    ForgetResult,
    ProbeDevice,
    PublishEvent,
    PublishResult,
    RefuseDuplicate,
    RepeatResult,
    ReportDevice,
    TellDevice,
)
from ispine.scheduler.admin import AdminDesk, accept
from ispine.scheduler.config import SchedulerConfig
from ispine.scheduler.core import SchedulerCore
from ispine.scheduler.durable import DurableDesk
from ispine.scheduler.events import (
    DeviceBeat,
    DeviceOffline,
    DeviceOnline,
    DeviceSeen,
    Event,
    HubStarted,
    ReplyAccepted,
    ReplyDone,
    ReplyFailed,
    ReplyProgressed,
    TaskCancelled,
    TaskDigested,
    TimePassed,
)
from ispine.scheduler.faults import Faults
from ispine.scheduler.intake import Arrival, Intake, describe
from ispine.scheduler.leases import Leases
from ispine.scheduler.outbox import Outbox, refusal, result_of
from ispine.scheduler.payloads import PayloadStore, StoredTask, digest_of
from ispine.scheduler.report import Json
from ispine.scheduler.rivals import find_rival
from ispine.scheduler.task import TaskKey

log = logging.getLogger(__name__)

_DIGEST_AFTER_S = 0.005
_CHUNK_CHECK_S = 0.1


class SchedulerService:
    """Schedules on one link.

    Args:
        link: is connected by `start` when it is not yet; never closed here.
        config: settings.
        clock: returns `boot_ns`; a parameter for tests.
    """

    def __init__(
        self,
        link: Link,
        config: SchedulerConfig | None = None,
        *,
        clock: Callable[[], int] = boot_ns,
    ) -> None:
        self._link = link
        self._config = config or SchedulerConfig()
        self._clock = clock
        self._topics = Topics(self._config.root)
        self._boot = new_boot_id()
        self._stamper = Stamper(self._config.hub_id, self._boot, clock)
        self.core = SchedulerCore(self._config.core)
        self._store = PayloadStore(self._config.payload_cap_bytes)
        self._durable = DurableDesk(self._config, self._carry_result)
        self._leases = Leases(self._durable.secret)
        self._outbox = Outbox(link, self._topics, self._stamper, self._leases)
        self._intake = Intake(self._topics)
        self._faults = Faults()
        self._states: dict[DeviceId, DeviceState] = {}
        self._desk = AdminDesk(self.core, self.tell, clock, self._states, self._own_stats)
        self._undigested: dict[TaskKey, StoredTask] = {}
        self._reply: Reply | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._chunk_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._term = 1
        self._stopped = asyncio.Event()
        self._dropped_retained = 0
        self._bad_leases = 0

    async def start(self) -> None:
        """Begin to schedule; returns when every subscription stands.

        Raises:
            ConfigError: another scheduler serves this broker, or the journal cannot be used.
            ConnectionLost: the broker does not answer.
        """
        self._loop = asyncio.get_running_loop()
        if not self._link.is_connected:
            await self._link.connect()
        self._term = await find_rival(self._link, self._topics, self._config, self._boot)
        self._stamper.term = self._term
        recovered = await self._durable.open()
        self._leases = Leases(self._durable.secret)
        self._outbox = Outbox(self._link, self._topics, self._stamper, self._leases)
        self.tell(HubStarted(self._clock()))
        self._link.add_state_listener(self._on_link)
        for topic_filter, handler, qos in (
            (self._topics.any_state, self._on_state, 1),
            (self._topics.any_status, self._on_status, 1),
            (self._topics.any_heartbeat, self._on_heartbeat, 0),
            (self._topics.any_reply, self._on_reply, 1),
        ):
            await self._link.subscribe(topic_filter, handler, qos=qos)
        for stored, arrival in recovered:
            self._store.put(_key_of(stored), stored)
            self.tell(arrival.event(self._clock(), is_recovered=True))
        for topic_filter, handler, qos in (
            (self._topics.any_cancel, self._on_cancel, 1),
            (self._topics.any_admin, self._on_admin, 1),
            (self._topics.any_task, self._on_task, 1),
        ):
            await self._link.subscribe(topic_filter, handler, qos=qos)
        self._announce(is_serving=True)
        log.info(
            "scheduler serves",
            extra={"endpoint": self._link.endpoint, "term": self._term, "durable": len(recovered)},
        )

    async def stop(self) -> None:
        """Stop cleanly; open realtime tasks are left to their wearables, durable ones are kept."""
        for topic_filter in (self._topics.any_task, self._topics.any_admin):
            if self._link.is_connected:
                await self._link.unsubscribe(topic_filter)
        self._announce(is_serving=False)
        for handle in (self._timer, self._chunk_timer):
            if handle is not None:
                handle.cancel()
        self._timer = self._chunk_timer = None
        await self._durable.close()
        self._stopped.set()

    def stats(self) -> dict[str, Json]:
        """Counters of the core and the service, as the admin verb `stats` gives them."""
        return {**report.stats(self.core.state), **self._own_stats()}

    async def run(self) -> None:
        """Start, then serve until `stop` is called or this is cancelled."""
        await self.start()
        try:
            await self._stopped.wait()
        finally:
            if not self._stopped.is_set():
                await self.stop()

    def _announce(self, *, is_serving: bool) -> None:
        info = HubInfo(
            hub_id=self._config.hub_id,
            boot=self._boot,
            term=self._term,
            version=self._config.version,
            urls=self._config.urls,
            is_serving=is_serving,
        )
        try:
            self._link.publish(self._topics.hub, dump(info), qos=1, retain=True)
        except ConnectionLost:
            log.warning("hub not announced, the link is down")

    def _on_link(self, is_connected: bool) -> None:
        log.info("link changed", extra={"is_connected": is_connected})
        if is_connected:
            self._announce(is_serving=True)

    def tell(self, event: Event) -> None:
        """Give the core an event and carry out what it decides."""
        for action in self.core.handle(event):
            self._carry_out(action)
        self._arm()

    def _arm(self) -> None:
        """Have one timer, at the core's next wake-up or a little before."""
        due_ns = self.core.next_wakeup_ns
        if due_ns is None or self._loop is None or self._stopped.is_set():
            return
        if self._timer is not None:
            if self._timer_ns <= due_ns:
                return
            self._timer.cancel()
        self._timer_ns = due_ns
        delay_s = max(due_ns - self._clock(), 0) / 1e9
        self._timer = self._loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now_ns = self._clock()
        due_ns = self.core.next_wakeup_ns
        if due_ns is not None and due_ns <= now_ns:
            self.tell(TimePassed(now_ns))
        else:
            self._arm()

    def _guarded(self, message: Message, peer: str, where: str, read: Callable[[], None]) -> None:
        if message.retained and where not in ("state", "status"):
            self._dropped_retained += 1
            return
        try:
            read()
        except ProtocolError as error:
            self._faults.note(peer, error, where)

    def _on_task(self, message: Message) -> None:
        if message.retained:
            self._dropped_retained += 1
            return
        try:
            arrival = self._intake.read_task(message, self._clock())
        except RemoteProtocolError as error:
            self._refuse_malformed(message, error)
            return
        if arrival is not None:
            self._take(arrival)
        else:
            self._watch_chunks()

    def _refuse_malformed(self, message: Message, error: RemoteProtocolError) -> None:
        client = self._topics.client_of(message.topic)
        self._faults.note(client or "unknown", error, "task")
        if client is None:
            return
        last = message.topic.rsplit("/", 1)[-1]
        named = TaskId(last) if last != client and is_id(last) else new_task_id()
        if not self.core.knows((client, named)):
            result = refusal(client, named, error.code, str(error))
            self._outbox.publish_result(result, is_plain=not is_frame(message.payload), keep=False)

    def _take(self, arrival: Arrival) -> None:
        """A complete task: digest it when its id is known, else give it to the core at once."""
        task = arrival.task
        key = (ClientId(task.client_id), TaskId(task.task_id))
        if self.core.knows(key):
            self._digest_now(key)
            self.tell(arrival.event(self._clock(), digest=digest_of(task)))
            return
        stored = StoredTask(task, arrival.is_plain)
        if not self._store.has_room(len(task.data)):
            message = (
                f"expected room for {len(task.data):,} bytes; open tasks hold"
                f" {self._store.held_bytes:,}; wait for answers before sending more"
            )
            result = refusal(key[0], key[1], "too_busy", message)
            self._outbox.publish_result(result, is_plain=arrival.is_plain, keep=False)
        elif task.mode == "durable":
            self._durable.take(stored, arrival, self._admit, self._refuse)
        else:
            self._admit(stored, arrival)

    def _admit(self, stored: StoredTask, arrival: Arrival) -> None:
        key = _key_of(stored)
        if self.core.knows(key):
            return
        self._store.put(key, stored)
        self.tell(arrival.event(self._clock(), digest=stored.digest))

    def _refuse(self, stored: StoredTask, code: str, message: str) -> None:
        client_id, task_id = _key_of(stored)
        result = refusal(client_id, task_id, code, message)
        self._outbox.publish_result(result, is_plain=stored.is_plain, keep=False)

    def _digest_now(self, key: TaskKey) -> None:
        stored = self._undigested.pop(key, None) or self._store.get(key)
        if stored is not None:
            digest = stored.compute_digest()
            self.tell(TaskDigested(self._clock(), key[1], key[0], digest))

    def _watch_chunks(self) -> None:
        if self._chunk_timer is None and self._loop is not None and not self._stopped.is_set():
            self._chunk_timer = self._loop.call_later(_CHUNK_CHECK_S, self._check_chunks)

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
            self._watch_chunks()

    def _on_reply(self, message: Message) -> None:
        device = message.topic.rsplit("/", 1)[-1]
        self._guarded(message, device, "reply", lambda: self._read_reply(message))

    def _read_reply(self, message: Message) -> None:
        device = self._topics.read_device(message.topic)
        read = self._intake.read_frame(Reply, message, device, self._clock())
        if read is None:
            self._watch_chunks()
            return
        reply = read[1]
        if not self._leases.is_valid(
            reply.lease, reply.client_id, reply.task_id, reply.attempt, device
        ):
            self._bad_leases += 1
            raise RemoteProtocolError(
                f"expected the lease of attempt {reply.attempt} of {reply.task_id} on {device};"
                " got another one"
            )
        if reply.kind == "missing":
            self._send_missing(device, reply)
            return
        self._reply = reply
        try:
            self.tell(_event_of(reply, device, self._clock()))
        finally:
            self._reply = None

    def _send_missing(self, device: DeviceId, reply: Reply) -> None:
        key = (ClientId(reply.client_id), TaskId(reply.task_id))
        stored = self._store.get(key)
        order = self.core.order_again(key, reply.attempt, device, self._clock())
        if stored is not None and order is not None:
            self._outbox.assign(order, stored, only=reply.missing)

    def _on_heartbeat(self, message: Message) -> None:
        device = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, device, "heartbeat", lambda: self._read_heartbeat(message))

    def _read_heartbeat(self, message: Message) -> None:
        device = self._topics.read_device(message.topic)
        read = self._intake.read_frame(Heartbeat, message, device, self._clock())
        if read is not None:
            head, beat = read
            self.tell(DeviceBeat(self._clock(), device, head.boot, beat.held))

    def _on_status(self, message: Message) -> None:
        device = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, device, "status", lambda: self._read_status(message))

    def _read_status(self, message: Message) -> None:
        device = self._topics.read_device(message.topic)
        if message.payload == ONLINE:
            self.tell(DeviceOnline(self._clock(), device))
        else:
            self.tell(DeviceOffline(self._clock(), device))

    def _on_state(self, message: Message) -> None:
        device = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, device, "state", lambda: self._read_state(message))

    def _read_state(self, message: Message) -> None:
        device = self._topics.read_device(message.topic)
        if not message.payload:
            self._states.pop(device, None)
            self.tell(DeviceOffline(self._clock(), device))
            return
        state = parse(DeviceState, message.payload)
        if state.device_id != device:
            raise RemoteProtocolError(f"expected the state of {device}; got {state.device_id}")
        self._states[device] = state
        self.tell(DeviceSeen(self._clock(), device, describe(state)))

    def _on_cancel(self, message: Message) -> None:
        peer = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, peer, "cancel", lambda: self._read_cancel(message))

    def _read_cancel(self, message: Message) -> None:
        client, task_id = self._topics.read_pair(message.topic, "cancel")
        reason = ""
        if is_frame(message.payload):
            read = self._intake.read_frame(Cancel, message, client, self._clock())
            reason = read[1].reason if read is not None else ""
        self.tell(TaskCancelled(self._clock(), TaskId(task_id), ClientId(client), reason))

    def _on_admin(self, message: Message) -> None:
        peer = message.topic.rsplit("/", 2)[-2]
        self._guarded(message, peer, "admin", lambda: self._read_admin(message))

    def _read_admin(self, message: Message) -> None:
        admin, request_id = self._topics.read_pair(message.topic, "admin")
        request = parse(AdminRequest, message.payload)
        topic = self._topics.answer(admin, request_id)
        if request.verb == "outcome":
            self._durable.look_up(
                request, lambda made: self._link.publish(topic, dump(made), qos=1)
            )
            return
        answer = (
            accept({"hub": self._config.hub_id, "boot": self._boot, "term": self._term})
            if request.verb == "hello"
            else self._desk.answer(request)
        )
        self._link.publish(topic, dump(answer), qos=1)

    def _carry_out(self, action: Action) -> None:
        match action:
            case AssignTask():
                stored = self._store.get((action.client_id, action.task_id))
                if stored is not None:
                    self._outbox.assign(action, stored)
            case PublishResult():
                self._publish_result(action)
            case AcknowledgeReply():
                self._acknowledge(action)
            case PublishEvent():
                self._publish_event(action)
            case ForgetPayload():
                self._forget_payload(action)
            case ForgetResult():
                self._outbox.forget((action.client_id, action.task_id))
            case RepeatResult():
                self._durable.repeat_or((action.client_id, action.task_id), self._outbox)
            case RefuseDuplicate():
                result = refusal(action.client_id, action.task_id, "rejected", action.message)
                self._outbox.publish_result(result, is_plain=False, keep=False)
            case _:
                self._tell_device(action)

    def _tell_device(self, action: CancelAttempt | ProbeDevice | TellDevice | ReportDevice) -> None:
        match action:
            case CancelAttempt():
                order = Control("cancel", action.task_id, action.attempt)
                self._outbox.control(action.device_id, order)
            case ProbeDevice():
                self._outbox.control(action.device_id, Control("ping"))
            case TellDevice():
                self._outbox.control(action.device_id, Control(action.order))
            case ReportDevice():
                log.info(
                    "device changed",
                    extra={
                        "device_id": action.device_id,
                        "standing": action.standing,
                        "reason": action.reason,
                        "event_id": action.event_id,
                    },
                )
            case _:
                assert_never(action)

    def _publish_result(self, action: PublishResult) -> None:
        stored = self._store.get((action.client_id, action.task_id))
        result = result_of(action, self._reply if action.status == "done" else None)
        is_plain = stored is not None and stored.is_plain
        if action.is_durable:
            self._durable.decide(result, is_plain=is_plain)
        else:
            self._carry_result(result, is_plain)

    def _carry_result(self, result: Result, is_plain: bool) -> None:
        self._outbox.publish_result(result, is_plain=is_plain)

    def _acknowledge(self, action: AcknowledgeReply) -> None:
        order = Control("ack", action.task_id, action.attempt)
        self._durable.after_decision(
            (action.client_id, action.task_id),
            lambda: self._outbox.control(action.device_id, order),
        )

    def _publish_event(self, action: PublishEvent) -> None:
        stored = self._store.get((action.client_id, action.task_id))
        if stored is None or not stored.is_plain:
            event = TaskEvent(action.kind, action.task_id, action.client_id, action.progress)
            self._outbox.event(action.client_id, event)

    def _forget_payload(self, action: ForgetPayload) -> None:
        """Drop an input; its digest is still wanted, but not now."""
        key = (action.client_id, action.task_id)
        stored = self._store.take(key)
        if stored is None or stored.digest or self._loop is None or self._stopped.is_set():
            return
        if not self._undigested:
            self._loop.call_later(_DIGEST_AFTER_S, self._digest_some)
        self._undigested[key] = stored

    def _digest_some(self) -> None:
        """Compute one digest and come back for the next, so that nothing waits for all of them."""
        if self._undigested and self._loop is not None:
            self._digest_now(next(iter(self._undigested)))
            if self._undigested:
                self._loop.call_soon(self._digest_some)

    def _own_stats(self) -> dict[str, Json]:
        faults: list[Json] = [dict(row) for row in self._faults.rows()]
        return {
            "malformed": self._faults.total,
            "malformed_by": faults,
            "bad_leases": self._bad_leases,
            "dropped_retained": self._dropped_retained,
            "unsent": self._outbox.unsent,
            "payload_bytes": self._store.held_bytes,
            "payloads": len(self._store),
            "endpoint": self._link.endpoint,
            "term": self._term,
            **self._durable.stats(),
        }


def _key_of(stored: StoredTask) -> TaskKey:
    return ClientId(stored.task.client_id), TaskId(stored.task.task_id)


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
