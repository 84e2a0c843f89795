"""The scheduler on a link: bytes to events, actions to publishes.

One event loop, no lock. Every message is checked (`intake`), becomes an event, and what the core
answers is published (`outbox`) before anything else is read. There is one timer, at the core's next
wake-up. Digests are computed after results are out; the journal works in a thread of its own.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import assert_never

from ispine.protocol.chunks import Stamper
from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import is_frame
from ispine.protocol.errors import (
    ConnectionLost,
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
from ispine.protocol.messages import Control, Reply, Result, TaskEvent
from ispine.protocol.state import (
    AdminRequest,
    HubInfo,
    dump,
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
    Event,
    HubStarted,
    TaskDigested,
    TimePassed,
)
from ispine.scheduler.faults import Faults
from ispine.scheduler.intake import Arrival, Intake
from ispine.scheduler.leases import Leases
from ispine.scheduler.listening import Ears
from ispine.scheduler.outbox import Outbox, refusal, result_of
from ispine.scheduler.payloads import PayloadStore, StoredTask, digest_of
from ispine.scheduler.report import Json
from ispine.scheduler.rivals import find_rival
from ispine.scheduler.task import TaskKey

log = logging.getLogger(__name__)

_DIGEST_AFTER_S = 0.005
_ACKNOWLEDGE_AFTER_S = 0.02
_ACCEPTED_AFTER_S = 0.004


class SchedulerService:
    """Schedules on one link.

    Args:
        link: is connected by `start` when it is not yet; never closed here.
        config: settings.
        clock: returns `boot_ns`; a parameter for tests.
        more_stats: counters of the broker beside it, for the admin verb `stats`.
    """

    def __init__(
        self,
        link: Link,
        config: SchedulerConfig | None = None,
        *,
        clock: Callable[[], int] = boot_ns,
        more_stats: Callable[[], Mapping[str, int | float]] | None = None,
    ) -> None:
        self._link = link
        self._more_stats = more_stats
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
        self._ears = self._make_ears()
        self._unsaid: dict[TaskKey, TaskEvent] = {}
        self._undigested: dict[TaskKey, StoredTask] = {}
        self._reply: Reply | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._acknowledgements: list[tuple[DeviceId, Control]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._term = 1
        self._stopped = asyncio.Event()

    def _make_ears(self) -> Ears:
        return Ears(
            self,
            self._topics,
            self._intake,
            self._faults,
            self._leases,
            self._outbox,
            self._clock,
        )

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
        ears = self._ears = self._make_ears()
        self.tell(HubStarted(self._clock()))
        self._link.add_state_listener(self._on_link)
        for topic_filter, handler, qos in (
            (self._topics.any_state, ears.on_state, 1),
            (self._topics.any_status, ears.on_status, 1),
            (self._topics.any_heartbeat, ears.on_heartbeat, 0),
            (self._topics.any_reply, ears.on_reply, 1),
        ):
            await self._link.subscribe(topic_filter, handler, qos=qos)
        for stored, arrival in recovered:
            self._store.put(_key_of(stored), stored)
            self.tell(arrival.event(self._clock(), is_recovered=True))
        for topic_filter, handler, qos in (
            (self._topics.any_cancel, ears.on_cancel, 1),
            (self._topics.any_admin, ears.on_admin, 1),
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        self._send_acknowledgements()
        self._ears.close()
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
            self._outbox.pay_debts()

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

    def _on_task(self, message: Message) -> None:
        if message.retained:
            self._ears.dropped_retained += 1
            return
        try:
            arrival = self._intake.read_task(message, self._clock())
        except RemoteProtocolError as error:
            self._refuse_malformed(message, error)
            return
        if arrival is not None:
            self._take(arrival)
        else:
            self._ears.watch_chunks()

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

    def tell_reply(self, reply: Reply, event: Event) -> None:
        """Give the core the event of a reply, whose data its result may need."""
        self._reply = reply
        try:
            self.tell(event)
        finally:
            self._reply = None

    def send_missing(self, device: DeviceId, reply: Reply) -> None:
        """Send a device the chunks that it lacks."""
        key = (ClientId(reply.client_id), TaskId(reply.task_id))
        stored = self._store.get(key)
        order = self.core.order_again(key, reply.attempt, device, self._clock())
        if stored is not None and order is not None:
            self._outbox.assign(order, stored, only=reply.missing)

    def answer(self, topic: str, request: AdminRequest) -> None:
        """Answer an admin."""
        if request.verb == "outcome":
            self._durable.look_up(request, partial(self._outbox.answer, topic))
        elif request.verb == "hello":
            me: Json = {"hub": self._config.hub_id, "boot": self._boot, "term": self._term}
            self._outbox.answer(topic, accept(me))
        else:
            desk = AdminDesk(self.core, self.tell, self._clock, self._ears.states, self._own_stats)
            self._outbox.answer(topic, desk.answer(request))

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
        self._unsaid.pop((action.client_id, action.task_id), None)
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

        def send() -> None:
            # The device can wait for it, the wearable not for the result; several go together.
            self._acknowledgements.append((action.device_id, order))
            if self._ack_timer is None and self._loop is not None:
                self._ack_timer = self._loop.call_later(
                    _ACKNOWLEDGE_AFTER_S, self._send_acknowledgements
                )

        self._durable.after_decision((action.client_id, action.task_id), send)

    def _send_acknowledgements(self) -> None:
        self._ack_timer = None
        waiting, self._acknowledgements = self._acknowledgements, []
        for device_id, order in waiting:
            self._outbox.control(device_id, order)

    def _publish_event(self, action: PublishEvent) -> None:
        key = (action.client_id, action.task_id)
        stored = self._store.get(key)
        if stored is not None and stored.is_plain:
            return
        event = TaskEvent(action.kind, action.task_id, action.client_id, action.progress)
        if action.kind != "accepted" or self._loop is None:
            self._outbox.event(action.client_id, event)
            return
        if not self._unsaid:
            self._loop.call_later(_ACCEPTED_AFTER_S, self._say_accepted)
        self._unsaid[key] = event

    def _say_accepted(self) -> None:
        """Say `accepted` for tasks that were not answered meanwhile, which says the same."""
        unsaid, self._unsaid = self._unsaid, {}
        for key, event in unsaid.items():
            self._outbox.event(key[0], event)

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
        more = dict(self._more_stats()) if self._more_stats is not None else {}
        return {**self._service_stats(), **more}

    def _service_stats(self) -> dict[str, Json]:
        faults: list[Json] = [dict(row) for row in self._faults.rows()]
        return {
            "malformed": self._faults.total,
            "malformed_by": faults,
            "bad_leases": self._ears.bad_leases,
            "dropped_retained": self._ears.dropped_retained,
            "unsent": self._outbox.unsent,
            "payload_bytes": self._store.held_bytes,
            "payloads": len(self._store),
            "endpoint": self._link.endpoint,
            "term": self._term,
            **self._durable.stats(),
        }


def _key_of(stored: StoredTask) -> TaskKey:
    return ClientId(stored.task.client_id), TaskId(stored.task.task_id)
