"""What `why` can tell about a task: candidates, choices and where the time went. No payloads."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ispine.scheduler.candidate import Candidate
from ispine.scheduler.task import TaskKey, TaskRecord

_MAX_STEPS = 64
_MAX_CANDIDATES = 8


class Step(NamedTuple):
    """One thing that happened to a task, `at_ms` after its arrival."""

    at_ms: float
    what: str
    device_id: str
    attempt: int
    detail: str
    candidates: Sequence[Candidate] = ()


@dataclass(slots=True)
class Trace:
    """The story of one task.

    Attributes:
        parts_ms: where the time went, by name; filled in at the end.
    """

    task_id: str
    client_id: str
    capability: str
    mode: str
    priority: int
    size_bytes: int
    submitted_ns: int
    within_ms: float
    seq: int
    steps: list[Step] = field(default_factory=list)
    status: str = "open"
    code: str = ""
    message: str = ""
    device_id: str = ""
    variant: str = ""
    predicted_ms: float = 0.0
    total_ms: float = 0.0
    parts_ms: dict[str, float] = field(default_factory=dict)

    def note(
        self,
        now_ns: int,
        what: str,
        device_id: str = "",
        attempt: int = 0,
        detail: str = "",
        candidates: Sequence[Candidate] = (),
    ) -> None:
        """Add a step; a task that is passed around for long keeps only its first ones."""
        if len(self.steps) < _MAX_STEPS:
            at_ms = (now_ns - self.submitted_ns) / 1e6
            best = sorted(candidates)[:_MAX_CANDIDATES] if candidates else ()
            self.steps.append(Step(at_ms, what, device_id, attempt, detail, best))


class Traces:
    """The last traces, oldest first."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._traces: OrderedDict[TaskKey, Trace] = OrderedDict()

    def begin(self, task: TaskRecord) -> Trace:
        """The trace of a task that just arrived."""
        trace = Trace(
            task.task_id,
            task.client_id,
            task.lane.capability,
            "durable" if task.is_durable else "realtime",
            task.priority,
            task.size_bytes,
            task.submitted_ns,
            (task.deadline_ns - task.submitted_ns) / 1e6,
            task.seq,
        )
        self._traces[task.key] = trace
        if len(self._traces) > self._keep:
            self._traces.popitem(last=False)
        return trace

    def of(self, task: TaskRecord) -> Trace:
        """The trace of an open task; a new one when it went out of the ring meanwhile."""
        return self._traces.get(task.key) or self.begin(task)

    def find(self, task_id: str, client_id: str = "") -> Trace | None:
        """The latest trace with that id."""
        for key in reversed(self._traces):
            if key[1] == task_id and client_id in ("", key[0]):
                return self._traces[key]
        return None

    def latest(self, limit: int, after_seq: int) -> list[Trace]:
        """The last `limit` traces that arrived after `after_seq`, oldest first."""
        found: list[Trace] = []
        for trace in reversed(self._traces.values()):
            if len(found) >= limit or trace.seq <= after_seq:
                break
            found.append(trace)
        return found[::-1]
