"""What an asynchronous iterator yields, handed over to a thread."""

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator

from ispine.protocol.errors import ConnectionLost
from ispine.sdk.answers import Answer, Outcome
from ispine.sdk.driver import LoopDriver
from ispine.sdk.sharding import Progress

MOST_WAITING = 64

_Told = tuple[int, int | None]
_Item = Outcome[Answer] | BaseException | _Told | None


class Handover:
    """Carries outcomes, and how far it is, from the loop to the thread that iterates.

    Args:
        driver: turns the loop.
        progress: called on the thread that iterates.
    """

    def __init__(self, driver: LoopDriver, progress: Progress | None) -> None:
        self._driver = driver
        self._progress = progress
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(MOST_WAITING)

    def tell(self, done: int, total: int | None) -> None:
        """The loop's `progress`."""
        self._queue.put((done, total))

    async def _pump(self, make: Callable[[], AsyncIterator[Outcome[Answer]]]) -> None:
        try:
            async for outcome in make():
                await self._room.acquire()
                self._queue.put(outcome)
        except asyncio.CancelledError:
            self._queue.put(ConnectionLost("expected an open client; it was closed; connect again"))
            raise
        except Exception as error:  # noqa: BLE001 - the boundary between two threads
            self._queue.put(error)
        else:
            self._queue.put(None)

    def iterate(
        self, make: Callable[[], AsyncIterator[Outcome[Answer]]]
    ) -> Iterator[Outcome[Answer]]:
        """Everything that the iterator that `make` makes, on the loop, yields.

        Raises:
            LocalProtocolError: called on the loop itself.
        """
        self._driver.check_thread()
        running = asyncio.run_coroutine_threadsafe(self._pump(make), self._driver.loop)
        self._driver.hold()
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, tuple):
                    if self._progress is not None:
                        self._progress(*item)
                    continue
                self._driver.post(self._room.release)
                yield item
        finally:
            running.cancel()
            self._driver.unhold()
