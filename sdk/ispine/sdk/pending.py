"""The client's side of a task's life: what is open, what to send again, what comes of it.

Pure: events in by method, decisions out by return value, the time in every call. A task has one
outcome; a second one is counted and dropped.
"""

from dataclasses import dataclass, field

from ispine.protocol.messages import Result, Task

MS = 1_000_000
RESEND_FLOOR_NS = 80 * MS
GRACE_NS = 300 * MS
MAX_DONE = 4096


@dataclass(slots=True)
class Stats:
    """What happened to the tasks of one client.

    Attributes:
        sent: tasks.
        answered: tasks with an outcome from the hub.
        expired_here: tasks that ended without word from the hub.
        resent: tasks that were sent a second time.
        duplicates: outcomes that came again.
        late: outcomes that came after the task had ended here.
        malformed: messages that could not be read.
    """

    sent: int = 0
    answered: int = 0
    expired_here: int = 0
    resent: int = 0
    duplicates: int = 0
    late: int = 0
    malformed: int = 0


@dataclass(slots=True)
class Open:
    """One task that waits for its outcome."""

    task: Task
    sent_ns: int
    deadline_ns: int
    is_accepted: bool = False
    is_resent: bool = False


@dataclass(slots=True)
class Pending:
    """All open tasks of one client."""

    stats: Stats = field(default_factory=Stats)
    rtt_ns: float = 0.0
    _open: dict[str, Open] = field(default_factory=dict)
    _done: dict[str, bool] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, task: Task, now_ns: int) -> Open:
        """A task is about to be sent."""
        entry = Open(task, now_ns, now_ns + task.ttl_ms * MS)
        self._open[task.task_id] = entry
        self.stats.sent += 1
        return entry

    def get(self, task_id: str) -> Open | None:
        """An open task."""
        return self._open.get(task_id)

    def resend_after_ns(self) -> int:
        """How long to wait for `accepted`: well above the usual round trip."""
        return max(RESEND_FLOOR_NS, int(3 * self.rtt_ns))

    def accepted(self, task_id: str) -> None:
        """The hub has the task."""
        entry = self._open.get(task_id)
        if entry is not None:
            entry.is_accepted = True

    def should_resend(self, task_id: str, now_ns: int) -> bool:
        """Whether to send a task once more now, because nothing was heard of it."""
        entry = self._open.get(task_id)
        if entry is None or entry.is_accepted or entry.is_resent or now_ns >= entry.deadline_ns:
            return False
        entry.is_resent = True
        self.stats.resent += 1
        return True

    def reconnected(self, now_ns: int) -> list[Open]:
        """What to ask for again on a new connection: the hub answers what it knows."""
        return [entry for entry in self._open.values() if now_ns < entry.deadline_ns]

    def finished(self, result: Result, now_ns: int) -> Open | None:
        """The hub's outcome; the task it ends, None when it is over already."""
        entry = self._open.pop(result.task_id, None)
        if entry is None:
            if self._done.get(result.task_id, False):
                self.stats.duplicates += 1
            else:
                self.stats.late += 1
                self._remember(result.task_id, True)
            return None
        self.stats.answered += 1
        self._remember(result.task_id, True)
        took = now_ns - entry.sent_ns
        if result.status == "done":
            self.rtt_ns += 0.2 * (took - self.rtt_ns) if self.rtt_ns else took
        return entry

    def gave_up(self, task_id: str) -> Open | None:
        """The deadline and some grace passed without word from the hub."""
        entry = self._open.pop(task_id, None)
        if entry is not None:
            self.stats.expired_here += 1
            self._remember(task_id, False)
        return entry

    def _remember(self, task_id: str, by_hub: bool) -> None:
        self._done[task_id] = by_hub
        while len(self._done) > MAX_DONE:
            del self._done[next(iter(self._done))]
