"""Streams and maps on top of single calls."""

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sized,
)
from contextlib import aclosing

from ispine.protocol.errors import ConnectionLost, TaskError
from ispine.sdk.answers import Answer, Outcome
from ispine.sdk.flow import Window
from ispine.sdk.request import Request

Ask = Callable[[Request], Awaitable[Answer]]
Make = Callable[[object], Request]
Progress = Callable[[int, int | None], None]

_END = object()


async def _as_async(frames: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
    """Read any source; an iterator may block, so it is read in a thread."""
    if isinstance(frames, AsyncIterable):
        async for frame in frames:
            yield frame
    elif isinstance(frames, Iterator):
        while (frame := await asyncio.to_thread(next, frames, _END)) is not _END:
            yield frame
    else:
        for frame in frames:
            yield frame


class _Ordered:
    """Outcomes come in any order and leave in that of their numbers."""

    def __init__(self) -> None:
        self._ready: dict[int, Outcome[Answer]] = {}
        self._next = 0
        self._total: int | None = None
        self._news = asyncio.Event()

    def put(self, outcome: Outcome[Answer]) -> None:
        self._ready[outcome.index] = outcome
        self._news.set()

    def close(self, total: int) -> None:
        self._total = total
        self._news.set()

    async def read(self) -> AsyncGenerator[Outcome[Answer], None]:
        while self._total is None or self._next < self._total:
            while self._next in self._ready:
                self._next += 1
                yield self._ready.pop(self._next - 1)
            if self._total is not None and self._next >= self._total:
                return
            self._news.clear()
            if self._next not in self._ready:
                await self._news.wait()


class _Stream:
    def __init__(self, ask: Ask, make: Make, *, drops: bool) -> None:
        self._ask, self._make, self._drops = ask, make, drops
        self._window = Window()
        self._place = asyncio.Event()
        self._newest: tuple[int, object] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self.outcomes = _Ordered()

    async def feed(self, frames: Iterable[object] | AsyncIterable[object]) -> None:
        loop = asyncio.get_running_loop()
        count = 0
        async for frame in _as_async(frames):
            self._window.frame_came(loop.time())
            if self._window.has_place:
                self._send(count, frame)
            elif self._drops:
                self._replace(count, frame)
            else:
                await self._wait_for_place()
                self._send(count, frame)
            count += 1
        if self._newest is not None:
            await self._wait_for_place()
        self.outcomes.close(count)

    async def _wait_for_place(self) -> None:
        while not self._window.has_place:
            self._place.clear()
            await self._place.wait()

    def _replace(self, index: int, frame: object) -> None:
        if self._newest is not None:
            self.outcomes.put(Outcome(self._newest[0], is_dropped=True))
        self._newest = (index, frame)

    def _send(self, index: int, frame: object) -> None:
        self._window.sent()
        task = asyncio.get_running_loop().create_task(self._one(index, frame), name="stream-frame")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _one(self, index: int, frame: object) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        outcome = await _outcome(self._ask, self._make, index, frame)
        self._window.ended(loop.time() - begun, is_answered=outcome.error is None)
        self.outcomes.put(outcome)
        newest, self._newest = self._newest, None
        if newest is not None:
            if self._window.has_place:
                self._send(*newest)
            else:
                self._newest = newest
        self._place.set()

    def stop(self) -> None:
        for task in self._sending:
            task.cancel()


async def _outcome(ask: Ask, make: Make, index: int, item: object) -> Outcome[Answer]:
    try:
        return Outcome(index, await ask(make(item)))
    except TaskError as error:
        return Outcome(index, error=error)
    except ConnectionLost as error:
        return Outcome(index, error=TaskError(str(error)))


async def stream_frames(
    ask: Ask, make: Make, frames: Iterable[object] | AsyncIterable[object], *, drops: bool
) -> AsyncIterator[Outcome[Answer]]:
    """One outcome per frame, in order. See `AsyncSpine.stream`."""
    stream = _Stream(ask, make, drops=drops)
    feeding = asyncio.get_running_loop().create_task(stream.feed(frames), name="stream-feed")
    feeding.add_done_callback(lambda task: _close_failed(stream, task))
    try:
        async with aclosing(stream.outcomes.read()) as outcomes:
            async for outcome in outcomes:
                yield outcome
        await feeding
    finally:
        feeding.cancel()
        stream.stop()


def _close_failed(stream: _Stream, task: asyncio.Task[None]) -> None:
    if task.cancelled() or task.exception() is not None:
        stream.outcomes.close(0)


async def map_items(
    ask: Ask,
    make: Make,
    items: Iterable[object],
    window: int | Callable[[str], Awaitable[int]],
    progress: Progress | None,
) -> AsyncIterator[Outcome[Answer]]:
    """One outcome per item, in order. See `AsyncSpine.map`."""
    loop = asyncio.get_running_loop()
    total = len(items) if isinstance(items, Sized) else None
    source = iter(items)
    waiting: deque[asyncio.Task[Outcome[Answer]]] = deque()
    places: asyncio.Semaphore | None = None
    finished = 0

    async def one(index: int, item: object) -> Outcome[Answer]:
        nonlocal finished
        assert places is not None
        try:
            return await _outcome(ask, make, index, item)
        finally:
            places.release()
            finished += 1
            if progress is not None:
                progress(finished, total)

    async def submit_all() -> None:
        nonlocal places
        for index, item in enumerate(source):
            if places is None:
                size = window if isinstance(window, int) else await window(make(item).capability)
                places = asyncio.Semaphore(size)
            await places.acquire()
            waiting.append(loop.create_task(one(index, item), name="map-item"))
            news.set()

    news = asyncio.Event()
    submitting = loop.create_task(submit_all(), name="map-submit")
    submitting.add_done_callback(lambda _: news.set())
    try:
        while not submitting.done() or waiting:
            if waiting:
                yield await waiting.popleft()
                continue
            news.clear()
            if not submitting.done():
                await news.wait()
        await submitting
    finally:
        submitting.cancel()
        for task in waiting:
            task.cancel()
