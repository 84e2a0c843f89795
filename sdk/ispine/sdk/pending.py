"""The client's side of a task's life, as a pure core: no clock, no socket, no thread.

Theory of operation. A task is *open* from `submitted` until its one outcome. What is heard of it
and the passing of time come in as calls with the time in them; what is to be done comes out as
actions. A task of which nothing is heard is sent once more, and one whose outcome stays away is
asked for under its id: brokers drop what a slow reader does not take. Both only when a later task
overtook it or the hub fell silent, so that a busy hub is not given twice the work. On a new
connection, or when the hub began anew, every open task is sent again under its id: the hub answers
what it has decided already and takes up what it lost. A task without word from the hub ends here, a
little after its deadline, so that the hub's own `expired` can come first. Whatever is said about a
task that has ended is counted and dropped.

`check_invariants` says what always holds; tests run it after every event.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from ispine.protocol.errors import DeadlineExceeded, TaskRejected
from ispine.protocol.messages import Result, Task, TaskEvent

MS = 1_000_000
RESEND_FLOOR_NS = 80 * MS
RESEND_NS_PER_BYTE = 400
ASK_NS = 1000 * MS
MOST_DOUBLINGS = 6
GRACE_FLOOR_NS = 50 * MS
GRACE_LARGEST_RTT_NS = 500 * MS
MAX_DONE = 4096
MAX_CAPABILITIES = 256


@dataclass(slots=True)
class Stats:
    """What happened to the tasks of one client.

    Attributes:
        sent: tasks.
        answered: tasks with an outcome from the hub.
        expired_here: tasks that ended without word from the hub.
        abandoned: tasks that were open when the client closed, or that could not be sent.
        resent: tasks that were sent again because nothing was heard of them.
        asked_again: times that an outcome was asked for because it stayed away.
        duplicates: outcomes that came again.
        late: outcomes that came after the task had ended here.
        malformed: messages that could not be read.
        dropped: frames of streams that were never sent, because a newer one took their place.
    """

    sent: int = 0
    answered: int = 0
    expired_here: int = 0
    abandoned: int = 0
    resent: int = 0
    asked_again: int = 0
    duplicates: int = 0
    late: int = 0
    malformed: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class SendTask:
    """Publish a task, with the time that is left to it.

    Attributes:
        left_ms: until its deadline, at least 1.
        is_again: it was sent before on this connection.
        only: of a task in chunks, just these.
    """

    task: Task
    left_ms: int
    is_again: bool = False
    only: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Tell the hub that a task was taken back."""

    task_id: str


@dataclass(frozen=True, slots=True)
class EndTask:
    """Hand the one outcome of a task to its caller."""

    result: Result


Action = SendTask | SendCancel | EndTask


@dataclass(slots=True)
class Open:
    """One task that waits for its outcome."""

    task: Task
    sent_ns: int
    deadline_ns: int
    resend_ns: int
    number: int
    ask_ns: int = 0
    asks: int = 0
    due_ns: int = 0
    is_heard_of: bool = False
    is_resent: bool = False
    is_taken_back: bool = False


@dataclass(slots=True)
class Pending:
    """All tasks of one client.

    Attributes:
        stats: counters, also for what happens outside of this core.
        rtt_ns: smoothed time from sending a task to the first word about it, 0 before any.
        is_connected: whether there is a link to the hub.
    """

    stats: Stats = field(default_factory=Stats)
    rtt_ns: float = 0.0
    is_connected: bool = True
    _open: dict[str, Open] = field(default_factory=dict)
    _done: dict[str, bool] = field(default_factory=dict)
    _due: list[tuple[int, str]] = field(default_factory=list)
    _last_word_ns: int | None = None
    _heard_number: int = 0
    _answered_number: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def is_open(self, task_id: str) -> bool:
        """Whether a task waits for its outcome."""
        return task_id in self._open

    @property
    def next_due_ns(self) -> int | None:
        """When `time_passed` has something to do at the earliest."""
        return self._due[0][0] if self._due else None

    # -- events ----------------------------------------------------------------------------------

    def submitted(self, task: Task, now_ns: int) -> list[Action]:
        """A caller wants a task done.

        An open task with the same id and content is joined: nothing is sent, both callers get its
        outcome.

        Raises:
            TaskRejected: another task with this id is open.
        """
        known = self._open.get(task.task_id)
        if known is not None:
            _check_same(known.task, task)
            return []
        entry = Open(
            task,
            now_ns,
            now_ns + task.ttl_ms * MS,
            now_ns + self._resend_after_ns(task),
            self.stats.sent + 1,
        )
        self._open[task.task_id] = entry
        self.stats.sent += 1
        self._schedule(entry)
        return [SendTask(task, task.ttl_ms)]

    def taken_back(self, task_id: str) -> list[Action]:
        """The caller does not want a task any more; its outcome will say whether that worked."""
        entry = self._open.get(task_id)
        if entry is None:
            return []
        entry.is_taken_back = True
        self._schedule(entry)
        return [SendCancel(task_id)]

    def event_heard(self, event: TaskEvent, now_ns: int) -> list[Action]:
        """The hub has the task, or lacks pieces of it."""
        self._last_word_ns = now_ns
        entry = self._open.get(event.task_id)
        if entry is None:
            return []
        if event.kind == "missing":
            entry.resend_ns = now_ns + self._resend_after_ns(entry.task)
            self._schedule(entry)
            return [self._again(entry, now_ns, event.missing)]
        self._heard_of(entry, now_ns)
        self._schedule(entry)
        return []

    def result_heard(self, result: Result, now_ns: int) -> list[Action]:
        """The hub's outcome of a task."""
        self._last_word_ns = now_ns
        entry = self._open.get(result.task_id)
        if entry is None:
            self.stray_heard(result.task_id)
            return []
        self._heard_of(entry, now_ns)
        self._note_answered(entry)
        self.stats.answered += 1
        return [self._end(result, by_hub=True)]

    def stray_heard(self, task_id: str) -> None:
        """An outcome of a task that is not open: it comes again, or it is late."""
        if self._done.get(task_id, False):
            self.stats.duplicates += 1
        else:
            self.stats.late += 1
            self._remember(task_id, True)

    def result_stalled(self, task_id: str, now_ns: int) -> list[Action]:
        """Pieces of an outcome stay away: the hub repeats it when it is asked again."""
        entry = self._open.get(task_id)
        return [] if entry is None else [self._again(entry, now_ns)]

    def disconnected(self, now_ns: int) -> None:
        """The link went down: no word can come, so deadlines hold without grace."""
        self.is_connected = False
        self._reschedule(self._open.values(), now_ns)

    def reconnected(self, now_ns: int) -> list[Action]:
        """A new link, or a hub that began anew: ask for everything that is open."""
        self.is_connected = True
        actions: list[Action] = []
        for entry in self._open.values():
            if entry.is_taken_back:
                actions.append(SendCancel(entry.task.task_id))
            elif now_ns < entry.deadline_ns:
                entry.sent_ns = now_ns
                entry.is_heard_of = entry.is_resent = False
                entry.asks = 0
                entry.resend_ns = now_ns + self._resend_after_ns(entry.task)
                actions.append(self._again(entry, now_ns))
        self._reschedule(self._open.values(), now_ns)
        return actions

    def time_passed(self, now_ns: int) -> list[Action]:
        """Resend and end what is due."""
        actions: list[Action] = []
        while self._due and self._due[0][0] <= now_ns:
            due_ns, task_id = heapq.heappop(self._due)
            entry = self._open.get(task_id)
            if entry is None or entry.due_ns != due_ns:
                continue
            if now_ns >= self._end_ns(entry):
                actions.append(self._give_up(entry))
                continue
            if self._is_to_go_again(entry, now_ns):
                actions.append(self._again(entry, now_ns))
            self._schedule(entry)
        return actions

    def abandoned(self, result: Result) -> list[Action]:
        """A task ends here although its time is not up; `result` says why."""
        if result.task_id not in self._open:
            return []
        self.stats.abandoned += 1
        return [self._end(result, by_hub=False)]

    def closed(self, client_id: str) -> list[Action]:
        """The client leaves: realtime tasks are taken back, durable ones go on without it."""
        actions: list[Action] = []
        for task_id, entry in list(self._open.items()):
            if entry.task.mode == "realtime" and not entry.is_taken_back:
                actions.append(SendCancel(task_id))
            why = "expected an answer before the client closed; it was closed first"
            actions += self.abandoned(Result(task_id, client_id, "cancelled", "cancelled", why))
        return actions

    # -- how -------------------------------------------------------------------------------------

    def _resend_after_ns(self, task: Task) -> int:
        """Well above the usual time to the first word, plus the task at 20 Mbit/s."""
        usual = max(RESEND_FLOOR_NS, int(3 * self.rtt_ns))
        return usual + RESEND_NS_PER_BYTE * len(task.data)

    def _end_ns(self, entry: Open) -> int:
        if not self.is_connected:
            return entry.deadline_ns
        return entry.deadline_ns + GRACE_FLOOR_NS + int(min(self.rtt_ns, GRACE_LARGEST_RTT_NS))

    def _may_resend(self, entry: Open) -> bool:
        return (
            self._may_send(entry)
            and not (entry.is_heard_of or entry.is_resent)
            and entry.resend_ns < entry.deadline_ns
        )

    def _may_ask(self, entry: Open) -> bool:
        return (
            self._may_send(entry)
            and (entry.is_heard_of or entry.is_resent)
            and entry.ask_ns < entry.deadline_ns
        )

    def _may_send(self, entry: Open) -> bool:
        return self.is_connected and not entry.is_taken_back

    def _is_to_go_again(self, entry: Open, now_ns: int) -> bool:
        """Whether to send a task again now; else says when to look next."""
        if self._may_resend(entry) and now_ns >= entry.resend_ns:
            after_ns = self._resend_after_ns(entry.task)
            if self._heard_number > entry.number or self._is_silent(after_ns, now_ns):
                entry.is_resent = True
                entry.ask_ns = now_ns + self._ask_after_ns(entry)
                self.stats.resent += 1
                return True
            entry.resend_ns = (self._last_word_ns or 0) + after_ns
        elif self._may_ask(entry) and now_ns >= entry.ask_ns:
            after_ns = self._ask_after_ns(entry)
            answered = self._answered_number.get(entry.task.capability, 0)
            if answered > entry.number or self._is_silent(after_ns, now_ns):
                entry.asks += 1
                entry.ask_ns = now_ns + self._ask_after_ns(entry)
                self.stats.asked_again += 1
                return True
            entry.ask_ns = (self._last_word_ns or 0) + after_ns
        return False

    def _is_silent(self, for_ns: int, now_ns: int) -> bool:
        return self._last_word_ns is None or now_ns - self._last_word_ns >= for_ns

    def _ask_after_ns(self, entry: Open) -> int:
        """A second and more each time; ten times what sending it takes at 20 Mbit/s besides."""
        size_ns = 10 * RESEND_NS_PER_BYTE * len(entry.task.data)
        return int(ASK_NS + size_ns) << min(entry.asks, MOST_DOUBLINGS)

    def _again(self, entry: Open, now_ns: int, only: tuple[int, ...] = ()) -> SendTask:
        left_ms = max((entry.deadline_ns - now_ns) // MS, 1)
        return SendTask(entry.task, left_ms, True, only)

    def _schedule(self, entry: Open) -> None:
        end_ns = self._end_ns(entry)
        due_ns = min(self._next_send_ns(entry, end_ns), end_ns)
        if due_ns != entry.due_ns:
            entry.due_ns = due_ns
            heapq.heappush(self._due, (due_ns, entry.task.task_id))
            self._bound()

    def _next_send_ns(self, entry: Open, never_ns: int) -> int:
        if self._may_resend(entry):
            return entry.resend_ns
        return entry.ask_ns if self._may_ask(entry) else never_ns

    def _bound(self) -> None:
        if len(self._due) > 64 + 4 * len(self._open):
            self._compact()

    def _compact(self) -> None:
        self._due = [(entry.due_ns, task_id) for task_id, entry in self._open.items()]
        heapq.heapify(self._due)

    def _reschedule(self, entries: Iterable[Open], now_ns: int) -> None:
        for entry in entries:
            end_ns = max(self._end_ns(entry), now_ns)
            entry.due_ns = min(max(self._next_send_ns(entry, end_ns), now_ns), end_ns)
        self._compact()

    def _heard_of(self, entry: Open, now_ns: int) -> None:
        self._heard_number = max(self._heard_number, entry.number)
        entry.ask_ns = now_ns + self._ask_after_ns(entry)
        if not (entry.is_heard_of or entry.is_resent):
            took_ns = now_ns - entry.sent_ns
            self.rtt_ns += 0.2 * (took_ns - self.rtt_ns) if self.rtt_ns else took_ns
        entry.is_heard_of = True

    def _note_answered(self, entry: Open) -> None:
        known = self._answered_number
        if len(known) >= MAX_CAPABILITIES and entry.task.capability not in known:
            known.clear()
        known[entry.task.capability] = max(known.get(entry.task.capability, 0), entry.number)

    def _give_up(self, entry: Open) -> EndTask:
        task = entry.task
        why = "the hub did not answer" if self.is_connected else "the connection to the hub is down"
        self.stats.expired_here += 1
        result = Result(
            task.task_id,
            task.client_id,
            "expired",
            DeadlineExceeded.code,
            f"expected an answer within {task.ttl_ms} ms; {why}; allow more time or try again",
        )
        return self._end(result, by_hub=False)

    def _end(self, result: Result, *, by_hub: bool) -> EndTask:
        del self._open[result.task_id]
        self._bound()
        self._remember(result.task_id, by_hub)
        return EndTask(result)

    def _remember(self, task_id: str, by_hub: bool) -> None:
        self._done.pop(task_id, None)
        self._done[task_id] = by_hub
        while len(self._done) > MAX_DONE:
            del self._done[next(iter(self._done))]

    def check_invariants(self) -> None:
        """What always holds.

        Raises:
            AssertionError: it does not.
        """
        stats = self.stats
        ended = stats.answered + stats.expired_here + stats.abandoned
        assert stats.sent == ended + len(self._open), "a task without an outcome, or with two"
        scheduled = set(self._due)
        for task_id, entry in self._open.items():
            assert (entry.due_ns, task_id) in scheduled, f"nothing will ever end {task_id}"
        assert len(self._due) <= 64 + 4 * len(self._open), "timers without a bound"
        assert len(self._done) <= MAX_DONE


def _check_same(known: Task, wanted: Task) -> None:
    same = (known.capability, known.data, known.options) == (
        wanted.capability,
        wanted.data,
        wanted.options,
    )
    if not same:
        raise TaskRejected(
            f"expected the same task under the same id; {wanted.task_id} is open with another"
            " capability, data or options; leave task_id out for a fresh one",
            task_id=wanted.task_id,
        )


__all__ = ["Action", "EndTask", "Pending", "SendCancel", "SendTask", "Stats"]
