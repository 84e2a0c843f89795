"""Streams: frames in, one outcome each, in order, with as many on their way as pay off.

Theory of operation. `_feed` reads the source and hands each frame to a place of the `Window`. Where
there is none, a live source's frame waits alone in `_newest`, and the next one replaces it; a list
waits. Every end of a frame gives its place back, answered or not, and takes the waiting frame.
Outcomes wait in `Ordered` until their turn; when nobody reads them, the source is not read either.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
)
from contextlib import aclosing
from typing import cast

from ispine.protocol.clock import boot_ns
from ispine.protocol.errors import ConnectionLost, IspineError, TaskError
from ispine.sdk.answers import Answer, Outcome
from ispine.sdk.flow import Window
from ispine.sdk.pending import Stats

Ask = Callable[[object, int], Awaitable[Answer]]
"""(frame or item, `boot_ns` of when its deadline begins) to its answer."""

MOST_UNREAD = 256

_END = object()


async def read_source(source: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
    """Read any source; all but lists and tuples may block, so they are read in a thread."""
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
    elif isinstance(source, list | tuple):
        for item in source:
            yield item
    else:
        iterator = iter(source)
        while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
            yield item


async def outcome_of(ask: Ask, index: int, item: object, called_ns: int) -> Outcome[Answer]:
    """What comes of one frame or item.

    Raises:
        ConnectionLost: the client was closed; any other error of iSpine is an outcome.
    """
    try:
        return Outcome(index, await ask(item, called_ns))
    except TaskError as error:
        return Outcome(index, error=error)
    except ConnectionLost:
        raise
    except IspineError as error:
        return Outcome(index, error=TaskError(str(error), fields={"code": error.code}))


class Ordered:
    """Outcomes come in any order and leave in that of their numbers."""

    def __init__(self) -> None:
        self._ready: dict[int, Outcome[Answer]] = {}
        self._next = 0
        self._total: int | None = None
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def next_index(self) -> int:
        """The outcome that is to be read next."""
        return self._next

    def put(self, outcome: Outcome[Answer]) -> None:
        """Take one outcome."""
        self._ready[outcome.index] = outcome
        self._news.set()

    def close(self, total: int) -> None:
        """There are so many and no more."""
        self._total = total
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """The reader gets this instead of further outcomes."""
        self._error = self._error or error
        self._news.set()

    async def wait_for_room(self, index: int, most: int) -> None:
        """Wait until less than `most` outcomes before `index` are unread."""
        while index - self._next >= most:
            self._room.clear()
            await self._room.wait()

    async def read(self) -> AsyncGenerator[Outcome[Answer], None]:
        """All outcomes in order."""
        while self._error is None:
            if self._next in self._ready:
                self._next += 1
                self._room.set()
                yield self._ready.pop(self._next - 1)
            elif self._total is not None and self._next >= self._total:
                return
            else:
                self._news.clear()
                await self._news.wait()
        raise self._error


class _Stream:
    def __init__(self, ask: Ask, stats: Stats, *, drops: bool) -> None:
        self._ask, self._stats, self._drops = ask, stats, drops
        self._window = Window()
        self._place = asyncio.Event()
        self._newest: tuple[int, object, int] | None = None
        self._sending: set[asyncio.Task[Outcome[Answer]]] = set()
        self.outcomes = Ordered()

    async def feed(self, frames: Iterable[object] | AsyncIterable[object]) -> None:
        loop = asyncio.get_running_loop()
        count = 0
        async with aclosing(cast("AsyncGenerator[object, None]", read_source(frames))) as source:
            async for frame in source:
                self._window.frame_came(loop.time())
                await self._take(count, frame)
                count += 1
                await self.outcomes.wait_for_room(count, MOST_UNREAD)
        while self._newest is not None:
            await self._next_place()
        self.outcomes.close(count)

    async def _take(self, index: int, frame: object) -> None:
        if self._drops:
            self._drop_waiting()
            self._newest = (index, frame, boot_ns())
            self._send_waiting()
            return
        while not self._window.has_place:
            await self._next_place()
        self._send(index, frame, boot_ns())

    async def _next_place(self) -> None:
        self._place.clear()
        await self._place.wait()

    def _drop_waiting(self) -> None:
        if self._newest is not None:
            self._stats.dropped += 1
            self.outcomes.put(Outcome(self._newest[0], is_dropped=True))
            self._newest = None

    def _send_waiting(self) -> None:
        if self._newest is not None and self._window.has_place:
            waiting, self._newest = self._newest, None
            self._send(*waiting)

    def _send(self, index: int, frame: object, came_ns: int) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        self._window.sent()
        work = outcome_of(self._ask, index, frame, came_ns)
        task = loop.create_task(work, name="stream-frame")
        self._sending.add(task)
        task.add_done_callback(lambda done: self._ended(done, loop.time() - begun_s))

    def _ended(self, task: asyncio.Task[Outcome[Answer]], took_s: float) -> None:
        self._sending.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self._window.ended(took_s, is_answered=False)
            self.outcomes.fail(error or asyncio.CancelledError())
        else:
            outcome = task.result()
            self._window.ended(took_s, is_answered=outcome.error is None)
            self.outcomes.put(outcome)
        self._send_waiting()
        self._place.set()

    async def stop(self) -> None:
        self._newest = None
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)


async def stream_frames(
    ask: Ask, frames: Iterable[object] | AsyncIterable[object], stats: Stats, *, drops: bool
) -> AsyncIterator[Outcome[Answer]]:
    """One outcome per frame, in order. See `AsyncSpine.stream`."""
    stream = _Stream(ask, stats, drops=drops)
    feeding = asyncio.get_running_loop().create_task(stream.feed(frames), name="stream-feed")
    feeding.add_done_callback(lambda task: fail_with(stream.outcomes, task))
    try:
        async with aclosing(stream.outcomes.read()) as outcomes:
            async for outcome in outcomes:
                yield outcome
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await stream.stop()


def fail_with(outcomes: Ordered, task: asyncio.Task[None]) -> None:
    """Pass what a task failed with on to the reader of the outcomes."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        outcomes.fail(error)
