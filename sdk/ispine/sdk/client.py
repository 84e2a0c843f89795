"""The asyncio client: calls to the core's events, its actions to publishes and outcomes."""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, assert_never

from ispine.protocol.chunks import Reassembler, Stamper
from ispine.protocol.clock import boot_ns
from ispine.protocol.codec import decode
from ispine.protocol.errors import (
    ConfigError,
    ConnectionLost,
    NoCapableDevice,
    ProtocolError,
    RemoteProtocolError,
    TaskCancelled,
    TaskRejected,
)
from ispine.protocol.ids import ClientId, check_id, new_boot_id
from ispine.protocol.link import Link, Message
from ispine.protocol.messages import Chunk, Result, Scalar, Task, TaskEvent
from ispine.protocol.topics import DEFAULT_ROOT, Topics
from ispine.sdk import answers
from ispine.sdk.answers import Answer, Outcome, answer_of, refusal, result_here
from ispine.sdk.connecting import check_client_id, check_timeout, default_client_id, open_link
from ispine.sdk.fleet import FleetView
from ispine.sdk.media import payload_aside, payload_of, raw_bytes
from ispine.sdk.pending import Action, EndTask, Pending, SendCancel, SendTask, Stats
from ispine.sdk.request import Request
from ispine.sdk.sender import TaskSender
from ispine.sdk.sharding import Progress, map_items
from ispine.sdk.streaming import Ask, stream_frames

if TYPE_CHECKING:
    from ispine.models.results import Detection, Hand, Label
    from ispine.protocol.state import DeviceState
    from ispine.sdk.local import LocalRunner

log = logging.getLogger(__name__)

CHUNK_CHECK_S = 0.1
MOST_PARTIAL = 16
FEWEST_PLACES = 4
_CLOSED = "expected an open client; this one was closed"

Ended = Callable[[Result], None]


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
        self._core = Pending()
        self._ended: dict[str, list[Ended]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._chunk_timer: asyncio.TimerHandle | None = None
        self._reassembler = Reassembler(max_open_per_sender=MOST_PARTIAL)
        self._local = local
        self._running_here: set[asyncio.Task[Answer]] = set()
        self._hub: tuple[object, object] | None = None
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        if link is not None:
            stamper = Stamper(client_id, new_boot_id(), boot_ns)
            self._sender = TaskSender(link, self._topics, self.client_id, stamper)
            self._fleet = FleetView(link, self._topics, self._core.stats)

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
            ConfigError: a wrong URL, client id, timeout or fallback.
        """
        if fallback not in (None, "local"):
            raise ConfigError(f'expected fallback None or "local"; got {fallback!r}')
        name = check_client_id(client_id)
        local = _make_local() if fallback else None
        try:
            link = await open_link(url, check_timeout(timeout_s))
        except ConnectionLost:
            if local is None:
                raise
            return cls(None, name, root=root, local=local)
        return await cls._on_link_of_its_own(link, name, root, local)

    @classmethod
    async def _on_link_of_its_own(
        cls, link: Link, name: str, root: str, local: "LocalRunner | None"
    ) -> Self:
        try:
            spine = cls(link, name, root=root, local=local)
            await spine._subscribe(link)
        except BaseException:
            await link.close()
            raise
        return spine

    @classmethod
    async def over(cls, link: Link, client_id: str, *, root: str = DEFAULT_ROOT) -> Self:
        """A client on a link of your own, for tests."""
        spine = cls(link, client_id, root=root)
        await spine._subscribe(link)
        return spine

    async def _subscribe(self, link: Link) -> None:
        if not link.is_connected:
            await link.connect()
        await link.subscribe(self._topics.results_of(self.client_id), self._on_message, qos=1)
        await link.subscribe(self._topics.events_of(self.client_id), self._on_message)
        await link.subscribe(self._topics.hub, self._on_hub, qos=1)
        link.add_state_listener(self._on_link)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave; open realtime tasks are taken back and end as `TaskCancelled`. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._do(self._core.closed(self.client_id))
        for timer in (self._timer, self._chunk_timer):
            if timer is not None:
                timer.cancel()
        for running in self._running_here:
            running.cancel()
        await asyncio.gather(*self._running_here, return_exceptions=True)
        if self._local is not None:
            self._local.close()
        if self._link is not None:
            await self._fleet.close()
            await self._link.close()

    @property
    def stats(self) -> Stats:
        """What happened to the tasks of this client."""
        return self._core.stats

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
        called_ns = boot_ns()
        given = {name: value for name, value in options.items() if value is not None}
        data = await payload_aside(capability, image)
        return await self.ask(
            Request(capability, data, within_ms, options=given, called_ns=called_ns)
        )

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

        Args:
            capability: its name.
            data: at most 8 MiB less 4 KiB.
            within_ms: deadline from now; None for 2 s, durable tasks 10 minutes.
            content_type: "" lets the signature of the data say.
            options: text, numbers, true or false, for the capability.
            durable: survives a restart of the hub; `outcome` fetches it later.
            priority: 0 background, 1 normal, 2 urgent.
            private: only on devices of the same owner.
            task_id: the same id with the same data is the same task; "" for a fresh one.

        Raises:
            TaskError: see the tree in `ispine.protocol.errors`.
        """
        return await self.ask(
            Request(
                capability,
                raw_bytes(data),
                within_ms,
                content_type,
                options,
                durable,
                priority,
                private,
                task_id=task_id,
            )
        )

    def submit(
        self,
        capability: str,
        data: object,
        *,
        within_ms: float | None = None,
        content_type: str = "",
        options: Mapping[str, Scalar] | None = None,
        durable: bool = False,
        priority: int = 1,
        private: bool = False,
        task_id: str = "",
    ) -> asyncio.Task[Answer]:
        """Like `call`, without waiting; `cancel()` of what it returns takes the task back.

        Raises:
            TaskRejected: the request cannot be; nothing was sent.
        """
        called_ns = boot_ns()
        request = Request(
            capability,
            payload_of(capability, data),
            within_ms,
            content_type,
            options,
            durable,
            priority,
            private,
            task_id=task_id,
            called_ns=called_ns,
        )
        task = request.to_task(self.client_id)
        return self._loop.create_task(self._ask(task), name=f"task-{task.task_id}")

    async def ask(self, request: Request) -> Answer:
        """Send one request and wait for its answer.

        Raises:
            ConnectionLost: this client was closed.
            TaskError: see the tree in `ispine.protocol.errors`.
        """
        return await self._ask(request.to_task(self.client_id))

    async def _ask(self, task: Task) -> Answer:
        if self._is_closed:
            raise ConnectionLost(f"{_CLOSED}; connect again")
        future: asyncio.Future[Result] = self._loop.create_future()

        def ended(result: Result) -> None:
            if not future.done():
                future.set_result(result)

        self.begin(task, ended)
        try:
            return answer_of(await future)
        except asyncio.CancelledError:
            self.cancel(task.task_id)
            raise

    def begin(self, task: Task, ended: Ended) -> None:
        """Send a task; `ended` is called exactly once, on the loop, with its outcome.

        Never raises: whatever is wrong with the task is its outcome.
        """
        if self._is_closed:
            ended(refusal(task, TaskCancelled(f"{_CLOSED}; connect again")))
        elif self._link is None:
            self._begin_here(task, ended)
        else:
            self._begin_there(task, ended)

    def _begin_there(self, task: Task, ended: Ended) -> None:
        try:
            actions = self._core.submitted(task, boot_ns())
        except TaskRejected as error:
            ended(refusal(task, error))
            return
        self._ended.setdefault(task.task_id, []).append(self._with_fallback(task, ended))
        try:
            self._do(actions)
        except ProtocolError as error:
            self._do(self._core.abandoned(refusal(task, error)))

    def _with_fallback(self, task: Task, ended: Ended) -> Ended:
        if self._local is None:
            return ended

        def ended_there(result: Result) -> None:
            if result.code == NoCapableDevice.code and not self._is_closed:
                self._begin_here(task, ended)
            else:
                ended(result)

        return ended_there

    def _begin_here(self, task: Task, ended: Ended) -> None:
        assert self._local is not None
        running = self._loop.create_task(self._local.run(task), name=f"local-{task.task_id}")
        self._running_here.add(running)

        def over(done: asyncio.Task[Answer]) -> None:
            self._running_here.discard(done)
            ended(result_here(task, done))

        running.add_done_callback(over)

    def cancel(self, task_id: str) -> None:
        """Take a task back; its outcome is then `cancelled`, unless it was done already."""
        self._do(self._core.taken_back(task_id))

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
            frames: an iterable; all but lists and tuples are read in a thread.
            within_ms: deadline of each frame, from when the source made it.
            options: for the capability.
            drop: the newest frame takes the place of one that still waits here; None drops from
                live sources and not from lists.
        """
        wants_drop = not isinstance(frames, Sequence) if drop is None else drop
        ask = self._asker(capability, within_ms, options, secrets.token_urlsafe(6))
        return stream_frames(ask, frames, self._core.stats, drops=wants_drop)

    def map(
        self,
        capability: str,
        items: Iterable[object],
        *,
        within_ms: float = 60_000.0,
        options: Mapping[str, Scalar] | None = None,
        window: int | None = None,
        progress: Progress | None = None,
    ) -> AsyncIterator[Outcome[Answer]]:
        """Every item once, outcomes in order; the scheduler spreads them by measured speed.

        Args:
            capability: what is to be done with each.
            items: images or bytes; all but lists and tuples are read in a thread.
            within_ms: deadline of each item, from when it is sent.
            options: for the capability.
            window: items on their way at once; None for twice what the fleet holds, which keeps
                every device busy as devices come and go.
            progress: called with items done and, where known, their number.
        """
        if window is not None and window < 1:
            raise TaskRejected(f"expected a window of at least 1; got {window}")
        ask = self._asker(capability, within_ms, options, "")
        return map_items(ask, items, self._places(capability, window), progress)

    def _places(self, capability: str, window: int | None) -> Callable[[], int]:
        if window is not None:
            return lambda: window
        if self._link is None:
            return lambda: FEWEST_PLACES
        self._fleet.follow()
        return lambda: max(2 * self._fleet.places(capability), FEWEST_PLACES)

    def _asker(
        self, capability: str, within_ms: float, options: Mapping[str, Scalar] | None, stream: str
    ) -> Ask:
        async def ask(item: object, called_ns: int) -> Answer:
            data = await payload_aside(capability, item)
            request = Request(
                capability, data, within_ms, options=options, stream=stream, called_ns=called_ns
            )
            return await self.ask(request)

        return ask

    # -- the fleet -------------------------------------------------------------------------------

    async def devices(self) -> "list[DeviceState]":
        """The devices that are online, from their retained states."""
        return [] if self._link is None else await self._fleet.devices()

    async def outcome(self, task_id: str, *, within_ms: float = 2_000.0) -> Answer:
        """The outcome of an earlier durable task.

        Raises:
            TaskError: it is not done, or nobody knows it.
            ConnectionLost: no hub answers.
        """
        from ispine.sdk.admin import ask_outcome

        if self._link is None:
            raise ConnectionLost("expected a hub; this client has none; connect again")
        return await ask_outcome(self._link, self._topics, self.client_id, task_id, within_ms)

    # -- messages --------------------------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case SendTask():
                    self._sender.send(action)
                case SendCancel():
                    self._sender.cancel(action.task_id)
                case EndTask():
                    self._end(action.result)
                case _:
                    assert_never(action)
        self._arm()

    def _end(self, result: Result) -> None:
        self._sender.forget(result.task_id)
        for ended in self._ended.pop(result.task_id, ()):
            ended(result)

    def _arm(self) -> None:
        """See to it that the core is woken when something is due."""
        due_ns = self._core.next_due_ns
        if due_ns is None or self._is_closed:
            return
        due_s = self._loop.time() + max(due_ns - boot_ns(), 0) / 1e9
        if self._timer is not None:
            if self._timer.when() <= due_s and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._do(self._core.time_passed(boot_ns()))

    def _on_link(self, is_connected: bool) -> None:
        if is_connected:
            self._do(self._core.reconnected(boot_ns()))
        else:
            self._core.disconnected(boot_ns())
            self._arm()

    def _on_hub(self, message: Message) -> None:
        """A hub that began anew has forgotten what it had not decided."""
        try:
            told = json.loads(message.payload or b"{}")
            hub = (told.get("boot"), told.get("term"))
        except (ValueError, AttributeError, RecursionError):
            self._malformed(message, "expected the JSON of a hub")
            return
        if hub == (None, None):
            return
        before, self._hub = self._hub, hub
        if before not in (None, hub):
            self._do(self._core.reconnected(boot_ns()))

    def _on_message(self, message: Message) -> None:
        try:
            body = self._read(message)
        except ProtocolError as error:
            self._malformed(message, str(error))
            return
        if isinstance(body, Result):
            self._do(self._core.result_heard(body, boot_ns()))
        elif isinstance(body, TaskEvent):
            if body.kind != "missing":
                self._sender.forget(body.task_id)
            self._do(self._core.event_heard(body, boot_ns()))

    def _read(self, message: Message) -> Result | TaskEvent | None:
        head, body = decode(message.payload)
        if isinstance(body, Chunk):
            if not self._core.is_open(body.task_id):
                # What nobody waits for must not take the place of what somebody does.
                if body.index == 0:
                    self._core.stray_heard(body.task_id)
                return None
            self._look_for_stalled()
            whole = self._reassembler.add(head, body, boot_ns())
            if whole is None:
                self._watch_chunks()
                return None
            head, body = decode(whole)
        if not isinstance(body, Result | TaskEvent):
            raise RemoteProtocolError(f"expected a result or an event; got a {type(body).__name__}")
        if not message.topic.endswith(f"/{self.client_id}/{body.task_id}"):
            raise RemoteProtocolError(f"expected news of the task in the topic; got {body.task_id}")
        return body

    def _watch_chunks(self) -> None:
        if self._chunk_timer is None and not self._is_closed:
            self._chunk_timer = self._loop.call_later(CHUNK_CHECK_S, self._check_chunks)

    def _check_chunks(self) -> None:
        self._chunk_timer = None
        self._look_for_stalled()
        if not self._reassembler.is_empty:
            self._watch_chunks()

    def _look_for_stalled(self) -> None:
        for lack in self._reassembler.expire(boot_ns()):
            self._do(self._core.result_stalled(lack.task_id, boot_ns()))

    def _malformed(self, message: Message, why: str) -> None:
        level = logging.DEBUG if self._core.stats.malformed else logging.WARNING
        self._core.stats.malformed += 1
        log.log(level, "malformed message", extra={"topic": message.topic, "why": why})


def _make_local() -> "LocalRunner":
    from ispine.sdk.local import LocalRunner

    return LocalRunner()


__all__ = ["AsyncSpine", "default_client_id"]
