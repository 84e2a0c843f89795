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

from ispine.protocol.errors import ConnectionLost, LocalProtocolError

Value = TypeVar("Value")
LINGER_S = 0.05
_POKE_S = 0.001
_NOTICE_S = 0.002


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

    def check_thread(self) -> None:
        """Refuse to wait on the thread that has to bring what is waited for.

        Raises:
            LocalProtocolError: called on the loop itself.
        """
        if _running_loop() is self.loop:
            raise LocalProtocolError(
                "expected a blocking call outside of a future's done callback, which runs on the"
                " SDK's own loop; use submit() there, or hand over to another thread"
            )

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Wait for a coroutine, turning the loop here if nobody else waits.

        Raises:
            LocalProtocolError: called from the loop itself, which would wait for itself.
            ConnectionLost: the driver was closed meanwhile.
        """
        try:
            self.check_thread()
            return self._run_anywhere(work, is_inside_a_loop=_running_loop() is not None)
        except LocalProtocolError:
            work.close()
            raise
        except (asyncio.CancelledError, concurrent.futures.CancelledError) as error:
            raise ConnectionLost(
                "expected an open client; it was closed meanwhile; connect again"
            ) from error

    def _run_anywhere(self, work: Coroutine[Any, Any, Value], *, is_inside_a_loop: bool) -> Value:
        if is_inside_a_loop:  # of somebody else, on this thread: ours has to be turned elsewhere
            self.hold()
            try:
                return self._run_as_guest(work)
            finally:
                self.unhold()
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
        """Another caller turns the loop; when it leaves, the first guest that notices goes on."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            while True:
                try:
                    return future.result(_NOTICE_S)
                except concurrent.futures.TimeoutError:
                    if future.done():
                        raise
                    self._go_on(future)
        except BaseException:
            future.cancel()
            raise

    def _go_on(self, future: "concurrent.futures.Future[Value]") -> None:
        if _running_loop() is None and self._turn.acquire(blocking=False):
            try:
                done = asyncio.wrap_future(future, loop=self.loop)
                self.loop.run_until_complete(asyncio.wait((done,)))
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
            self.loop.run_until_complete(self._wind_up())
            self.loop.close()

    async def _wind_up(self) -> None:
        """Cancel what still runs, so that whoever waits for it is told."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.loop.shutdown_asyncgens()


def _finish(release: "asyncio.Future[None]") -> None:
    if not release.done():
        release.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
