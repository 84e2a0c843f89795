"""Who turns the event loop of the blocking SDK.

Theory of operation. A call that waits turns the loop itself, on the caller's own thread: the answer
is there without being handed from thread to thread, which costs 0.1 ms and more each way on a small
device. When nobody has called for a moment, a background thread takes over for keepalives; while
futures or streams are open (`hold`), it takes over at once. Only the holder of `_turn` turns the
loop; a caller that finds another caller at it is a guest and waits for a future.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")
LINGER_S = 0.05
_POKE_S = 0.001


class LoopDriver:
    """An event loop for callers of several threads."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._turn = threading.Lock()
        self._state = threading.Condition()
        self._callers = 0
        self._holds = 0
        self._is_closed = False
        self._release: asyncio.Future[None] | None = None
        self._thread = threading.Thread(target=self._serve, name="ispine-sdk", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: not self._callers or self._is_closed)
                self._state.wait_for(self._is_needed, LINGER_S)
                if self._is_closed:
                    return
                if self._callers:
                    continue
            with self._turn:
                self._turn_until_released()

    def _is_needed(self) -> bool:
        return bool(self._callers or self._is_closed or self._holds)

    def _turn_until_released(self) -> None:
        release = self._release = self.loop.create_future()
        with self._state:
            if self._callers or self._is_closed:
                return
        self.loop.run_until_complete(release)

    def _ask_for_release(self) -> None:
        release = self._release
        if release is not None:
            self.loop.call_soon_threadsafe(_finish, release)

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Run a function on the loop soon, whoever turns it."""
        self.loop.call_soon_threadsafe(function, *args)

    def hold(self) -> None:
        """Something is open that nobody waits for here: the background thread turns the loop."""
        with self._state:
            self._holds += 1
            self._state.notify_all()

    def unhold(self) -> None:
        """It is over."""
        with self._state:
            self._holds -= 1

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Wait for a coroutine, turning the loop here if nobody else waits."""
        if _is_inside_a_loop():
            return self._run_as_guest(work)
        with self._state:
            self._callers += 1
            is_first = self._callers == 1
        try:
            if not is_first:
                return self._run_as_guest(work)
            while not self._turn.acquire(blocking=False):
                self._ask_for_release()
                if self._turn.acquire(timeout=_POKE_S):
                    break
            try:
                return self._run_here(work)
            finally:
                self._turn.release()
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._state:
            self._callers -= 1
            self._state.notify_all()

    def _run_here(self, work: Coroutine[Any, Any, Value]) -> Value:
        task = self.loop.create_task(work, name="ispine-call")
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            task.cancel()
            raise

    def _run_as_guest(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Another caller turns the loop; it may leave at any time, so look now and then."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        while True:
            try:
                return future.result(0.002)
            except concurrent.futures.TimeoutError:
                if future.done():
                    raise
                self._help_out()

    def _help_out(self) -> None:
        """Turn the loop for a moment if nobody does."""
        if not _is_inside_a_loop() and self._turn.acquire(blocking=False):
            try:
                self.loop.run_until_complete(asyncio.sleep(0.002))
            finally:
                self._turn.release()

    def close(self) -> None:
        """Stop turning; the loop is closed."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        while self._thread.is_alive():
            self._ask_for_release()
            self._thread.join(0.01)
        with self._turn:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


def _finish(release: "asyncio.Future[None]") -> None:
    if not release.done():
        release.set_result(None)


def _is_inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
