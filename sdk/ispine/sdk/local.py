"""Running a task on the wearable itself, when no hub answers."""

import asyncio
import time
from typing import TYPE_CHECKING

from ispine.protocol.errors import ExecutionFailed, NoCapableDevice
from ispine.protocol.messages import Task
from ispine.sdk.answers import Answer

if TYPE_CHECKING:
    from ispine.models.capability import CapabilityImpl


class LocalRunner:
    """Loads a capability on first use and runs it in a thread."""

    def __init__(self) -> None:
        self._loaded: dict[str, CapabilityImpl] = {}
        self._lock = asyncio.Lock()

    async def run(self, task: Task) -> Answer:
        """Answer a task here.

        Raises:
            NoCapableDevice: the capability is not installed here.
            TaskError: it ran and failed.
        """
        async with self._lock:
            return await asyncio.to_thread(self._run, task)

    def _run(self, task: Task) -> Answer:
        capability = self._load(task.capability)
        started = time.perf_counter()
        output = capability.run(task.data, options=task.options)
        took_ms = (time.perf_counter() - started) * 1e3
        return Answer(
            output.data,
            output.content_type,
            task.task_id,
            variant=output.variant,
            compute_ms=took_ms,
            total_ms=took_ms,
        )

    def _load(self, name: str) -> "CapabilityImpl":
        if name not in self._loaded:
            from ispine.models.capability import RuntimeConfig, discover

            factory = discover().get(name)
            if factory is None:
                raise NoCapableDevice(
                    f"expected {name!r} on this machine, since no hub answers; it is not"
                    " installed; start a hub or install the capability"
                )
            try:
                capability = factory(RuntimeConfig())
                capability.load()
            except ImportError as error:
                raise ExecutionFailed(
                    f"expected the models on this machine; {error};"
                    " install them with: pip install 'ispine[agent]'"
                ) from error
            self._loaded[name] = capability
        return self._loaded[name]
