"""Running a task on the wearable itself, when no hub answers."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ispine.protocol.errors import DeadlineExceeded, ModelUnavailable, NoCapableDevice
from ispine.protocol.messages import Task
from ispine.sdk.answers import Answer

if TYPE_CHECKING:
    from ispine.models.capability import CapabilityImpl


class LocalRunner:
    """Loads a capability on first use and runs it, one task at a time, in a thread of its own."""

    def __init__(self) -> None:
        self._loaded: dict[str, CapabilityImpl] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ispine-local")

    async def run(self, task: Task) -> Answer:
        """Answer a task here.

        Raises:
            NoCapableDevice: the capability is not installed here.
            DeadlineExceeded: it took too long; it runs on, its answer is dropped.
            TaskError: it ran and failed.
        """
        deadline_s = time.monotonic() + task.ttl_ms / 1e3
        try:
            async with asyncio.timeout(task.ttl_ms / 1e3):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._pool, self._run, task, deadline_s)
        except TimeoutError as error:
            raise _too_late(task) from error

    def close(self) -> None:
        """Begin nothing more; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, task: Task, deadline_s: float) -> Answer:
        begun_s = time.monotonic()
        capability = self._load(task.capability)
        if time.monotonic() >= deadline_s:
            raise _too_late(task)
        started_s = time.perf_counter()
        output = capability.run(task.data, options=task.options)
        took_ms = (time.perf_counter() - started_s) * 1e3
        return Answer(
            output.data,
            output.content_type,
            task.task_id,
            variant=output.variant,
            compute_ms=took_ms,
            total_ms=(time.monotonic() - begun_s) * 1e3,
        )

    def _load(self, name: str) -> "CapabilityImpl":
        if name not in self._loaded:
            from ispine.models.capability import RuntimeConfig, discover

            factory = discover().get(name)
            if factory is None:
                raise NoCapableDevice(
                    f"expected {name!r} on this machine, since no hub or no device there has it;"
                    " it is not installed here; start a hub or install the capability"
                )
            try:
                capability = factory(RuntimeConfig())
                capability.load()
            except ImportError as error:
                raise ModelUnavailable(
                    f"expected the models on this machine; {error};"
                    " install them with: pip install 'ispine[agent]'"
                ) from error
            self._loaded[name] = capability
        return self._loaded[name]


def _too_late(task: Task) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"expected {task.capability} to run on this machine within {task.ttl_ms} ms; it took"
        " longer; allow more time (the first call also loads the model)",
        task_id=task.task_id,
    )
