"""The agent on a link: bytes to events, actions to replies.

Inference runs in a bounded thread pool, never in the callback of a message. One timer, at the
core's next wake-up; a heartbeat each second; the sensors are read in a thread every two seconds.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

from ispine.agent import rules as owner_rules
from ispine.agent.config import AgentConfig
from ispine.agent.core import (
    Action,
    AgentCore,
    AgentLimits,
    AssignmentReceived,
    AttemptCancelled,
    Event,
    Forget,
    Key,
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
from ispine.agent.registration import describe, make_capabilities
from ispine.agent.sensors import Reading, Sensors
from ispine.models.capability import CapabilityImpl, Output
from ispine.protocol.chunks import Reassembler, Stamper
from ispine.protocol.clock import DelayGauge, boot_ns
from ispine.protocol.codec import decode
from ispine.protocol.errors import (
    ConfigError,
    ConnectionLost,
    ExecutionFailed,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    TaskError,
    TooLarge,
)
from ispine.protocol.ids import Capability, DeviceId, new_boot_id
from ispine.protocol.link import Link, Message, Will
from ispine.protocol.messages import Assignment, Chunk, Control, Head, Heartbeat, Reply
from ispine.protocol.mqtt import MqttLink
from ispine.protocol.state import OFFLINE, ONLINE, CapabilityState, DeviceState, dump, parse
from ispine.protocol.topics import Topics

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
SENSORS_S = 2.0
STATE_AGE_S = 20.0
TWIN_WAIT_S = 0.3
MAX_MESSAGE_CHARS = 500


@dataclass(slots=True)
class _Work:
    """One assignment and what is known of it."""

    assignment: Assignment
    trace: str
    link_ms: float
    waited_ms: float = 0.0
    reply: Reply | None = None

    def renew(self, assignment: Assignment) -> None:
        """The same attempt, issued again under another lease."""
        self.assignment = assignment
        if self.reply is not None:
            self.reply = replace(self.reply, lease=assignment.lease)


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
        self._stamper = Stamper(config.device_id, self._boot, clock)
        self._capabilities = {capability.name: capability for capability in capabilities}
        self._slots = config.effective_slots
        self.core = AgentCore(AgentLimits(slots=self._slots, spare=self._slots + 2))
        self._executor = ThreadPoolExecutor(self._slots, thread_name_prefix="ispine-run")
        self._sensing = ThreadPoolExecutor(1, thread_name_prefix="ispine-sensors")
        self._sensors = Sensors(config.sensors_dir)
        self._work: dict[Key, _Work] = {}
        self._reassembler = Reassembler()
        self._delays: dict[tuple[str, int], DelayGauge] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_draining = False
        self._rule_refusal = ""
        self._malformed = 0
        self._complaints: set[str] = set()
        self._stopped = asyncio.Event()
        self._state = DeviceState(
            device_id=config.device_id,
            boot=self._boot,
            name=config.name or config.device_id,
            kind=config.kind,
            owner=config.owner,
            version=_own_version(),
            slots=self._slots,
            capabilities=tuple(states),
            temp_soft_c=max(config.rules.max_temp_c - 15.0, 0.0),
            temp_hard_c=config.rules.max_temp_c,
            rules=owner_rules.describe(config.rules),
            runtimes=_runtimes(),
        )
        self._published = self._state
        self._published_s = 0.0

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the fleet.

        Raises:
            ConfigError: another agent with this device id is online.
            ConnectionLost: the broker does not answer.
        """
        self._loop = asyncio.get_running_loop()
        if not self._link.is_connected:
            await self._link.connect()
        await self._refuse_twin()
        await self._read_sensors()
        await self._link.subscribe(self._topics.control(self._device), self._on_control, qos=1)
        for name in self._capabilities:
            queue = self._topics.queue(self._device, Capability(name))
            await self._link.subscribe(queue, self._on_assignment)
        await self._link.subscribe(self._topics.state(self._device), self._on_own_state, qos=1)
        self._link.add_state_listener(self._on_link)
        self._announce()
        self._tasks = [
            self._loop.create_task(self._beat_forever(), name="heartbeat"),
            self._loop.create_task(self._sense_forever(), name="sensors"),
        ]
        log.info(
            "agent serves",
            extra={
                "device_id": self._device,
                "endpoint": self._link.endpoint,
                "capabilities": sorted(self._capabilities),
                "slots": self._slots,
            },
        )

    async def _refuse_twin(self) -> None:
        """Two agents with one id would answer for each other: the newcomer gives up."""
        seen: list[bool] = []
        beats: list[Message] = []
        await self._link.subscribe(
            self._topics.status(self._device), lambda m: seen.append(m.payload == ONLINE), qos=1
        )
        await self._link.subscribe(self._topics.heartbeat(self._device), beats.append)
        await asyncio.sleep(TWIN_WAIT_S)
        if seen and seen[-1]:
            # The status may be a leftover of a hub that died; a living twin has a heartbeat.
            deadline_s = asyncio.get_running_loop().time() + 1.5 * HEARTBEAT_S
            while not beats and asyncio.get_running_loop().time() < deadline_s:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await self._link.unsubscribe(self._topics.status(self._device))
        await self._link.unsubscribe(self._topics.heartbeat(self._device))
        if beats:
            raise ConfigError(
                f"expected to be the only agent called {self._device!r}; another one is online;"
                " stop it or choose another --id"
            )

    async def stop(self) -> None:
        """Finish what runs, then leave; the status says offline at once."""
        self.drain(True)
        await self._wait_for_runs()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._say(self._topics.status(self._device), OFFLINE, qos=1, retain=True)
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._sensing.shutdown(wait=False, cancel_futures=True)
        self._stopped.set()

    async def _wait_for_runs(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + self._config.drain_s
        while self.core.outstanding and asyncio.get_running_loop().time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def wait(self) -> None:
        """Until `stop` is called."""
        await self._stopped.wait()

    def drain(self, is_draining: bool) -> None:
        """Take no more work, or take it again."""
        self._is_draining = is_draining
        self._update_willingness()

    def _on_link(self, is_connected: bool) -> None:
        if is_connected:
            self._announce()
            self._tell(TimePassed(self._clock()))

    def _announce(self) -> None:
        self._say(self._topics.status(self._device), ONLINE, qos=1, retain=True)
        self._publish_state()
        self._beat()

    # -- what comes in ---------------------------------------------------------------------------

    def _decode(self, message: Message) -> tuple[Head, object] | None:
        """The message in a packet, or None while chunks are missing or it is malformed."""
        try:
            head, body = decode(message.payload)
            if isinstance(body, Chunk):
                whole = self._reassembler.add(head, body, self._clock())
                if whole is None:
                    self._schedule_chunk_check()
                    return None
                head, body = decode(whole)
            return head, body
        except ProtocolError as error:
            self._malformed += 1
            if error.code not in self._complaints:
                self._complaints.add(error.code)
                log.warning("malformed message", extra={"topic": message.topic, "why": str(error)})
            return None

    def _on_assignment(self, message: Message) -> None:
        decoded = self._decode(message)
        if decoded is None:
            return
        head, assignment = decoded
        if (
            not isinstance(assignment, Assignment)
            or assignment.capability not in self._capabilities
        ):
            self._malformed += 1
            return
        now_ns = self._clock()
        gauge = self._delays.setdefault((head.sender, head.boot), DelayGauge())
        if len(self._delays) > 8:
            self._delays.pop(next(iter(self._delays)))
        link_ms = gauge.delay_ms(head.sent_ns, now_ns) if head.sent_ns else 0.0
        key = (assignment.client_id, assignment.task_id, assignment.attempt)
        self._stamper.term = max(self._stamper.term, head.term)
        known = self._work.get(key)
        if known is None:
            self._work[key] = _Work(assignment, head.trace, min(link_ms, 1e6))
        elif known.assignment.lease != assignment.lease:
            # A hub that started again asks anew: the answer there is goes under the new lease.
            known.renew(assignment)
        deadline_ns = now_ns + assignment.ttl_ms * 1_000_000
        self._tell(AssignmentReceived(now_ns, key, deadline_ns, assignment.priority))

    def _on_control(self, message: Message) -> None:
        decoded = self._decode(message)
        if decoded is None or not isinstance(decoded[1], Control):
            return
        control = decoded[1]
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
                self.drain(False)
            case "ping":
                self._beat()
            case "missing":
                self._send_missing(control)
            case "load":
                log.debug("already loaded", extra={"capability": control.capability})

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
                self._send(reply, self._work[key].trace, only=control.missing)

    def _on_own_state(self, message: Message) -> None:
        if message.retained or not message.payload:
            return
        try:
            state = parse(DeviceState, message.payload)
        except RemoteProtocolError:
            self._malformed += 1
            return
        if state.boot != self._boot and state.boot > 0:
            log.error("another agent uses this device id", extra={"device_id": self._device})

    def _schedule_chunk_check(self) -> None:
        if self._loop is not None:
            self._loop.call_later(0.3, self._check_chunks)

    def _check_chunks(self) -> None:
        # Nothing is asked for: without the first chunk there is no lease to ask with, and the
        # scheduler sends the whole attempt again when it hears no `accepted`.
        for lack in self._reassembler.expire(self._clock()):
            log.debug("chunks missing", extra={"task_id": lack.task_id})
        if not self._reassembler.is_empty:
            self._schedule_chunk_check()

    # -- what the core decides -------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        for action in self.core.handle(event):
            self._carry_out(action)
        self._arm()

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartRun(key, waited_ns):
                self._start_run(key, waited_ns)
            case SendAccepted(key):
                self._send_accepted(key)
            case SendFinal(key) | RepeatFinal(key):
                work = self._work.get(key)
                if work is not None and work.reply is not None:
                    self._send(work.reply, work.trace)
            case Refuse(key, code, message):
                work = self._work[key]
                work.reply = replace(
                    _reply_to(work.assignment, "failed"), code=code, message=message
                )
                self._send(work.reply, work.trace)
            case Forget(key):
                self._work.pop(key, None)
            case ReportSlots(lost):
                log.error("slots lost to runs that do not end", extra={"lost": lost})
                self._publish_state()

    def _arm(self) -> None:
        due_ns = self.core.next_wakeup_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ns is not None and self._loop is not None and not self._stopped.is_set():
            delay_s = max(due_ns - self._clock(), 0) / 1e9
            self._timer = self._loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._tell(TimePassed(self._clock()))

    def _start_run(self, key: Key, waited_ns: int) -> None:
        work = self._work[key]
        work.waited_ms = waited_ns / 1e6
        assert self._loop is not None
        loop = self._loop
        capability = self._capabilities[work.assignment.capability]
        if capability.is_instant and self._config.slowdown == 1:
            loop.call_soon(self._run_instant, key, capability, work)
            return

        def run() -> None:
            reply = self._run(capability, work)
            loop.call_soon_threadsafe(self._on_run_end, key, reply)

        self._executor.submit(run)

    def _run_instant(self, key: Key, capability: CapabilityImpl, work: _Work) -> None:
        self._on_run_end(key, self._run(capability, work))

    def _run(self, capability: CapabilityImpl, work: _Work) -> Reply:
        """In the executor: run one task and put the outcome into a reply."""
        assignment = work.assignment
        base = _reply_to(assignment, "failed")
        started = time.perf_counter()
        try:
            output = capability.run(
                assignment.data, variant=assignment.variant, options=assignment.options
            )
        except TaskError as error:
            failed = replace(base, code=error.code, message=str(error)[:MAX_MESSAGE_CHARS])
        except BaseException as error:  # noqa: BLE001 - the task boundary: even sys.exit ends here
            failed = replace(
                base,
                code=ExecutionFailed.code,
                message=f"expected {assignment.capability} to answer; it raised"
                f" {type(error).__name__}: {str(error)[:200]}",
            )
        else:
            compute_ms = self._slow_down(started)
            return _with_output(base, output, work, compute_ms)
        return replace(failed, compute_ms=self._slow_down(started), queue_ms=work.waited_ms)

    def _slow_down(self, started: float) -> float:
        """Milliseconds since `started`, after the pause that the test aid asks for."""
        took_s = time.perf_counter() - started
        if self._config.slowdown > 1:
            time.sleep(took_s * (self._config.slowdown - 1))
        return (time.perf_counter() - started) * 1e3

    def _on_run_end(self, key: Key, reply: Reply) -> None:
        work = self._work.get(key)
        if work is not None:
            work.reply = replace(reply, lease=work.assignment.lease)
        self._tell(RunFinished(self._clock(), key))

    def _send_accepted(self, key: Key) -> None:
        work = self._work[key]
        reply = replace(_reply_to(work.assignment, "accepted"), link_ms=work.link_ms)
        self._send(reply, work.trace)

    def _send(self, reply: Reply, trace: str, only: tuple[int, ...] | None = None) -> None:
        topic = self._topics.reply(self._device)
        try:
            frames = self._stamper.frames(reply, trace=trace, only=only)
        except (TooLarge, LocalProtocolError) as error:
            short = replace(
                reply, kind="failed", code="execution_failed", data=b"", message=str(error)
            )
            frames = self._stamper.frames(short, trace=trace)
        for frame in frames:
            self._say(topic, frame, qos=1)

    def _say(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        try:
            self._link.publish(topic, payload, qos=qos, retain=retain)
        except ConnectionLost:
            # Replies are kept and repeated, the state is published again on the new connection.
            log.debug("not sent, the link is down", extra={"topic": topic})

    # -- state and heartbeat ---------------------------------------------------------------------

    def _beat(self) -> None:
        beat = Heartbeat(
            self._device, self.core.outstanding, self.core.free_slots, self.core.held_tasks
        )
        self._say(self._topics.heartbeat(self._device), self._stamper.frames(beat)[0])

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._beat()

    async def _sense_forever(self) -> None:
        while True:
            await asyncio.sleep(SENSORS_S)
            await self._read_sensors()
            if self._has_news():
                self._publish_state()

    async def _read_sensors(self) -> None:
        loop = asyncio.get_running_loop()
        reading = await loop.run_in_executor(self._sensing, self._sensors.read)
        self._take_reading(reading)

    def _take_reading(self, reading: Reading) -> None:
        self._rule_refusal = owner_rules.refusal_of(
            self._config.rules,
            reading,
            datetime.now().time(),
            was_refusing=bool(self._rule_refusal),
        )
        self._state = self._state.model_copy(
            update={
                "battery_pct": reading.battery_pct,
                "is_charging": reading.is_charging,
                "temp_c": reading.temp_c,
                "cpu_load": reading.cpu_load,
            }
        )
        self._update_willingness()

    def _update_willingness(self) -> None:
        refusal = self._rule_refusal
        if self._is_draining:
            refusal = refusal or "the device drains"
        self._state = self._state.model_copy(
            update={
                "accepts": not self._rule_refusal,
                "refusal": self._rule_refusal,
                "is_draining": self._is_draining,
            }
        )
        if refusal != self.core.refusal:
            log.info("willingness changed", extra={"device_id": self._device, "refusal": refusal})
            self._tell(WillingnessChanged(self._clock(), refusal))
        if self._published_s and self._is_other(self._published, self._state):
            self._publish_state()

    @staticmethod
    def _is_other(old: DeviceState, new: DeviceState) -> bool:
        return (old.accepts, old.refusal, old.is_draining) != (
            new.accepts,
            new.refusal,
            new.is_draining,
        )

    def _has_news(self) -> bool:
        old, new = self._published, self._state
        if time.monotonic() - self._published_s > STATE_AGE_S or self._is_other(old, new):
            return True
        return (
            _differs(old.temp_c, new.temp_c, 1.0)
            or _differs(old.battery_pct, new.battery_pct, 1.0)
            or _differs(old.cpu_load, new.cpu_load, 0.2)
            or old.is_charging != new.is_charging
        )

    def _publish_state(self) -> None:
        usable = max(self._slots - self.core.lost_slots, 1)
        if self.core.lost_slots >= self._slots:
            self._state = self._state.model_copy(
                update={
                    "accepts": False,
                    "refusal": "every slot is lost to a run that does not end",
                }
            )
        self._state = self._state.model_copy(update={"slots": usable})
        self._published, self._published_s = self._state, time.monotonic()
        self._say(self._topics.state(self._device), dump(self._state), qos=1, retain=True)


def _differs(old: float | None, new: float | None, by: float) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(old - new) >= by


def _reply_to(assignment: Assignment, kind: str) -> Reply:
    return Reply(
        "accepted" if kind == "accepted" else "failed",
        assignment.task_id,
        assignment.client_id,
        assignment.attempt,
        assignment.lease,
    )


def _with_output(base: Reply, output: Output, work: _Work, compute_ms: float) -> Reply:
    return replace(
        base,
        kind="done",
        data=output.data,
        content_type=output.content_type,
        variant=output.variant or work.assignment.variant,
        queue_ms=work.waited_ms,
        compute_ms=compute_ms,
        link_ms=work.link_ms,
    )


def _own_version() -> str:
    try:
        return version("ispine")
    except PackageNotFoundError:
        return ""


def _runtimes() -> tuple[str, ...]:
    try:
        from ispine.models.runtime import available_providers
    except ImportError:
        return ()
    return tuple(available_providers())


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
    capabilities = make_capabilities(config)
    return capabilities, [describe(c, config.slowdown) for c in capabilities]
