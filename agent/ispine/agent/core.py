"""What an agent decides: events in, actions out.

Theory of operation. An assignment is `waiting`, then `running`, then has a final reply that is kept
until the scheduler acknowledges it; at every moment it is in exactly one of the three. The same
attempt is never run twice: a duplicate gets what is already known. A task whose deadline has passed
is dropped before it runs. Tasks of one group may share a run; `batching` says how many. `accepted`
is sent a moment late, because a `done` within that moment says the same and saves two messages on
the way of a short task.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import assert_never

from ispine.agent.batching import BatchCurve
from ispine.agent.events import (
    Action,
    AgentLimits,
    AssignmentReceived,
    AttemptCancelled,
    Event,
    Forget,
    Key,
    Keys,
    LinkRestored,
    Refuse,
    RepeatFinal,
    ReplyAcknowledged,
    ReportSlots,
    RunFinished,
    SendAccepted,
    SendFinal,
    StartRun,
    TimePassed,
    WillingnessChanged,
)

MOST_CURVES = 64
ALL_LOST = "every slot is lost to a run that does not end; start the agent again"


@dataclass(slots=True)
class _Held:
    deadline_ns: int
    priority: int
    received_ns: int
    accept_at_ns: int
    group: str
    max_batch: int
    is_running: bool = False
    is_cancelled: bool = False


@dataclass(slots=True)
class _Run:
    """A busy slot.

    Attributes:
        due_ns: the deadline that its size was chosen for.
        lost_at_ns: when it counts as one that does not end.
    """

    group: str
    due_ns: int
    lost_at_ns: int
    is_lost: bool = False


@dataclass(slots=True)
class _Kept:
    repeat_at_ns: int
    size_bytes: int
    repeats: int = 0


@dataclass(slots=True)
class Counters:
    """What happened, for the state and for tests."""

    ran: int = 0
    runs: int = 0
    duplicates: int = 0
    expired: int = 0
    refused: int = 0
    cancelled: int = 0
    unacknowledged: int = 0


@dataclass(slots=True)
class AgentCore:
    """Decides what runs, what is refused and what is said again.

    Attributes:
        limits: the numbers.
        refusal: why no work is taken now, "" when it is.
    """

    limits: AgentLimits = field(default_factory=AgentLimits)
    refusal: str = ""
    counters: Counters = field(default_factory=Counters)
    _held: dict[Key, _Held] = field(default_factory=dict)
    _runs: dict[Keys, _Run] = field(default_factory=dict)
    _resting: list[int] = field(default_factory=list)
    _rest_owed_ns: float = 0.0
    _kept: OrderedDict[Key, _Kept] = field(default_factory=OrderedDict)
    _kept_bytes: int = 0
    _curves: OrderedDict[str, BatchCurve] = field(default_factory=OrderedDict)
    _out: list[Action] = field(default_factory=list)

    def handle(self, event: Event) -> list[Action]:
        """The only mutator: what to do about an event."""
        self._out = []
        match event:
            case AssignmentReceived():
                self._on_assignment(event)
            case RunFinished():
                self._on_finished(event)
            case ReplyAcknowledged(_, key):
                self._forget(key)
            case AttemptCancelled(now_ns, task_id, attempt):
                self._on_cancelled(now_ns, task_id, attempt)
            case WillingnessChanged(now_ns, refusal):
                self.refusal = refusal
                self._give_back_waiting(now_ns)
            case LinkRestored():
                self._out.extend(RepeatFinal(key) for key in self._kept)
            case TimePassed(now_ns):
                self._on_time(now_ns)
            case _:
                assert_never(event)
        self._start_runs(event.now_ns)
        return self._out

    @property
    def outstanding(self) -> int:
        """Assignments that wait or run."""
        return len(self._held)

    @property
    def running(self) -> int:
        """Slots that are busy."""
        return len(self._runs)

    @property
    def lost_slots(self) -> int:
        """Slots whose run went on far beyond its deadline."""
        return sum(run.is_lost for run in self._runs.values())

    @property
    def free_slots(self) -> int:
        """Assignments that could start at once."""
        if self._unwilling():
            return 0
        waiting = any(not held.is_running for held in self._held.values())
        return 0 if waiting else self._idle_slots()

    @property
    def held_tasks(self) -> tuple[str, ...]:
        """Ids of the tasks that wait or run."""
        return tuple(key[1] for key, held in self._held.items() if not held.is_cancelled)

    @property
    def next_wakeup_ns(self) -> int | None:
        """When `TimePassed` is wanted next."""
        times = [kept.repeat_at_ns for kept in self._kept.values()]
        times += [held.accept_at_ns for held in self._held.values() if held.accept_at_ns]
        times += [run.lost_at_ns for run in self._runs.values() if not run.is_lost]
        return min(times + self._resting, default=None)

    def _unwilling(self) -> str:
        if not self.refusal and self.lost_slots >= self.limits.slots:
            return ALL_LOST
        return self.refusal

    def _idle_slots(self) -> int:
        return max(self.limits.slots - len(self._runs) - len(self._resting), 0)

    # -- assignments -----------------------------------------------------------------------------

    def _on_assignment(self, event: AssignmentReceived) -> None:
        key = event.key
        if key in self._kept:
            self.counters.duplicates += 1
            self._out.append(RepeatFinal(key))
        elif key in self._held:
            self.counters.duplicates += 1
            self._held[key].accept_at_ns = 0
            self._out.append(SendAccepted(key))
        elif unwilling := self._unwilling():
            self._refuse(event.now_ns, key, "too_busy", unwilling)
        elif len(self._held) >= self.limits.held:
            message = f"expected at most {self.limits.held} assignments at once; this is one more"
            self._refuse(event.now_ns, key, "too_busy", message)
        else:
            accept_at_ns = event.now_ns + self.limits.accept_after_ns
            most = min(event.max_batch, self.limits.largest_batch)
            self._held[key] = _Held(
                event.deadline_ns, event.priority, event.now_ns, accept_at_ns, event.group, most
            )

    def _on_cancelled(self, now_ns: int, task_id: str, attempt: int) -> None:
        for key, held in list(self._held.items()):
            if key[1] != task_id or (attempt and key[2] != attempt) or held.is_cancelled:
                continue
            self.counters.cancelled += 1
            if held.is_running:
                held.is_cancelled = True
                held.accept_at_ns = 0
            else:
                del self._held[key]
                self._refuse(now_ns, key, "cancelled", "taken back before it ran")

    def _give_back_waiting(self, now_ns: int) -> None:
        unwilling = self._unwilling()
        if not unwilling:
            return
        for key, held in list(self._held.items()):
            if not held.is_running:
                del self._held[key]
                self._refuse(now_ns, key, "too_busy", unwilling)

    # -- final replies ---------------------------------------------------------------------------

    def _refuse(self, now_ns: int, key: Key, code: str, message: str) -> None:
        self.counters.refused += 1
        self._out.append(Refuse(key, code, message))
        self._keep(now_ns, key, 0)

    def _keep(self, now_ns: int, key: Key, size_bytes: int) -> None:
        self._kept[key] = _Kept(now_ns + self.limits.repeat_first_ns, size_bytes)
        self._kept_bytes += size_bytes
        while self._keeps_too_much():
            self.counters.unacknowledged += 1
            self._forget(next(iter(self._kept)))

    def _keeps_too_much(self) -> bool:
        limits = self.limits
        is_big = self._kept_bytes > limits.kept_bytes and len(self._kept) > 1
        return is_big or len(self._kept) > limits.kept_replies

    def _forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._kept_bytes -= kept.size_bytes
            self._out.append(Forget(key))

    def _repeat(self, now_ns: int, key: Key, kept: _Kept) -> None:
        if kept.repeats >= self.limits.repeat_times:
            self.counters.unacknowledged += 1
            self._forget(key)
            return
        kept.repeats += 1
        kept.repeat_at_ns = now_ns + (self.limits.repeat_first_ns << kept.repeats)
        self._out.append(RepeatFinal(key))

    # -- time ------------------------------------------------------------------------------------

    def _on_time(self, now_ns: int) -> None:
        for key, held in self._held.items():
            if held.accept_at_ns and held.accept_at_ns <= now_ns:
                held.accept_at_ns = 0
                self._out.append(SendAccepted(key))
        for run in self._runs.values():
            if not run.is_lost and run.lost_at_ns <= now_ns:
                run.is_lost = True
                self._out.append(ReportSlots(self.lost_slots))
        self._give_back_waiting(now_ns)
        for key, kept in list(self._kept.items()):
            if kept.repeat_at_ns <= now_ns:
                self._repeat(now_ns, key, kept)

    # -- runs ------------------------------------------------------------------------------------

    def _start_runs(self, now_ns: int) -> None:
        if self._resting:
            self._resting = [end_ns for end_ns in self._resting if end_ns > now_ns]
        while self._idle_slots():
            order = self._in_order(now_ns)
            if not order:
                return
            self._start(now_ns, order)

    def _in_order(self, now_ns: int) -> list[tuple[Key, _Held]]:
        """What waits, the most urgent first; what is late is dropped."""
        waiting = [(key, held) for key, held in self._held.items() if not held.is_running]
        late = [key for key, held in waiting if held.deadline_ns <= now_ns]
        for key in late:
            del self._held[key]
            self.counters.expired += 1
            message = "expected to start before the deadline; it has passed"
            self._refuse(now_ns, key, "expired", message)
        if late:
            waiting = [(key, held) for key, held in waiting if key in self._held]
        if len(waiting) > 1:
            waiting.sort(key=lambda e: (-e[1].priority, e[1].deadline_ns, e[1].received_ns))
        return waiting

    def _start(self, now_ns: int, order: list[tuple[Key, _Held]]) -> None:
        head = order[0][1]
        size, due_ns = 1, head.deadline_ns
        if head.max_batch > 1:
            order = [entry for entry in order if entry[1].group == head.group]
            deadlines_ns = [held.deadline_ns for _, held in order[: head.max_batch]]
            curve = self._curve(head.group, head.max_batch)
            size, due_ns = curve.choose(deadlines_ns, now_ns)
        chosen = order[:size]
        for _, held in chosen:
            held.is_running = True
        keys = tuple(key for key, _ in chosen)
        latest_ns = max(held.deadline_ns for _, held in chosen)
        self._runs[keys] = _Run(head.group, due_ns, latest_ns + self.limits.overrun_ns)
        self._out.append(StartRun(keys, tuple(now_ns - held.received_ns for _, held in chosen)))

    def _curve(self, group: str, most: int) -> BatchCurve:
        curve = self._curves.get(group)
        if curve is None:
            curve = self._curves[group] = BatchCurve(most)
            if len(self._curves) > MOST_CURVES:
                self._curves.popitem(last=False)
        return curve

    def _on_finished(self, event: RunFinished) -> None:
        run = self._runs.pop(event.keys, None)
        if run is None:
            return
        self.counters.runs += 1
        ended = [(key, self._held.pop(key)) for key in event.keys]
        if run.is_lost:
            self._out.append(ReportSlots(self.lost_slots))
        elif run.group in self._curves:
            is_in_time = event.now_ns <= run.due_ns
            self._curves[run.group].observe(len(ended), event.took_ns, is_in_time=is_in_time)
        self._rest(event.now_ns, event.took_ns)
        # The next run begins before this one is answered: encoding takes a while.
        self._start_runs(event.now_ns)
        sizes = event.sizes or (0,) * len(ended)
        for (key, held), size_bytes in zip(ended, sizes, strict=True):
            if held.is_cancelled:
                self._refuse(event.now_ns, key, "cancelled", "taken back while it ran")
                continue
            self.counters.ran += 1
            self._out.append(SendFinal(key))
            self._keep(event.now_ns, key, size_bytes)

    def _rest(self, now_ns: int, took_ns: int) -> None:
        """Keep to the owner's share of the CPU: a slot pauses in proportion to its work."""
        if self.limits.duty >= 1:
            return
        self._rest_owed_ns += took_ns * (1 / self.limits.duty - 1)
        if self._rest_owed_ns >= self.limits.least_rest_ns:
            self._resting.append(now_ns + int(self._rest_owed_ns))
            self._rest_owed_ns = 0.0

    def check_invariants(self) -> None:
        """What must hold after every event.

        Raises:
            AssertionError: it does not.
        """
        limits = self.limits
        in_runs = [key for keys in self._runs for key in keys]
        assert not set(self._held) & set(self._kept)
        assert len(in_runs) == len(set(in_runs))
        assert set(in_runs) == {key for key, held in self._held.items() if held.is_running}
        assert len(self._runs) + len(self._resting) <= limits.slots
        assert all(len(keys) <= limits.largest_batch for keys in self._runs)
        assert len(self._held) <= limits.held
        assert len(self._kept) <= limits.kept_replies
        assert self._kept_bytes == sum(kept.size_bytes for kept in self._kept.values())
        assert self._kept_bytes <= limits.kept_bytes or len(self._kept) == 1
        assert all(held.is_running for held in self._held.values() if held.is_cancelled)
        assert len(self._curves) <= MOST_CURVES
        if self._unwilling():
            assert all(held.is_running for held in self._held.values())
