"""The line of waiting tasks: who is next.

Priority classes are strict. Inside a class each wearable has a virtual time: device time it was
given, divided by its weight. Of the wearables whose virtual time is at most a window above the
smallest, the one with the earliest deadline is next (earliest eligible deadline first), so
deadlines decide in the small and fairness decides in the large: two wearables that both have work
waiting never differ by more than the window and one task. A wearable that was idle begins at the
present virtual time, so it can neither save up turns nor be punished. A task that lost its device
goes before those that never had one.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from ispine.protocol.ids import ClientId
from ispine.scheduler.task import Lane, TaskRecord

Entry = tuple[int, int, TaskRecord]
"""(place in the line, order of arrival, task): sorts by the first two, which are unique."""

_CLASSES = (2, 1, 0)
_REMEMBERED = 4096


class Pick(NamedTuple):
    """The wearable that is next, and its tasks of that lane, earliest deadline first."""

    priority: int
    client_id: ClientId
    lane: Lane
    entries: list[Entry]


def _entry(task: TaskRecord) -> Entry:
    return (task.line_ns, task.seq, task)


class WaitingLine:
    """Waiting tasks by class, wearable and lane.

    Args:
        window_ns: device time one wearable may be ahead for the sake of a deadline.
        weights: share of a wearable, 1 when it is not named.
    """

    def __init__(self, window_ns: int, weights: Mapping[str, float]) -> None:
        self._window_ns = window_ns
        self._weights = weights
        self._classes: dict[int, dict[ClientId, dict[Lane, list[Entry]]]] = {
            priority: {} for priority in _CLASSES
        }
        self._virtual: dict[ClientId, float] = {}
        self._present = 0.0
        self._lanes: dict[Lane, list[int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TaskRecord]:
        for clients in self._classes.values():
            for lanes in clients.values():
                for entries in lanes.values():
                    for entry in entries:
                        yield entry[2]

    @property
    def lanes(self) -> Collection[Lane]:
        """Lanes in which tasks wait."""
        return self._lanes.keys()

    def add(self, task: TaskRecord) -> None:
        """Let a task wait."""
        client = task.client_id
        clients = self._classes[task.priority]
        if client not in clients:
            self._virtual[client] = max(self._virtual.get(client, 0.0), self._present)
            clients[client] = {}
        insort(clients[client].setdefault(task.lane, []), _entry(task))
        self._lanes.setdefault(task.lane, [0, 0, 0])[task.priority] += 1
        self._count += 1
        task.is_waiting = True

    def remove(self, task: TaskRecord) -> None:
        """Take a task out of the line."""
        clients = self._classes[task.priority]
        lanes = clients[task.client_id]
        entries = lanes[task.lane]
        del entries[bisect_left(entries, (task.line_ns, task.seq))]
        if not entries:
            del lanes[task.lane]
            if not lanes:
                del clients[task.client_id]
                self._prune()
        counts = self._lanes[task.lane]
        counts[task.priority] -= 1
        if not any(counts):
            del self._lanes[task.lane]
        self._count -= 1
        task.is_waiting = False

    def charge(self, client: ClientId, device_ns: float) -> None:
        """Note that a wearable was given device time, or lost it (negative)."""
        if client not in self._virtual and device_ns < 0:
            return
        known = self._virtual.get(client, self._present)
        self._virtual[client] = known + device_ns / max(self._weights.get(client, 1.0), 0.01)

    def virtual_ns(self, client: ClientId) -> float:
        """Weighted device time of a wearable, comparable among those that wait."""
        return self._virtual.get(client, self._present)

    def pick(
        self, blocked: Collection[Lane] = (), passed: Collection[tuple[str, Lane]] = ()
    ) -> Pick | None:
        """Who is next; nothing is taken out.

        Args:
            blocked: lanes that are left out.
            passed: wearables that are left out in a lane.
        """
        for priority in _CLASSES:
            clients = self._classes[priority]
            if clients:
                pick = self._pick_in(priority, clients, blocked, passed)
                if pick is not None:
                    return pick
        return None

    def _pick_in(
        self,
        priority: int,
        clients: dict[ClientId, dict[Lane, list[Entry]]],
        blocked: Collection[Lane],
        passed: Collection[tuple[str, Lane]],
    ) -> Pick | None:
        heads: list[tuple[float, Entry, ClientId, Lane]] = []
        for client, lanes in clients.items():
            best: tuple[Entry, Lane] | None = None
            for lane, entries in lanes.items():
                if lane in blocked or (passed and (client, lane) in passed):
                    continue
                if best is None or entries[0] < best[0]:
                    best = (entries[0], lane)
            if best is not None:
                heads.append((self._virtual[client], best[0], client, best[1]))
        if not heads:
            return None
        floor = min(head[0] for head in heads)
        self._present = max(self._present, floor)
        limit = floor + self._window_ns
        _, _, client, lane = min((h for h in heads if h[0] <= limit), key=lambda head: head[1])
        return Pick(priority, client, lane, clients[client][lane])

    def count(self, lane: Lane, priority: int) -> int:
        """Tasks of the lane that wait in this class or above."""
        counts = self._lanes.get(lane)
        return 0 if counts is None else sum(counts[priority:])

    def sharers(self, lane: Lane, priority: int) -> int:
        """Wearables that wait for this lane in this class."""
        return sum(1 for lanes in self._classes[priority].values() if lane in lanes)

    def ahead(self, task: TaskRecord) -> int:
        """Tasks of its lane that would be served before this one, were it to wait.

        All of the higher classes; its wearable's own with an earlier deadline; and of each other
        wearable as many as that, since they take turns.
        """
        counts = self._lanes.get(task.lane)
        if counts is None:
            return 0
        higher = sum(counts[task.priority + 1 :])
        clients = self._classes[task.priority]
        own_lanes = clients.get(task.client_id)
        own = 0
        if own_lanes is not None:
            own = bisect_left(own_lanes.get(task.lane, []), (task.line_ns, task.seq))
        same = counts[task.priority]
        if len(clients) == (own_lanes is not None):
            return higher + own
        others = 0
        for client, lanes in clients.items():
            if client != task.client_id and task.lane in lanes:
                others += min(len(lanes[task.lane]), own + 1)
        return higher + min(own + others, same)

    def _prune(self) -> None:
        if len(self._virtual) <= _REMEMBERED:
            return
        waiting = {client for clients in self._classes.values() for client in clients}
        for client in [c for c, v in self._virtual.items() if v <= self._present]:
            if client not in waiting:
                del self._virtual[client]
