"""The asyncio client: requests to messages, messages to outcomes."""

import asyncio
import logging
import os
import re
import secrets
import socket
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from ispine.protocol.chunks import Reassembler, Stamper
from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import decode
from ispine.protocol.errors import (
    ConfigError,
    ConnectionLost,
    DeadlineExceeded,
    NoCapableDevice,
    ProtocolError,
)
from ispine.protocol.ids import Capability, ClientId, TaskId, check_id, new_boot_id
from ispine.protocol.link import Link, Message
from ispine.protocol.messages import Cancel, Chunk, Result, Scalar, Task, TaskEvent
from ispine.protocol.topics import DEFAULT_ROOT, Topics
from ispine.sdk import answers
from ispine.sdk.answers import Answer, Outcome, answer_of
from ispine.sdk.pending import GRACE_NS, Pending, Stats
from ispine.sdk.request import IMAGE_CAPABILITIES, Request, image_bytes
from ispine.sdk.streaming import map_items, stream_frames

if TYPE_CHECKING:
    from ispine.models.results import Detection, Hand, Label
    from ispine.protocol.state import DeviceState
    from ispine.sdk.local import LocalRunner

log = logging.getLogger(__name__)

DEFAULT_URL = "mqtt://127.0.0.1:1883"
FIND_S = 1.5
STATES_S = 0.25

Ended = Callable[[Result], None]


def default_client_id() -> str:
    """This machine's name and a random part, fit to stand in a topic."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().split(".")[0]).strip("-")
    return f"{name[:40] or 'wearable'}-{secrets.token_hex(4)}"


class AsyncSpine:
    """A wearable's connection to the fleet. Make it with `await AsyncSpine.connect()`.

    Everything runs on the event loop that it was connected on.
    """

    def __init__(
        self, link: Link | None, client_id: str, *, root: str, local: "LocalRunner | None" = None
    ) -> None:
        self._link = link
        self.client_id = ClientId(check_id(client_id, "client id"))
        self._topics = Topics(root)
        self._stamper = Stamper(client_id, new_boot_id(), boot_ns)
        self._pending = Pending()
        self._callbacks: dict[str, Ended] = {}
        self._timers: dict[str, list[asyncio.TimerHandle]] = {}
        self._reassembler = Reassembler()
        self._local = local
        self._states: dict[str, DeviceState] | None = None
        self._offline: set[str] = set()
        self._loop = asyncio.get_running_loop()

    # -- connecting ------------------------------------------------------------------------------

    @classmethod
    async def connect(
        cls,
        url: str | None = None,
        *,
        client_id: str | None = None,
        timeout_s: float = 5.0,
        fallback: str | None = None,
        root: str = DEFAULT_ROOT,
    ) -> Self:
        """Find the hub and connect.

        Args:
            url: of the hub's broker; None takes `ISPINE_URL`, then mDNS, then this machine.
            client_id: stays the same over restarts if given; else a new one.
            timeout_s: for everything together.
            fallback: "local" runs tasks on this machine when no hub answers, or no device can.
            root: of the topics.

        Raises:
            ConnectionLost: no hub answers; says where it was looked for.
            ConfigError: a wrong URL or fallback.
        """
        if fallback not in (None, "local"):
            raise ConfigError(f'expected fallback None or "local"; got {fallback!r}')
        local = _make_local() if fallback else None
        name = client_id or default_client_id()
        try:
            link = await _open_link(url, timeout_s)
        except ConnectionLost:
            if local is None:
                raise
            return cls(None, name, root=root, local=local)
        spine = cls(link, name, root=root, local=local)
        try:
            await spine._subscribe()
        except BaseException:
            await link.close()
            raise
        return spine

    @classmethod
    async def over(cls, link: Link, client_id: str, *, root: str = DEFAULT_ROOT) -> Self:
        """A client on a link of your own, for tests."""
        spine = cls(link, client_id, root=root)
        await spine._subscribe()
        return spine

    async def _subscribe(self) -> None:
        assert self._link is not None
        if not self._link.is_connected:
            await self._link.connect()
        await self._link.subscribe(self._topics.results_of(self.client_id), self._on_message, qos=1)
        await self._link.subscribe(self._topics.events_of(self.client_id), self._on_message)
        self._link.add_state_listener(self._on_link)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave; open tasks end with `ConnectionLost` for their callers."""
        for timers in self._timers.values():
            for timer in timers:
                timer.cancel()
        self._timers.clear()
        if self._link is not None:
            await self._link.close()
        for task_id in list(self._callbacks):
            gone = Result(task_id, self.client_id, "cancelled", "cancelled", "the client closed")
            self._callbacks.pop(task_id)(gone)

    @property
    def stats(self) -> Stats:
        """What happened to the tasks of this client."""
        return self._pending.stats

    @property
    def is_connected(self) -> bool:
        """Whether the hub can be reached now."""
        return self._link is not None and self._link.is_connected

    @property
    def endpoint(self) -> str:
        """Where the hub is; "local" without one."""
        return "local" if self._link is None else self._link.endpoint

    # -- calls -----------------------------------------------------------------------------------

    async def detect(
        self,
        image: object,
        *,
        within_ms: float | None = None,
        model: str | None = None,
        min_score: float | None = None,
    ) -> "list[Detection]":
        """Objects in a picture.

        Args:
            image: uint8 HWC RGB array, Pillow image, path, or JPEG, PNG or WebP bytes.
            within_ms: deadline, from now.
            model: id of the model, None for the capability's own choice.
            min_score: leave out what is less sure, 0 to 1.

        Returns:
            Label, score and box in pixels of the picture (upright, as EXIF says), best first.

        Raises:
            TaskError: see the tree in `ispine.protocol.errors`.
        """
        options = {"model": model, "min_score": min_score}
        return answers.detections(await self._see("detect", image, within_ms, options))

    async def gesture(
        self, image: object, *, within_ms: float | None = None, min_score: float | None = None
    ) -> "list[Hand]":
        """Hands in a picture: handedness, gesture, 21 landmarks in pixels. See `detect`."""
        return answers.hands(await self._see("gesture", image, within_ms, {"min_score": min_score}))

    async def classify(
        self, image: object, *, within_ms: float | None = None, top: int | None = None
    ) -> "list[Label]":
        """What is in the scene, the `top` most likely labels first. See `detect`."""
        return answers.labels(await self._see("classify", image, within_ms, {"top": top}))

    async def _see(
        self,
        capability: str,
        image: object,
        within_ms: float | None,
        options: Mapping[str, Scalar],
    ) -> Answer:
        given = {name: value for name, value in options.items() if value is not None}
        data = image_bytes(image)
        return await self.call(capability, data, within_ms=within_ms, options=given)

    async def call(
        self,
        capability: str,
        data: bytes,
        *,
        within_ms: float | None = None,
        content_type: str = "",
        options: Mapping[str, Scalar] | None = None,
        durable: bool = False,
        priority: int = 1,
        private: bool = False,
        task_id: str = "",
    ) -> Answer:
        """Any capability: bytes in, bytes out.

        Raises:
            TaskError: see the tree in `ispine.protocol.errors`.
        """
        request = Request(
            capability,
            data,
            within_ms,
            content_type,
            options,
            durable,
            priority,
            private,
            "",
            task_id,
        )
        return await self.ask(request)

    async def ask(self, request: Request) -> Answer:
        """Send one request and wait for its answer."""
        task = request.to_task(self.client_id)
        if self._link is None:
            return await self._run_locally(task)
        future: asyncio.Future[Result] = self._loop.create_future()

        def ended(result: Result) -> None:
            if not future.done():
                future.set_result(result)

        self.begin(task, ended)
        try:
            result = await future
        except asyncio.CancelledError:
            self.cancel(task.task_id)
            raise
        try:
            return answer_of(result)
        except NoCapableDevice:
            if self._local is None:
                raise
            return await self._run_locally(task)

    def begin(self, task: Task, ended: Ended) -> None:
        """Send a task; `ended` is called once, on the loop, with its one outcome."""
        entry = self._pending.opened(task, boot_ns())
        self._callbacks[task.task_id] = ended
        self._publish(task)
        resend_s = self._pending.resend_after_ns() / 1e9
        expire_s = (entry.deadline_ns - entry.sent_ns + GRACE_NS) / 1e9
        self._timers[task.task_id] = [
            self._loop.call_later(resend_s, self._resend, task),
            self._loop.call_later(expire_s, self._give_up, task),
        ]

    def cancel(self, task_id: str) -> None:
        """Take a task back; its outcome is then `cancelled`, unless it was done already."""
        if self._pending.get(task_id) is None or self._link is None:
            return
        frame = self._stamper.frames(Cancel(task_id, self.client_id))[0]
        self._say(self._topics.cancel(self.client_id, TaskId(task_id)), frame, qos=1)

    async def _run_locally(self, task: Task) -> Answer:
        if self._local is None:
            raise ConnectionLost("expected a hub; this client has none; connect again")
        return await self._local.run(task)

    # -- streams and maps ------------------------------------------------------------------------

    def stream(
        self,
        capability: str,
        frames: Iterable[object] | AsyncIterable[object],
        *,
        within_ms: float = 500.0,
        options: Mapping[str, Scalar] | None = None,
        drop: bool | None = None,
    ) -> AsyncIterator[Outcome[Answer]]:
        """Frames in, outcomes out, in order, one each.

        Args:
            capability: `detect`, `gesture`, `classify` take images; others take bytes.
            frames: an iterable; a live one (an iterator) is read in a thread.
            within_ms: deadline of each frame.
            options: for the capability.
            drop: the newest frame takes the place of one that still waits here; None drops from
                live sources and not from lists.
        """
        wants_drop = not isinstance(frames, Sequence) if drop is None else drop
        make = self._maker(capability, within_ms, options, secrets.token_urlsafe(6))
        return stream_frames(self.ask, make, frames, drops=wants_drop)

    def map(
        self,
        capability: str,
        items: Iterable[object],
        *,
        within_ms: float = 60_000.0,
        options: Mapping[str, Scalar] | None = None,
        window: int | None = None,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> AsyncIterator[Outcome[Answer]]:
        """Every item once, outcomes in order; the scheduler spreads them by measured speed.

        Args:
            capability: what is to be done with each.
            items: images or bytes.
            within_ms: deadline of each item, from when it is sent.
            options: for the capability.
            window: items on their way at once; None for twice the fleet's places.
            progress: called with items done and, where known, their number.
        """
        make = self._maker(capability, within_ms, options, "")
        return map_items(self.ask, make, items, window or self._map_window, progress)

    async def _map_window(self, capability: str) -> int:
        devices = [
            device.slots
            for device in await self.devices()
            if any(offered.name == capability for offered in device.capabilities)
        ]
        return max(4, 2 * sum(devices) + 2 * len(devices))

    def _maker(
        self,
        capability: str,
        within_ms: float,
        options: Mapping[str, Scalar] | None,
        stream: str,
    ) -> Callable[[object], Request]:
        def make(item: object) -> Request:
            data = item if isinstance(item, bytes) else image_bytes(item)
            if isinstance(item, bytes) and capability in IMAGE_CAPABILITIES:
                data = image_bytes(item)
            return Request(capability, data, within_ms, "", options, stream=stream)

        return make

    # -- the fleet -------------------------------------------------------------------------------

    async def devices(self) -> "list[DeviceState]":
        """The devices that are online, from their retained states."""
        if self._link is None:
            return []
        if self._states is None:
            self._states = {}
            await self._link.subscribe(self._topics.any_state, self._on_state, qos=1)
            await self._link.subscribe(self._topics.any_status, self._on_status, qos=1)
            await asyncio.sleep(STATES_S)
        return [s for name, s in sorted(self._states.items()) if name not in self._offline]

    async def outcome(self, task_id: str, *, within_ms: float = 2_000.0) -> Answer:
        """The outcome of an earlier durable task.

        Raises:
            TaskError: it is not done, or nobody knows it.
        """
        from ispine.sdk.admin import ask_outcome

        if self._link is None:
            raise ConnectionLost("expected a hub; this client has none; connect again")
        check_id(task_id, "task id")
        return await ask_outcome(self._link, self._topics, self.client_id, task_id, within_ms)

    # -- messages --------------------------------------------------------------------------------

    def _publish(self, task: Task, only: tuple[int, ...] | None = None) -> None:
        topic = self._topics.task(Capability(task.capability), self.client_id, TaskId(task.task_id))
        qos = 1 if task.mode == "durable" else 0
        for frame in self._stamper.frames(task, only=only):
            self._say(topic, frame, qos=qos)

    def _say(self, topic: str, payload: bytes, *, qos: int) -> None:
        assert self._link is not None
        try:
            self._link.publish(topic, payload, qos=qos)
        except ConnectionLost:
            # Open tasks are sent again on the next connection, or end with their deadline.
            log.debug("not sent, the link is down", extra={"topic": topic})

    def _resend(self, task: Task) -> None:
        if self._pending.should_resend(task.task_id, boot_ns()):
            self._publish(task)

    def _give_up(self, task: Task) -> None:
        if self._pending.gave_up(task.task_id) is None:
            return
        is_down = self._link is None or not self._link.is_connected
        why = "the connection to the hub is down" if is_down else "the hub did not answer"
        result = Result(
            task.task_id,
            self.client_id,
            "expired",
            DeadlineExceeded.code,
            f"expected an answer within {task.ttl_ms} ms; {why}; allow more time or try again",
        )
        self._end(result)

    def _end(self, result: Result) -> None:
        for timer in self._timers.pop(result.task_id, ()):
            timer.cancel()
        ended = self._callbacks.pop(result.task_id, None)
        if ended is not None:
            ended(result)

    def _on_link(self, is_connected: bool) -> None:
        if is_connected:
            for entry in self._pending.reconnected(boot_ns()):
                self._publish(entry.task)

    def _on_message(self, message: Message) -> None:
        try:
            head, body = decode(message.payload)
            if isinstance(body, Chunk):
                whole = self._reassembler.add(head, body, boot_ns())
                self._reassembler.expire(boot_ns())
                if whole is None:
                    return
                head, body = decode(whole)
        except ProtocolError as error:
            self._pending.stats.malformed += 1
            log.warning("malformed message", extra={"topic": message.topic, "why": str(error)})
            return
        if isinstance(body, Result):
            if self._pending.finished(body, boot_ns()) is not None:
                self._end(body)
        elif isinstance(body, TaskEvent):
            self._on_event(body)

    def _on_event(self, event: TaskEvent) -> None:
        entry = self._pending.get(event.task_id)
        if entry is not None and event.kind == "missing":
            self._publish(entry.task, only=event.missing)
        else:
            self._pending.accepted(event.task_id)

    def _on_state(self, message: Message) -> None:
        from ispine.protocol.state import DeviceState, parse

        assert self._states is not None
        device = self._topics.read_device(message.topic)
        if not message.payload:
            self._states.pop(device, None)
            return
        try:
            self._states[device] = parse(DeviceState, message.payload)
        except ProtocolError as error:
            self._pending.stats.malformed += 1
            log.warning("malformed state", extra={"topic": message.topic, "why": str(error)})

    def _on_status(self, message: Message) -> None:
        device = self._topics.read_device(message.topic)
        (self._offline.discard if message.payload == b"online" else self._offline.add)(device)


def _make_local() -> "LocalRunner":
    from ispine.sdk.local import LocalRunner

    return LocalRunner()


async def _open_link(url: str | None, timeout_s: float) -> Link:
    from ispine.protocol.mqtt import MqttLink

    deadline_s = asyncio.get_running_loop().time() + timeout_s
    named = url or os.environ.get("ISPINE_URL")
    candidates = [named] if named else [await _found_url(timeout_s), DEFAULT_URL]
    tried: list[str] = []
    for candidate in candidates:
        if candidate is None:
            tried.append("no hub announced itself by mDNS")
            continue
        left_s = max(deadline_s - asyncio.get_running_loop().time(), 0.5)
        link = MqttLink(candidate, timeout_s=left_s)
        try:
            await link.connect()
        except ConnectionLost as error:
            tried.append(str(error))
        else:
            return link
    raise ConnectionLost(
        f"expected a hub; {'; '.join(tried)}."
        " Start one with 'ispine hub', or name it with url= or ISPINE_URL"
    )


async def _found_url(timeout_s: float) -> str | None:
    from ispine.protocol.discovery import find_hub

    found = await find_hub(min(FIND_S, timeout_s / 2))
    return None if found is None else found.url


__all__ = ["AsyncSpine", "default_client_id"]
