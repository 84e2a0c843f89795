"""Limits per wearable and per owner, and the budget of extra attempts."""

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from ispine.protocol.ids import ClientId
from ispine.scheduler.config import SECOND, CoreConfig
from ispine.scheduler.task import TaskRecord

_MINUTE_NS = 60 * SECOND

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Excess:
    """A quota that a task would break."""

    quota: str
    limit: float
    seen: float


@dataclass(slots=True)
class Usage:
    """Device time of one wearable in the last minute."""

    spent: deque[tuple[int, float]] = field(default_factory=deque)
    total_ns: float = 0.0

    def add(self, now_ns: int, device_ns: float) -> None:
        """Note device time."""
        self.spent.append((now_ns, device_ns))
        self.total_ns += device_ns

    def within_minute(self, now_ns: int) -> float:
        """Device time of the last minute, nanoseconds."""
        while self.spent and now_ns - self.spent[0][0] > _MINUTE_NS:
            self.total_ns -= self.spent.popleft()[1]
        return self.total_ns


class Quotas:
    """Counts open tasks and device time."""

    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self._clients: dict[ClientId, int] = {}
        self._owners: dict[str, int] = {}
        self._usage: dict[ClientId, Usage] = {}

    def excess(self, task: TaskRecord, open_tasks: int, now_ns: int) -> Excess | None:
        """The first quota that one more task would break, None when it may come in."""
        config = self._config
        counts = (
            ("tasks of the hub in flight", config.max_open, open_tasks),
            (
                "tasks of one wearable in flight",
                config.max_open_per_client,
                self._clients.get(task.client_id, 0),
            ),
            (
                "tasks of one owner in flight",
                config.max_open_per_owner,
                self._owners.get(task.owner, 0) if task.owner else 0,
            ),
        )
        for quota, limit, seen in counts:
            if seen >= limit:
                return Excess(quota, limit, seen)
        return self._excess_time(task.client_id, now_ns)

    def _excess_time(self, client: ClientId, now_ns: int) -> Excess | None:
        limit = self._config.device_ns_per_minute
        usage = self._usage.get(client)
        if limit is None or usage is None:
            return None
        spent = usage.within_minute(now_ns)
        if spent < limit:
            return None
        return Excess("device seconds per minute", limit / SECOND, round(spent / SECOND, 2))

    def open(self, task: TaskRecord) -> None:
        """A task came in."""
        self._clients[task.client_id] = self._clients.get(task.client_id, 0) + 1
        if task.owner:
            self._owners[task.owner] = self._owners.get(task.owner, 0) + 1

    def close(self, task: TaskRecord) -> None:
        """A task was decided."""
        _decrease(self._clients, task.client_id)
        if task.owner:
            _decrease(self._owners, task.owner)

    def spend(self, client: ClientId, now_ns: int, device_ns: float) -> None:
        """A wearable used device time."""
        if self._config.device_ns_per_minute is not None:
            self._usage.setdefault(client, Usage()).add(now_ns, device_ns)


def _decrease(counts: dict[Key, int], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class HedgeBudget:
    """Extra attempts are at most a share of all attempts, and a small burst.

    Args:
        share: tokens per ordinary attempt.
        burst: tokens at the start, and most that are saved up.
    """

    def __init__(self, share: float, burst: float) -> None:
        self._share = share
        self._burst = burst
        self._tokens = burst
        self.attempts = 0
        self.hedges = 0

    def earn(self) -> None:
        """An ordinary attempt was made."""
        self.attempts += 1
        self._tokens = min(self._tokens + self._share, self._burst)

    @property
    def can_hedge(self) -> bool:
        """Whether an extra attempt is paid for."""
        return self._tokens >= 1

    def spend(self) -> None:
        """An extra attempt was made."""
        self._tokens -= 1
        self.hedges += 1

    @property
    def is_kept(self) -> bool:
        """The invariant: never more extra attempts than the share and the burst allow."""
        return self.hedges <= self._share * self.attempts + self._burst
