"""The blocking facade: one background thread runs the asyncio client."""

import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ispine.protocol.clock import boot_ns
from ispine.protocol.errors import ConnectionLost, TaskError
from ispine.protocol.messages import Result, Scalar
from ispine.protocol.topics import DEFAULT_ROOT
from ispine.sdk import answers
from ispine.sdk.answers import Answer, Outcome, answer_of
from ispine.sdk.client import AsyncSpine
from ispine.sdk.driver import LoopDriver
from ispine.sdk.handover import Handover
from ispine.sdk.media import image_bytes, payload_of, raw_bytes
from ispine.sdk.pending import Stats
from ispine.sdk.request import Request
from ispine.sdk.sharding import Progress

if TYPE_CHECKING:
    from ispine.models.results import Detection, Hand, Label
    from ispine.protocol.state import DeviceState

Value = TypeVar("Value")
_CLOSED = "expected an open client; this one was closed; connect again"


class Future(concurrent.futures.Future[Answer]):
    """The answer to come. `cancel` takes the task back.

    Attributes:
        task_id: for `ispine why`.
    """

    def __init__(self, task_id: str, take_back: Callable[[str], None]) -> None:
        super().__init__()
        self.task_id = task_id
        self._take_back = take_back

    def cancel(self) -> bool:
        """Take the task back; true unless the answer was there already."""
        if self.done():
            return self.cancelled()
        self._take_back(self.task_id)
        return super().cancel()

    def settle(self, result: Result) -> None:
        """The outcome came. Called once, by the client."""
        if not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(answer_of(result))
        except TaskError as error:
            self.set_exception(error)


class Spine:
    """A wearable's connection to the fleet. Make it with `Spine.connect()`.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._driver = LoopDriver()
        self._is_closed = False
        self._lock = threading.Lock()
        self._client: AsyncSpine

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        *,
        client_id: str | None = None,
        timeout_s: float = 5.0,
        fallback: str | None = None,
        root: str = DEFAULT_ROOT,
    ) -> Self:
        """Find the hub and connect. See `AsyncSpine.connect`."""
        spine = cls()
        try:
            spine._client = spine._run(
                AsyncSpine.connect(
                    url, client_id=client_id, timeout_s=timeout_s, fallback=fallback, root=root
                )
            )
        except BaseException:
            spine._is_closed = True
            spine._driver.close()
            raise
        return spine

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        if self._is_closed:
            work.close()
            raise ConnectionLost(_CLOSED)
        return self._driver.run(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave; open realtime tasks are taken back and end as `TaskCancelled`. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        try:
            self._driver.run(self._client.close())
        finally:
            self._driver.close()

    @property
    def client_id(self) -> str:
        """How the hub knows this client."""
        return self._client.client_id

    @property
    def stats(self) -> Stats:
        """What happened to the tasks of this client."""
        return self._client.stats

    @property
    def is_connected(self) -> bool:
        """Whether the hub can be reached now."""
        return self._client.is_connected

    @property
    def endpoint(self) -> str:
        """Where the hub is; "local" without one."""
        return self._client.endpoint

    def detect(
        self,
        image: object,
        *,
        within_ms: float | None = None,
        model: str | None = None,
        min_score: float | None = None,
    ) -> "list[Detection]":
        """Objects in a picture. See `AsyncSpine.detect`."""
        options = {"model": model, "min_score": min_score}
        return answers.detections(self._see("detect", image, within_ms, options))

    def gesture(
        self, image: object, *, within_ms: float | None = None, min_score: float | None = None
    ) -> "list[Hand]":
        """Hands in a picture. See `AsyncSpine.gesture`."""
        return answers.hands(self._see("gesture", image, within_ms, {"min_score": min_score}))

    def classify(
        self, image: object, *, within_ms: float | None = None, top: int | None = None
    ) -> "list[Label]":
        """What is in the scene. See `AsyncSpine.classify`."""
        return answers.labels(self._see("classify", image, within_ms, {"top": top}))

    def _see(
        self,
        capability: str,
        image: object,
        within_ms: float | None,
        options: Mapping[str, Scalar],
    ) -> Answer:
        called_ns = boot_ns()
        given = {name: value for name, value in options.items() if value is not None}
        data = image_bytes(image)
        request = Request(capability, data, within_ms, options=given, called_ns=called_ns)
        return self._run(self._client.ask(request))

    def call(
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
        """Any capability: bytes in, bytes out. See `AsyncSpine.call`."""
        request = Request(
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
        return self._run(self._client.ask(request))

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
    ) -> Future:
        """Like `call`, without waiting.

        Raises:
            TaskRejected: the request cannot be; nothing was sent.
        """
        called_ns = boot_ns()
        return self._begin(
            Request(
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
        )

    def _begin(self, request: Request) -> Future:
        task = request.to_task(self._client.client_id)
        future = Future(task.task_id, self._take_back)

        def ended(result: Result) -> None:
            self._driver.unhold()
            future.settle(result)

        with self._lock:  # what is posted before `close` is ended by it
            if self._is_closed:
                raise ConnectionLost(_CLOSED)
            self._driver.post(self._client.begin, task, ended)
            self._driver.hold()
        return future

    def _take_back(self, task_id: str) -> None:
        with self._lock:
            if not self._is_closed:
                self._driver.post(self._client.cancel, task_id)

    def stream(
        self,
        capability: str,
        frames: Iterable[object],
        *,
        within_ms: float = 500.0,
        options: Mapping[str, Scalar] | None = None,
        drop: bool | None = None,
    ) -> Iterator[Outcome[Answer]]:
        """Frames in, outcomes out, in order, one each. See `AsyncSpine.stream`."""
        return self._iterate(
            Handover(self._driver, None),
            lambda: self._client.stream(
                capability, frames, within_ms=within_ms, options=options, drop=drop
            ),
        )

    def map(
        self,
        capability: str,
        items: Iterable[object],
        *,
        within_ms: float = 60_000.0,
        options: Mapping[str, Scalar] | None = None,
        window: int | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Outcome[Answer]]:
        """Every item once, outcomes in order. See `AsyncSpine.map`."""
        handover = Handover(self._driver, progress)
        return self._iterate(
            handover,
            lambda: self._client.map(
                capability,
                items,
                within_ms=within_ms,
                options=options,
                window=window,
                progress=None if progress is None else handover.tell,
            ),
        )

    def _iterate(
        self, handover: Handover, make: Callable[[], AsyncIterator[Outcome[Answer]]]
    ) -> Iterator[Outcome[Answer]]:
        if self._is_closed:
            raise ConnectionLost(_CLOSED)
        return handover.iterate(make)

    def devices(self) -> "list[DeviceState]":
        """The devices that are online."""
        return self._run(self._client.devices())

    def outcome(self, task_id: str, *, within_ms: float = 2_000.0) -> Answer:
        """The outcome of an earlier durable task. See `AsyncSpine.outcome`."""
        return self._run(self._client.outcome(task_id, within_ms=within_ms))


__all__ = ["Future", "Spine"]
