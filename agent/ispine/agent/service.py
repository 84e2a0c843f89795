"""The agent on a link: bytes to events, actions to replies.

Inference runs in a bounded pool of threads, never in the callback of a message. One timer, at the
core's next wake-up; a heartbeat each second; the sensors are read in a thread every two seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any, assert_never

from ispine.agent import registration
from ispine.agent import rules as owner_rules
from ispine.agent.config import AgentConfig
from ispine.agent.core import AgentCore
from ispine.agent.description import STATE_AGE_S, Standing, describe, first_state, is_news
from ispine.agent.events import (
    Action,
    AgentLimits,
    AssignmentReceived,
    AttemptCancelled,
    Event,
    Forget,
    Key,
    Keys,
    LinkRestored,
    Refuse,
    RepeatFinal,
    ReplyAcknowledged,
    ReportSlots,
    RunFinished,
    SendAccepted,
    SendFinal,
    StartRun,
    TimePassed,
    WillingnessChanged,
)
from ispine.agent.executor import Runner, RunPool, Work, reply_to
from ispine.agent.intake import Intake, group_of
from ispine.agent.outbox import Outbox
from ispine.agent.sensors import Reading, Sensors
from ispine.agent.twins import YOUNG_S, boot_of_twin, refuse_twin, twin_error
from ispine.models.capability import CapabilityImpl
from ispine.protocol.clock import boot_ns
from ispine.protocol.errors import (
    RemoteProtocolError,
)
from ispine.protocol.ids import Capability, DeviceId, new_boot_id
from ispine.protocol.link import Link, Message, Will
from ispine.protocol.messages import Assignment, Control, Head, Reply
from ispine.protocol.mqtt import MqttLink
from ispine.protocol.state import OFFLINE, CapabilityState, DeviceState
from ispine.protocol.topics import Topics

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
SENSORS_S = 2.0
CHUNKS_S = 0.3


class AgentService:
    """Serves the capabilities of one device on one link.

    Args:
        link: connected by `start`; its will must say `offline` on this device's status.
        config: settings.
        capabilities: loaded.
        states: what `registration.describe` said of each, in the same order.
        clock: returns `boot_ns`; a parameter for tests.
    """

    def __init__(
        self,
        link: Link,
        config: AgentConfig,
        capabilities: Sequence[CapabilityImpl],
        states: Sequence[CapabilityState],
        *,
        clock: Callable[[], int] = boot_ns,
    ) -> None:
        self._link = link
        self._config = config
        self._clock = clock
        self._device = DeviceId(config.device_id)
        self._topics = Topics(config.root)
        self._boot = new_boot_id()
        self._outbox = Outbox(link, self._topics, self._device, self._boot, clock)
        self._intake = Intake(clock)
        self._capabilities = {capability.name: capability for capability in capabilities}
        self._batches = {state.name: state.max_batch for state in states}
        self.core = AgentCore(_limits(config, max(self._batches.values(), default=1)))
        self._runner = Runner(config.slowdown)
        self._pool: RunPool | None = None
        self._sensing = ThreadPoolExecutor(1, thread_name_prefix="ispine-sensors")
        self._sensors = Sensors(config.sensors_dir)
        self._sensor_fault = ""
        self._reading = Reading()
        self._standing = Standing()
        self._first_state = first_state(config, self._boot, tuple(states))
        self._published = self._first_state
        self._published_s = float("-inf")
        self._work: dict[Key, Work] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._chunk_timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._last_twin = 0
        self._is_stopping = False
        self._quiet = asyncio.Event()

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the fleet.

        Raises:
            ConfigError: another agent with this device id is online.
            ConnectionLost: the broker does not answer.
        """
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        if not self._link.is_connected:
            await self._link.connect()
        await refuse_twin(self._link, self._topics, self._device)
        self._started_s = self._loop.time()
        self._pool = RunPool(self.core.limits.slots)
        self._take_reading(await self._read_sensors())
        await self._link.subscribe(self._topics.control(self._device), self._on_control, qos=1)
        for name in self._capabilities:
            queue = self._topics.queue(self._device, Capability(name))
            await self._link.subscribe(queue, self._on_assignment)
        await self._link.subscribe(self._topics.state(self._device), self._on_own_state, qos=1)
        self._link.add_state_listener(self._on_link)
        self._announce()
        self._start_task(self._beat_forever(), "heartbeat")
        self._start_task(self._sense_forever(), "sensors")
        log.info(
            "agent serves",
            extra={
                "device_id": self._device,
                "endpoint": self._link.endpoint,
                "capabilities": sorted(self._capabilities),
                "slots": self.core.limits.slots,
            },
        )

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        task.add_done_callback(self._on_task_end)
        self._tasks.append(task)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    async def stop(self) -> None:
        """Finish what runs, then leave; the status says offline at once."""
        self._is_stopping = True
        self.drain(True)
        await self._wait_for_runs()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for timer in (self._timer, self._chunk_timer):
            if timer is not None:
                timer.cancel()
        self._outbox.status(False)
        if self._pool is not None:
            self._pool.close()
        self._sensing.shutdown(wait=False, cancel_futures=True)
        if not self._ended.done():
            self._ended.set_result(None)

    async def _wait_for_runs(self) -> None:
        self._tell(TimePassed(self._clock()))
        try:
            async with asyncio.timeout(self._config.drain_s):
                await self._quiet.wait()
        except TimeoutError:
            held = self.core.outstanding
            log.warning("left before every run ended", extra={"outstanding": held})

    async def wait(self) -> None:
        """Until `stop` is called.

        Raises:
            ConfigError: another agent with this device id started at the same time.
        """
        await asyncio.shield(self._ended)

    def drain(self, is_draining: bool) -> None:
        """Take no more work, or take it again."""
        self._standing = replace(self._standing, is_draining=is_draining)
        self._update_willingness()

    def _on_link(self, is_connected: bool) -> None:
        if is_connected and not self._is_stopping:
            self._announce()
            self._tell(LinkRestored(self._clock()))

    def _announce(self) -> None:
        self._outbox.status(True)
        self._publish_state()
        self._beat()

    # -- what comes in ---------------------------------------------------------------------------

    def _on_assignment(self, message: Message) -> None:
        read = self._intake.read(message)
        if read is None:
            self._watch_chunks()
            return
        head, assignment = read
        if not isinstance(assignment, Assignment):
            why = f"expected an assignment; got {type(assignment).__name__}"
            self._intake.complain(message.topic, "not_an_assignment", why)
            return
        if assignment.capability not in self._capabilities:
            why = f"expected one of {', '.join(self._capabilities)}; got {assignment.capability}"
            self._intake.complain(message.topic, "unknown_capability", why)
            return
        self._take(head, assignment)

    def _take(self, head: Head, assignment: Assignment) -> None:
        now_ns = self._clock()
        key = (assignment.client_id, assignment.task_id, assignment.attempt)
        self._outbox.follow(head.term)
        known = self._work.get(key)
        if known is None:
            link_ms = self._intake.link_ms(head, now_ns)
            self._work[key] = Work(assignment, head.trace, link_ms)
        elif known.assignment.lease != assignment.lease:
            # A hub that started again asks anew: the answer there is goes under the new lease.
            known.renew(assignment)
        deadline_ns = now_ns + assignment.ttl_ms * 1_000_000
        most = self._batches[assignment.capability]
        group = group_of(assignment) if most > 1 else ""
        self._tell(AssignmentReceived(now_ns, key, deadline_ns, assignment.priority, group, most))

    def _on_control(self, message: Message) -> None:
        read = self._intake.read(message)
        if read is None or not isinstance(read[1], Control):
            return
        control = read[1]
        now_ns = self._clock()
        match control.kind:
            case "ack":
                for key in self._keys_of(control):
                    self._tell(ReplyAcknowledged(now_ns, key))
            case "cancel":
                self._tell(AttemptCancelled(now_ns, control.task_id, control.attempt))
            case "drain":
                self.drain(True)
            case "resume":
                # A stop that was begun goes on.
                self.drain(self._is_stopping)
            case "ping":
                self._beat()
            case "missing":
                self._send_missing(control)
            case "load":
                log.debug("already loaded", extra={"capability": control.capability})
            case _:
                assert_never(control.kind)

    def _keys_of(self, control: Control) -> list[Key]:
        return [
            key
            for key in self._work
            if key[1] == control.task_id and control.attempt in (0, key[2])
        ]

    def _send_missing(self, control: Control) -> None:
        for key in self._keys_of(control):
            reply = self._work[key].reply
            if reply is not None:
                self._outbox.reply(reply, self._work[key].trace, control.missing)

    def _on_own_state(self, message: Message) -> None:
        try:
            twin = boot_of_twin(message, self._boot)
        except RemoteProtocolError as error:
            self._intake.complain(message.topic, error.code, str(error))
            return
        if twin is None or twin == self._last_twin:
            return
        self._last_twin = twin
        log.error("another agent uses this device id", extra={"device_id": self._device})
        if self._loop.time() - self._started_s < YOUNG_S and self._boot > twin:
            self._fail(twin_error(self._device))

    def _watch_chunks(self) -> None:
        if self._intake.is_waiting and self._chunk_timer is None:
            self._chunk_timer = self._loop.call_later(CHUNKS_S, self._check_chunks)

    def _check_chunks(self) -> None:
        self._chunk_timer = None
        self._intake.expire()
        self._watch_chunks()

    # -- what the core decides -------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        for action in self.core.handle(event):
            self._carry_out(action)
        if self._is_stopping and self.core.running <= self.core.lost_slots:
            self._quiet.set()
        self._arm()

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartRun(keys, waited_ns):
                self._start_run(keys, waited_ns)
            case SendAccepted(key):
                self._send_accepted(key)
            case SendFinal(key) | RepeatFinal(key):
                work = self._work[key]
                assert work.reply is not None
                self._outbox.reply(work.reply, work.trace)
            case Refuse(key, code, message):
                work = self._work[key]
                work.answer(reply_to(work.assignment, "failed", code, message))
                assert work.reply is not None
                self._outbox.reply(work.reply, work.trace)
            case Forget(key):
                self._work.pop(key, None)
            case ReportSlots(lost):
                log.error("slots lost to runs that do not end", extra={"lost": lost})
                self._standing = replace(self._standing, lost_slots=lost)
                self._publish_state()
            case _:
                assert_never(action)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self.core.next_wakeup_ns
        if due_ns is not None and not self._ended.done():
            delay_s = max(due_ns - self._clock(), 0) / 1e9
            self._timer = self._loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._tell(TimePassed(self._clock()))

    def _start_run(self, keys: Keys, waited_ns: tuple[int, ...]) -> None:
        works = [self._work[key] for key in keys]
        for work, waited in zip(works, waited_ns, strict=True):
            work.waited_ms = waited / 1e6
        capability = self._capabilities[works[0].assignment.capability]
        if capability.is_instant and self._config.slowdown == 1:
            self._loop.call_soon(self._run_instant, keys, capability, works)
            return

        def run() -> None:
            replies = self._runner.run(capability, works)
            try:
                self._loop.call_soon_threadsafe(self._on_run_end, keys, replies)
            except RuntimeError:
                # The loop closed while this ran: the agent left without waiting any longer.
                log.debug("nobody waits for this run", extra={"task_id": keys[0][1]})

        assert self._pool is not None
        self._pool.submit(run)

    def _run_instant(self, keys: Keys, capability: CapabilityImpl, works: list[Work]) -> None:
        self._on_run_end(keys, self._runner.run(capability, works))

    def _on_run_end(self, keys: Keys, replies: list[Reply]) -> None:
        for key, reply in zip(keys, replies, strict=True):
            self._work[key].answer(reply)
        took_ns = int(replies[0].compute_ms * 1e6)
        sizes = tuple(len(reply.data) for reply in replies)
        self._tell(RunFinished(self._clock(), keys, took_ns, sizes))

    def _send_accepted(self, key: Key) -> None:
        work = self._work[key]
        reply = replace(reply_to(work.assignment, "accepted"), link_ms=work.link_ms)
        self._outbox.reply(reply, work.trace)

    # -- state and heartbeat ---------------------------------------------------------------------

    def _beat(self) -> None:
        core = self.core
        self._outbox.heartbeat(core.outstanding, core.free_slots, core.held_tasks)

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._beat()

    async def _sense_forever(self) -> None:
        while True:
            await asyncio.sleep(SENSORS_S)
            self._take_reading(await self._read_sensors())

    async def _read_sensors(self) -> Reading:
        try:
            return await self._loop.run_in_executor(self._sensing, self._sensors.read)
        except Exception as error:  # noqa: BLE001 - drivers raise anything; then nothing is known
            if type(error).__name__ != self._sensor_fault:
                self._sensor_fault = type(error).__name__
                log.warning("sensors cannot be read", extra={"why": str(error)[:200]})
            return Reading()

    def _take_reading(self, reading: Reading) -> None:
        self._reading = reading
        refusal = owner_rules.refusal_of(
            self._config.rules,
            reading,
            datetime.now().time(),
            was_refusing=bool(self._standing.rule_refusal),
        )
        self._standing = replace(self._standing, rule_refusal=refusal)
        self._update_willingness()

    def _update_willingness(self) -> None:
        refusal = self._standing.refusal
        if refusal != self.core.refusal:
            log.info("willingness changed", extra={"device_id": self._device, "refusal": refusal})
            self._tell(WillingnessChanged(self._clock(), refusal))
        if self._tasks:
            self._publish_news()

    def _publish_news(self) -> None:
        is_old = self._loop.time() - self._published_s > STATE_AGE_S
        if is_old or is_news(self._published, self._state()):
            self._publish_state()

    def _state(self) -> DeviceState:
        return describe(self._first_state, self._reading, self._standing)

    def _publish_state(self) -> None:
        self._published, self._published_s = self._state(), self._loop.time()
        self._outbox.state(self._published)


def _limits(config: AgentConfig, largest_batch: int) -> AgentLimits:
    slots = config.effective_slots
    return AgentLimits(slots, slots + 2, largest_batch, config.duty)


async def run_agent(config: AgentConfig, on_ready: Callable[[], None] | None = None) -> None:
    """One device: load its capabilities, join the fleet, serve until cancelled.

    Args:
        config: settings.
        on_ready: called once the device serves.

    Raises:
        ConfigError: a capability, a rule, the URL or the device id is wrong.
        ConnectionLost: no broker answers.
    """
    topics = Topics(config.root)
    will = Will(topics.status(DeviceId(config.device_id)), OFFLINE)
    link = MqttLink(config.url, will=will, keepalive_s=5)
    await link.connect()
    try:
        loop = asyncio.get_running_loop()
        capabilities, states = await loop.run_in_executor(None, _prepare, config)
        service = AgentService(link, config, capabilities, states)
        await service.start()
        try:
            if on_ready is not None:
                on_ready()
            await service.wait()
        finally:
            await service.stop()
    finally:
        await link.close()


def _prepare(config: AgentConfig) -> tuple[list[CapabilityImpl], list[CapabilityState]]:
    capabilities = registration.make_capabilities(config)
    return capabilities, [registration.describe(c, config.slowdown) for c in capabilities]
