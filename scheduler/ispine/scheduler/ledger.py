"""Terminal decisions: one per task id, kept for five minutes.

The ledger answers the second copy of a task with the first one's outcome, drops later answers, and
remembers a cancel that overtook its task. Results are kept within a byte cap: when it is reached
the oldest result goes, but its outcome stays.
"""

from collections import OrderedDict
from dataclasses import dataclass

from ispine.protocol.messages import ResultStatus
from ispine.scheduler.task import TaskKey


@dataclass(slots=True)
class Outcome:
    """How a task ended.

    Attributes:
        digest: of its payload, "" while unknown.
        result_bytes: size of the kept result, 0 when it went.
    """

    status: ResultStatus
    code: str
    decided_ns: int
    digest: str
    result_bytes: int
    has_result: bool = True


class Ledger:
    """Outcomes by task, oldest first."""

    def __init__(self, keep_ns: int, keep_bytes: int, keep_count: int) -> None:
        self._keep_ns = keep_ns
        self._keep_bytes = keep_bytes
        self._keep_count = keep_count
        self._outcomes: OrderedDict[TaskKey, Outcome] = OrderedDict()
        self._cancelled: OrderedDict[TaskKey, tuple[int, str]] = OrderedDict()
        self._full: OrderedDict[TaskKey, None] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the results that are kept."""
        return self._bytes

    def get(self, key: TaskKey) -> Outcome | None:
        """The outcome of a task, None while it has none or when it was forgotten."""
        return self._outcomes.get(key)

    def record(self, key: TaskKey, outcome: Outcome) -> list[TaskKey]:
        """Keep an outcome; returns the tasks whose results have to go for it."""
        self._outcomes[key] = outcome
        self._full[key] = None
        self._bytes += outcome.result_bytes
        gone: list[TaskKey] = []
        while self._full and (self._bytes > self._keep_bytes or len(self._full) > self._keep_count):
            oldest, _ = self._full.popitem(last=False)
            self._drop_result(oldest)
            gone.append(oldest)
        while len(self._outcomes) > 2 * self._keep_count:
            self._outcomes.popitem(last=False)
        return gone

    def _drop_result(self, key: TaskKey) -> None:
        outcome = self._outcomes[key]
        self._bytes -= outcome.result_bytes
        outcome.result_bytes = 0
        outcome.has_result = False

    def expire(self, now_ns: int) -> list[TaskKey]:
        """Forget what is too old; returns the tasks whose results go."""
        gone: list[TaskKey] = []
        while self._outcomes:
            key = next(iter(self._outcomes))
            if now_ns - self._outcomes[key].decided_ns < self._keep_ns:
                break
            if key in self._full:
                del self._full[key]
                self._drop_result(key)
                gone.append(key)
            del self._outcomes[key]
        while self._cancelled:
            key = next(iter(self._cancelled))
            if now_ns - self._cancelled[key][0] < self._keep_ns:
                break
            del self._cancelled[key]
        return gone

    @property
    def next_expiry_ns(self) -> int | None:
        """When the oldest entry is to be forgotten."""
        times = []
        if self._outcomes:
            times.append(next(iter(self._outcomes.values())).decided_ns)
        if self._cancelled:
            times.append(next(iter(self._cancelled.values()))[0])
        return min(times) + self._keep_ns if times else None

    def remember_cancel(self, key: TaskKey, now_ns: int, reason: str) -> None:
        """A cancel came for a task that is not there yet."""
        self._cancelled[key] = (now_ns, reason)
        if len(self._cancelled) > self._keep_count:
            self._cancelled.popitem(last=False)

    def take_cancel(self, key: TaskKey) -> str | None:
        """The reason of a cancel that overtook this task, None when there was none."""
        found = self._cancelled.pop(key, None)
        return None if found is None else found[1]
