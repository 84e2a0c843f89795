"""Inputs of open tasks and results of decided ones, in memory and bounded."""

import hashlib
from dataclasses import dataclass

from ispine.protocol.messages import Task
from ispine.scheduler.task import TaskKey


@dataclass(slots=True)
class StoredTask:
    """The input of an open task.

    Attributes:
        is_plain: the wearable speaks JSON, so its result is JSON.
        digest: "" until it was computed.
    """

    task: Task
    is_plain: bool
    digest: str = ""

    def compute_digest(self) -> str:
        """Hash of the capability and the data; computed once, about 0.1 ms for 100 KB."""
        if not self.digest:
            self.digest = digest_of(self.task)
        return self.digest


def digest_of(task: Task) -> str:
    """What two copies of the same task have in common."""
    made = hashlib.blake2b(task.capability.encode(), digest_size=16)
    made.update(b"\0")
    made.update(task.data)
    return made.hexdigest()


class PayloadStore:
    """Inputs by task.

    Args:
        cap_bytes: most that all inputs may take together.
    """

    def __init__(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self._stored: dict[TaskKey, StoredTask] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def held_bytes(self) -> int:
        """Bytes of all inputs."""
        return self._bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether another input fits."""
        return self._bytes + size_bytes <= self._cap_bytes

    def put(self, key: TaskKey, stored: StoredTask) -> None:
        """Keep the input of a task that has none yet."""
        self._stored[key] = stored
        self._bytes += len(stored.task.data)

    def get(self, key: TaskKey) -> StoredTask | None:
        """The input of a task."""
        return self._stored.get(key)

    def take(self, key: TaskKey) -> StoredTask | None:
        """The input of a task, which is then forgotten."""
        stored = self._stored.pop(key, None)
        if stored is not None:
            self._bytes -= len(stored.task.data)
        return stored
