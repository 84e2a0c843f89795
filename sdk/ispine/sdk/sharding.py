"""Maps: a batch spread over the fleet, outcomes in order.

As many items are on their way as the fleet can hold, so that the scheduler, which binds late, gives
each device work in proportion to its speed and the last items to whoever is free first. A consumer
that stops reading stops the batch too, after `MOST_AHEAD` items.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sized
from contextlib import aclosing
from typing import cast

from ispine.protocol.clock import boot_ns
from ispine.sdk.answers import Answer, Outcome
from ispine.sdk.streaming import Ask, Ordered, fail_with, outcome_of, read_source

Progress = Callable[[int, int | None], None]
MOST_AHEAD = 256


class _Batch:
    def __init__(
        self, ask: Ask, places: Callable[[], int], total: int | None, progress: Progress | None
    ) -> None:
        self._ask, self._places, self._total, self._progress = ask, places, total, progress
        self._sending: set[asyncio.Task[Outcome[Answer]]] = set()
        self._ended_one = asyncio.Event()
        self._done = 0
        self.outcomes = Ordered()

    async def feed(self, items: Iterable[object]) -> None:
        count = 0
        async with aclosing(cast("AsyncGenerator[object, None]", read_source(items))) as source:
            async for item in source:
                await self._wait_for_place(count)
                self._send(count, item)
                count += 1
        self.outcomes.close(count)

    async def _wait_for_place(self, index: int) -> None:
        while len(self._sending) >= self._places():
            self._ended_one.clear()
            await self._ended_one.wait()
        await self.outcomes.wait_for_room(index, max(MOST_AHEAD, 4 * self._places()))

    def _send(self, index: int, item: object) -> None:
        work = outcome_of(self._ask, index, item, boot_ns())
        task = asyncio.get_running_loop().create_task(work, name="map-item")
        self._sending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Outcome[Answer]]) -> None:
        self._sending.discard(task)
        self._ended_one.set()
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self.outcomes.fail(error or asyncio.CancelledError())
            return
        self.outcomes.put(task.result())
        self._done += 1
        if self._progress is not None:
            self._tell()

    def _tell(self) -> None:
        assert self._progress is not None
        try:
            self._progress(self._done, self._total)
        except Exception as error:  # noqa: BLE001 - the caller's own code
            self.outcomes.fail(error)

    async def stop(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)


async def map_items(
    ask: Ask, items: Iterable[object], places: Callable[[], int], progress: Progress | None
) -> AsyncIterator[Outcome[Answer]]:
    """One outcome per item, in order. See `AsyncSpine.map`."""
    total = len(items) if isinstance(items, Sized) else None
    batch = _Batch(ask, places, total, progress)
    feeding = asyncio.get_running_loop().create_task(batch.feed(items), name="map-feed")
    feeding.add_done_callback(lambda task: fail_with(batch.outcomes, task))
    try:
        async with aclosing(batch.outcomes.read()) as outcomes:
            async for outcome in outcomes:
                yield outcome
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await batch.stop()
